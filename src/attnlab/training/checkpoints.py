"""Reads checkpoint files without running code from them, and builds their models."""

import io
import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any, BinaryIO

import torch
from omegaconf import DictConfig
from torch import Tensor

from attnlab.data.corpora import Alphabet
from attnlab.data.tokenizers import from_plain
from attnlab.errors import BadInput, first_line, printable
from attnlab.files import check_plain, is_sealed, open_file
from attnlab.imports import make_importable
from attnlab.model import GPT
from attnlab.runs.run_directory import RunDirectory
from attnlab.runs.settings import settings_with
from attnlab.training.factories import model_factory

# docs/security.md says what is checked before anything is imported, built or allocated.
# The entries of an archive of `torch.save`, below one directory.
ENTRIES = re.compile(
    r"[\w.~-]+/(data\.pkl|byteorder|version|\.format_version|\.storage_alignment"
    r"|\.data/serialization_id|data/[0-9]+)",
    re.ASCII,
)
MOST_ENTRIES = 100_000
# Elementwise functions of PyTorch, for `model.activation`.
FUNCTIONS = frozenset(
    f"torch.nn.functional.{name}"
    for name in (
        *("celu", "elu", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu"),
        *("logsigmoid", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "softplus"),
        *("softsign", "tanh", "tanhshrink"),
    )
) | {"torch.relu", "torch.sigmoid", "torch.sin", "torch.tanh"}
LARGEST_BLOCK = 2**14  # a mask of block_size x block_size is built to check it: 256 MB
LONGEST = 100  # characters of a value that a message quotes


@cache
def versions() -> dict[str, str]:
    """The versions of the libraries that decide what a checkpoint holds and how a run resumes."""
    return {name: version(name) for name in ("attnlab", "lightning", "torch")}


def read_checkpoint(file: Path) -> dict[str, Any]:
    """Load a checkpoint onto the CPU; BadInput if it is missing, damaged or not of attnlab."""
    foreign = f"{file} is not a checkpoint of attnlab, or it is damaged"
    try:
        with open_file(file) as stream:
            if fault := _fault_of_archive(stream):  # in the directory at its end
                raise BadInput(f"{foreign}: {fault}")
            stream.seek(0)
            content = stream.read()
    except FileNotFoundError as error:
        raise BadInput(f"there is no checkpoint {file}") from error
    except OSError as error:
        raise BadInput(f"the checkpoint {file} cannot be read: {error.strerror}") from error
    except MemoryError as error:
        raise BadInput(f"the checkpoint {file} does not fit into memory") from error
    if not is_sealed(content):
        raise BadInput(foreign)
    try:
        checkpoint = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # PyTorch raises no narrower type
        raise BadInput(f"the checkpoint {file} cannot be read: {first_line(error)}") from error
    ours = checkpoint.get("attnlab") if isinstance(checkpoint, dict) else None
    if not isinstance(ours, dict) or not {"recipe", "val_losses"} <= ours.keys():
        raise BadInput(f"{file} is not a checkpoint of attnlab")
    return dict(checkpoint)


def _fault_of_archive(stream: BinaryIO) -> str:
    """What is wrong with an archive, if `torch.save` has not written it; "" otherwise."""
    try:
        with zipfile.ZipFile(stream) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError) as error:
        return f"not an archive of PyTorch ({first_line(error)})"
    names = [entry.filename for entry in entries]
    if len(entries) > MOST_ENTRIES or len(set(names)) < len(names):
        return "its archive has too many entries or one of them twice"
    for entry in entries:
        if ENTRIES.fullmatch(entry.filename) is None:
            return f"its archive has the unknown entry {entry.filename[:80]!r}"
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
            return "its archive is compressed"
    if sum(entry.file_size for entry in entries) > stream.seek(0, io.SEEK_END):
        return "its archive declares more bytes than it has"
    return ""


@dataclass(frozen=True)
class StoredModel:
    """What a checkpoint says about its model. Nothing is built or imported yet."""

    file: Path  # the checkpoint
    recipe: dict[str, Any]  # "config", "alphabet" in plain values, and "corpus"
    alphabet: Alphabet
    weights: dict[str, Tensor]  # by parameter name

    def fill(self, net: torch.nn.Module) -> torch.nn.Module:
        """Put the weights into a model, and return it in evaluation mode; warn of weights that are
        not finite. BadInput if the model has other parameters."""
        try:
            net.load_state_dict(self.weights)
        except RuntimeError as error:
            raise BadInput(
                f"{self.file} does not hold the weights that its settings ask for; "
                "was it written by another version of attnlab?"
            ) from error
        if bad := [name for name, x in self.weights.items() if not bool(x.isfinite().all())]:
            more = f" and {len(bad) - 1} more" if bad[1:] else ""
            warnings.warn(
                f"{self.file} holds weights that are not finite, in {bad[0]}{more}", stacklevel=2
            )
        return net.eval()


