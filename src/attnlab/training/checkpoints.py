"""Reads checkpoint files without running code from them, and builds their models."""

import io
import platform
import re
import warnings
import zipfile
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
from attnlab.runs.settings import flat, settings_with
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


@cache
def processor() -> str:
    """The name of the processor, from /proc/cpuinfo if it exists."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def conditions(trainer: Any) -> dict[str, Any]:
    """Precision and device of a run of Lightning's Trainer, which may change its bits."""
    device = trainer.strategy.root_device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    found = {"precision": str(trainer.precision), "device": device.type, "device_name": name}
    return found | {"devices": trainer.world_size, "threads": torch.get_num_threads()}


def read_checkpoint(file: Path) -> dict[str, Any]:
    """Load a checkpoint onto the CPU; BadInput if it is missing, damaged or not of attnlab."""
    foreign = f"{file} is not a checkpoint of attnlab, or it is damaged"
    try:
        with open_file(file) as stream:
            if fault := _fault_of_archive(stream):  # in the directory at its end
                raise BadInput(f"{foreign}: {fault}")
            stream.seek(0)
            content = stream.read()
    except (OSError, MemoryError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it does not fit into memory"
        raise BadInput(f"the checkpoint {file} cannot be read: {reason}") from error
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
    if unknown := [name for name in names if ENTRIES.fullmatch(name) is None]:
        return f"its archive has the unknown entry {unknown[0][:80]!r}"
    if any(
        e.compress_type != zipfile.ZIP_STORED or e.compress_size != e.file_size for e in entries
    ):
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
    file, folder = target, RunDirectory(target)
    if target.is_dir():
        file = folder.last_checkpoint
        if not folder.status_file.exists():
            raise BadInput(f"{target} is not a run directory: it has no status.json")
        if not file.exists():
            status = folder.status()
            ended = {"diverged": "diverged at", "failed": "failed after"}.get(status["status"])
            why = f": the run {ended} step {status['step']}" if ended else " yet"
            raise BadInput(f"{target} has no checkpoint{why}")
    checkpoint = read_checkpoint(file)
    recipe = checkpoint["attnlab"]["recipe"]
    try:
        check_plain(recipe)
        flat(recipe["config"])  # not nested too deeply
        if not all(isinstance(recipe["config"][group], dict) for group in ("model", "attn")):
            raise ValueError("model and attn must be groups of settings")
        alphabet = from_plain(recipe["alphabet"])
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
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
    net, stored = load_stored(Path(target), trust=trust)
    if not isinstance(net, GPT):
        raise BadInput(f"{target} holds a {type(net).__name__}, and a GPT is needed")
    alphabet = stored.alphabet
    alphabet = "".join(alphabet) if isinstance(alphabet, tuple) else alphabet
    if len(alphabet) != net.vocab_size:
        raise BadInput(f"the alphabet in {target} must be of single characters")
    return net, alphabet


def load_stored(target: Path, *, trust: bool = False) -> tuple[torch.nn.Module, StoredModel]:
    """The model of any task and what its checkpoint says about it, as by `load_model`."""
    stored = read_stored_model(target)
    model, attn = _nodes_to_build(stored, trust=trust)
    if trust:
        make_importable(Path.cwd())
    else:
        _check_sizes(model, stored)
    net = model_factory(model, attn)(len(stored.alphabet))
    return stored.fill(net), stored


def _nodes_to_build(stored: StoredModel, *, trust: bool) -> list[DictConfig]:
    """The nodes `model` and `attn` of a recipe, checked before anything is built from them."""
    groups = {group: stored.recipe["config"][group] for group in ("model", "attn")}
    foreign = []
    for name, value in flat(groups).items():
        shown = f"{_cut(name)} = {_cut(value)} in {stored.file}"
        if isinstance(value, str) and ("${" in value or value == "???"):
            raise BadInput(f"{shown} is not a resolved value, which every run of attnlab stores")
        depth = 3 if name.startswith("attn.layers") else 1  # attn.layers.0.kernel, attn.kernel
        if not trust and (isinstance(value, dict | list) or name.count(".") != depth):
            raise BadInput(f"{shown} must be a single value")
        dotted = isinstance(value, str) and "." in value
        if dotted and (value not in FUNCTIONS or name.endswith("._target_")):
            foreign.append(f"{name} = {value}")
    if foreign and not trust:
        raise BadInput(
            f"{stored.file} asks for code that is not part of attnlab "
            f"({_cut(', '.join(foreign), 3)}); if you trust the file, allow it to run with "
            "--trust (in Python: trust=True)"
        )
    start = [setting.removeprefix("model.") for setting in settings_with("start")]
    known = {"_target_", "_partial_", *start, *signature(GPT).parameters}
    unknown = [key for key in groups["model"] if key not in known]
    if unknown and not trust:
        name = f"model.{_cut(unknown[0])} in {stored.file}"
        raise BadInput(f"{name} is not a setting of this version's GPT")
    return [DictConfig(settings) for settings in groups.values()]


def _checked_weights(weights: Any, file: Path) -> dict[str, Tensor]:
    """The weights of a checkpoint by the names that the model has for them."""
    if not isinstance(weights, dict):
        raise BadInput(f"{file} holds no weights")
    for name, x in weights.items():
        if not (
            isinstance(name, str)
            and isinstance(x, Tensor)
            and (x.layout, x.device.type) == (torch.strided, "cpu")
            and not (x.is_quantized or x.is_complex() or x.is_nested)
            and x.numel() * x.element_size() <= x.untyped_storage().nbytes()  # not stretched
        ):
            raise BadInput(f"{_cut(name)} in {file} is not a dense tensor of stored numbers")
    return {name.removeprefix("net."): x for name, x in weights.items()}


def _check_sizes(model: DictConfig, stored: StoredModel) -> None:
    """Refuse a recipe that asks for a larger model than the file holds."""
    sizes = {name: model.get(name, 0) for name in ("n_embd", "n_layer", "smear", "block_size")}
    for name, size in sizes.items():
        if type(size) is not int:
            raise BadInput(f"model.{name} in {stored.file} must be a whole number")
    # Every model of ours stores an embedding (V, C) and in each layer a matrix (C, C).
    storages = [x.untyped_storage() for x in stored.weights.values()]
    held = sum({s.data_ptr(): s.nbytes() for s in storages}.values())  # bytes
    width, layers, smear, block = sizes.values()
    positions = block if model.get("learned_positions", True) else 0
    too_large = {
        "n_embd": width * max(width, len(stored.alphabet)) > held,
        "n_layer": layers > len(stored.weights) or layers * width**2 > held,
        "smear": smear > len(stored.weights),
        "block_size": positions * width > held or block > LARGEST_BLOCK,
    }
    for name in (name for name, large in too_large.items() if large):
        asked = f"model.{name} = {_cut(sizes[name])} in {stored.file}"
        raise BadInput(f"{asked} asks for a larger model than the file holds")


def _cut(value: Any, times: int = 1) -> str:
    """A value of a file as a message may quote it."""
    text = printable(repr(value)[:LONGEST] if isinstance(value, int) else str(value))
    return text if len(text) <= times * LONGEST else f"{text[: times * LONGEST]}..."
