"""What a stored recipe may name: checked before anything is imported, built or allocated.

A recipe is the part of a checkpoint from which its model is rebuilt: the resolved configuration of
the run and the alphabet. Whoever wrote the file wrote the recipe, so it is data and not code.
"""

from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor

from attnlab.data.corpora import Alphabet
from attnlab.data.tokenizers import from_plain
from attnlab.errors import BadInput, printable
from attnlab.files import check_plain
from attnlab.model import GPT

# Elementwise functions of PyTorch, for `model.activation`.
FUNCTIONS = frozenset(
    f"torch.nn.functional.{name}"
    for name in (
        *("celu", "elu", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu"),
        *("logsigmoid", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "softplus"),
        *("softsign", "tanh", "tanhshrink"),
    )
) | {"torch.relu", "torch.sigmoid", "torch.sin", "torch.tanh"}
INIT = ("init", "qk_std")  # keys of the group `model` for the initial weights
LARGEST_BLOCK = 2**14  # a mask of block_size x block_size is built to check it: 256 MB
LONGEST = 100  # characters of a value that a message quotes


def check_recipe(recipe: Any, file: Path) -> tuple[dict[str, Any], Alphabet]:
    """The recipe and its alphabet, if it holds a configuration and an alphabet as plain values.

    Raises:
        BadInput: with the checkpoint's file.
    """
    try:
        check_plain(recipe)
        model, attn = recipe["config"]["model"], recipe["config"]["attn"]
        if not all(isinstance(node, dict) for node in (model, attn)):
            raise ValueError("model and attn must be groups of settings")
        alphabet = from_plain(recipe["alphabet"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"the recipe of {file} cannot be read: {_cut(error)}") from error
    return dict(recipe), alphabet


def nodes_to_build(recipe: Mapping[str, Any], file: Path, *, trust: bool) -> list[DictConfig]:
    """The nodes `model` and `attn` of a recipe, once they are known to be safe to build.

    Args:
        recipe: as `check_recipe` returns it.
        file: of the checkpoint, for messages.
        trust: whether import paths of any code are allowed.

    Raises:
        BadInput: a value is an interpolation; or, without trust, it is an import path or nested,
            or its key is no setting of a GPT.
    """
    nodes, own = [], []
    for group in ("model", "attn"):
        settings = recipe["config"][group]
        for key, value in settings.items():
            name = f"{group}.{key}"
            if isinstance(value, str) and ("${" in value or value == "???"):
                raise BadInput(
                    f"{_cut(name)} = {_cut(value)} in {file} is not a resolved value, which every "
                    "run of attnlab stores"
                )
            if trust:
                continue
            if isinstance(value, dict | list):
                raise BadInput(f"{_cut(name)} in {file} must be a single value")
            if not isinstance(value, str):
                continue
            if "." in value and (key == "_target_" or value not in FUNCTIONS):
                own.append(f"{name} = {value}")
        nodes.append(DictConfig(settings))
    if own:
        raise BadInput(
            f"{file} asks for code that is not part of attnlab ({_cut(', '.join(own), 3)}); "
            "if you trust the file, allow it to run with --trust (in Python: trust=True)"
        )
    known = {"_target_", "_partial_", *INIT, *signature(GPT).parameters}
    unknown = [] if trust else [key for key in recipe["config"]["model"] if key not in known]
    if unknown:
        raise BadInput(
            f"model.{_cut(unknown[0])} in {file} is not a setting of this version's GPT"
        )
    return nodes


def check_weights(weights: Any, file: Path) -> dict[str, Tensor]:
    """The weights of a checkpoint by the names that the model has for them.

    Raises:
        BadInput: one is not a dense tensor on the CPU, or claims more values than are stored.
    """
    if not isinstance(weights, dict):
        raise BadInput(f"{file} holds no weights")
    for name, x in weights.items():
        if not isinstance(name, str) or not isinstance(x, Tensor):
            raise BadInput(f"{file} holds weights that are not tensors: {_cut(name)}")
        plain = x.layout == torch.strided and x.device.type == "cpu"
        if not plain or x.is_quantized or x.is_complex() or x.is_nested:
            raise BadInput(f"{_cut(name)} in {file} is not a dense tensor of numbers")
        if x.numel() * x.element_size() > x.untyped_storage().nbytes():
            raise BadInput(f"{_cut(name)} in {file} claims more values than are stored")
    return {name.removeprefix("net."): x for name, x in weights.items()}


def check_sizes(
    model: DictConfig, alphabet: Alphabet, weights: Mapping[str, Tensor], file: Path
) -> None:
    """Refuse a recipe that asks for a larger model than the file holds.

    Every model of ours stores at least an embedding (V, C) and in each layer a matrix (C, C), so
    that what is allocated to be filled with the weights is bounded by what is stored.

    Raises:
        BadInput: with the setting that is too large.
    """
    storages = [x.untyped_storage() for x in weights.values()]
    stored = sum({s.data_ptr(): s.nbytes() for s in storages}.values())  # bytes
    width, layers, smear = (model.get(name, 0) for name in ("n_embd", "n_layer", "smear"))
    sizes = {"n_embd": width, "n_layer": layers, "smear": smear}
    sizes["block_size"] = block = model.get("block_size", 0)
    for name, size in sizes.items():
        if type(size) is not int:
            raise BadInput(f"model.{name} in {file} must be a whole number")
    positions = block if model.get("learned_positions", True) else 0
    too_large = {
        "n_embd": width * max(width, len(alphabet)) > stored,
        "n_layer": max(layers, 0) > len(weights) or layers * width**2 > stored,
        "smear": max(smear, 0) > len(weights),
        "block_size": positions * width > stored or block > LARGEST_BLOCK,
    }
    for name, large in too_large.items():
        if large:
            raise BadInput(
                f"model.{name} = {_cut(sizes[name])} in {file} asks for a larger model than the "
                "file holds"
            )


def _cut(value: Any, times: int = 1) -> str:
    """A value of a file as a message may quote it."""
    text = printable(repr(value)[:LONGEST] if isinstance(value, int) else str(value))
    return text if len(text) <= times * LONGEST else f"{text[: times * LONGEST]}..."