def read_stored_model(target: Path) -> StoredModel:
    """Read a checkpoint, or the last one of a run directory; BadInput if missing or damaged."""
    if not target.exists():
        raise BadInput(f"there is no run directory or checkpoint {target}")
    file = _last_checkpoint(RunDirectory(target)) if target.is_dir() else target
    checkpoint = read_checkpoint(file)
    recipe = checkpoint["attnlab"]["recipe"]
    try:
        check_plain(recipe)
        if not all(isinstance(recipe["config"][group], dict) for group in ("model", "attn")):
            raise ValueError("model and attn must be groups of settings")
        alphabet = from_plain(recipe["alphabet"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"the recipe of {file} cannot be read: {_cut(error)}") from error
    weights = _checked_weights(checkpoint.get("state_dict"), file)
    return StoredModel(file, dict(recipe), alphabet, weights)


def load_model(target: Path | str, *, trust: bool = False) -> tuple[GPT, Alphabet]:
    """The language model of a run directory (its last checkpoint) or of a checkpoint, in
    evaluation mode; BadInput if there is none, or it names code that `trust` does not allow.

    `trust` allows the file to name your own classes and functions by import path, which runs their
    code; modules of the current directory can then be imported. Without it, only public names of
    attnlab and a list of PyTorch's activations are used. Returns the model on the CPU, and its
    alphabet: symbol i is alphabet[i], and `attnlab.data.corpora.encode` turns a text into ids.
    """
    net, alphabet, _ = load_with_recipe(target, trust=trust)
    return net, alphabet


def load_with_recipe(
    target: Path | str, *, trust: bool = False
) -> tuple[GPT, Alphabet, dict[str, Any]]:
    """What `load_model` returns, and the recipe of the checkpoint; see `StoredModel`."""
    net, stored = load_stored(Path(target), trust=trust)
    if not isinstance(net, GPT):
        raise BadInput(f"{target} holds a {type(net).__name__}, and a GPT is needed")
    alphabet = stored.alphabet
    alphabet = "".join(alphabet) if isinstance(alphabet, tuple) else alphabet
    if len(alphabet) != net.vocab_size:
        raise BadInput(f"the alphabet in {target} must be of single characters")
    return net, alphabet, stored.recipe


def load_stored(target: Path, *, trust: bool = False) -> tuple[torch.nn.Module, StoredModel]:
    """The model of any task and what its checkpoint says about it, as by `load_model`."""
    stored = read_stored_model(target)
    model, attn = _nodes_to_build(stored.recipe, stored.file, trust=trust)
    if trust:
        make_importable(Path.cwd())
    else:
        _check_sizes(model, stored.alphabet, stored.weights, stored.file)
    net = model_factory(model, attn)(len(stored.alphabet))
    return stored.fill(net), stored


def _last_checkpoint(folder: RunDirectory) -> Path:
    if not folder.status_file.exists():
        raise BadInput(f"{folder.path} is not a run directory: it has no status.json")
    if folder.last_checkpoint.exists():
        return folder.last_checkpoint
    status = folder.status()
    ended = {"diverged": "diverged at", "failed": "failed after"}.get(str(status.get("status")))
    why = f": the run {ended} step {status['step']}" if ended else " yet"
    raise BadInput(f"{folder.path} has no checkpoint{why}")


def _nodes_to_build(recipe: Mapping[str, Any], file: Path, *, trust: bool) -> list[DictConfig]:
    """The nodes `model` and `attn` of a recipe, checked before anything is built from them."""
    groups = {group: recipe["config"][group] for group in ("model", "attn")}
    nodes, foreign = [DictConfig(settings) for settings in groups.values()], []
    if isinstance(layers := groups["attn"].get("layers"), dict):
        groups |= {f"attn.layers.{number}": node for number, node in layers.items()}
        groups["attn"] = {key: x for key, x in groups["attn"].items() if key != "layers"}
    for group, settings in groups.items():
        if not isinstance(settings, dict):
            raise BadInput(f"{_cut(group)} in {file} must be a group of settings")
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
            ours = value in FUNCTIONS and key != "_target_"
            if isinstance(value, str) and "." in value and not ours:
                foreign.append(f"{name} = {value}")
    if foreign:
        raise BadInput(
            f"{file} asks for code that is not part of attnlab ({_cut(', '.join(foreign), 3)}); "
            "if you trust the file, allow it to run with --trust (in Python: trust=True)"
        )
    start = [setting.removeprefix("model.") for setting in settings_with("start")]
    settings_of_gpt = {"_target_", "_partial_", *start, *signature(GPT).parameters}
    unknown = (
        [] if trust else [key for key in recipe["config"]["model"] if key not in settings_of_gpt]
    )
    if unknown:
        raise BadInput(
            f"model.{_cut(unknown[0])} in {file} is not a setting of this version's GPT"
        )
    return nodes


def _checked_weights(weights: Any, file: Path) -> dict[str, Tensor]:
    """The weights of a checkpoint by the names that the model has for them."""
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


def _check_sizes(
    model: DictConfig, alphabet: Alphabet, weights: Mapping[str, Tensor], file: Path
) -> None:
    """Refuse a recipe that asks for a larger model than the file holds."""
    # Every model of ours stores an embedding (V, C) and in each layer a matrix (C, C).
    storages = [x.untyped_storage() for x in weights.values()]
    stored = sum({s.data_ptr(): s.nbytes() for s in storages}.values())  # bytes
    sizes = {name: model.get(name, 0) for name in ("n_embd", "n_layer", "smear", "block_size")}
    width, layers, smear, block = sizes.values()
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
