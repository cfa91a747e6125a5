"""Checkpoint files: sealed by a digest, read without running code, and opened as models."""

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from attnlab.errors import BadInput, first_line
from attnlab.files import read_file
from attnlab.model import GPT
from attnlab.training.config import model_factory
from attnlab.training.run_directory import RunDirectory

DIGEST = 64  # hexadecimal digits of a SHA-256


def seal(content: bytes) -> bytes:
    """Add the SHA-256 of a `torch.save` file to it, as the comment that a zip archive may end in.

    Any reader of torch files still reads it. The checksums inside the archive do not cover its
    directory, whose flipped bits `torch.load` can read as other weights.
    """
    assert content[-2:] == b"\0\0"  # the length of the comment, the last field of the archive
    content = content[:-2] + DIGEST.to_bytes(2, "little")
    return content + hashlib.sha256(content).hexdigest().encode()


def read_checkpoint(file: Path) -> dict[str, Any]:
    """Load a checkpoint onto the CPU; a pickle in it that would run code is refused.

    Raises:
        BadInput: the file is missing, damaged, or not one of ours.
    """
    try:
        content = read_file(file)
    except FileNotFoundError as error:
        raise BadInput(f"there is no checkpoint {file}") from error
    except OSError as error:
        raise BadInput(f"the checkpoint {file} cannot be read: {error.strerror}") from error
    if hashlib.sha256(content[:-DIGEST]).hexdigest().encode() != content[-DIGEST:]:
        raise BadInput(f"{file} is not a checkpoint of attnlab, or it is damaged")
    try:
        checkpoint = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, MemoryError, ValueError, KeyError) as error:
        raise BadInput(f"the checkpoint {file} cannot be read: {first_line(error)}") from error
    ours = checkpoint.get("attnlab") if isinstance(checkpoint, dict) else None
    if not isinstance(ours, dict) or not {"recipe", "val_losses"} <= ours.keys():
        raise BadInput(f"{file} is not a checkpoint of attnlab")
    return dict(checkpoint)


def load_model(target: Path) -> tuple[GPT, str]:
    """The language model of a run directory (its last checkpoint) or of a checkpoint, in
    evaluation mode.

    Returns:
        the model on the CPU, and its alphabet: symbol i is alphabet[i].

    Raises:
        BadInput: there is no such thing, it is damaged, or it holds another model than a GPT.
    """
    net, alphabet = load_any(target)
    if not isinstance(net, GPT):
        raise BadInput(f"{target} holds a {type(net).__name__}, and a GPT is needed")
    return net, str(alphabet)


def load_any(target: Path) -> tuple[torch.nn.Module, Any]:
    """The model of any task, in evaluation mode, and its alphabet; see `load_model`."""
    net, recipe = load_with_recipe(target)
    return net, recipe["alphabet"]


def load_with_recipe(target: Path) -> tuple[torch.nn.Module, dict[str, Any]]:
    """The model of any task, in evaluation mode, and what its checkpoint says of the run: the
    configuration, the alphabet and the corpus."""
    if not target.exists():
        raise BadInput(f"there is no run directory or checkpoint {target}")
    if target.is_dir():
        target = _last_checkpoint(RunDirectory(target))
    checkpoint = read_checkpoint(target)
    recipe = checkpoint["attnlab"]["recipe"]
    cfg = OmegaConf.create(recipe["config"])
    net = model_factory(cfg.model, cfg.attn)(len(recipe["alphabet"]))
    weights = checkpoint["state_dict"]
    try:
        net.load_state_dict({name.removeprefix("net."): x for name, x in weights.items()})
    except RuntimeError as error:
        raise BadInput(
            f"{target} does not hold the weights that its settings ask for; "
            "was it written by another version of attnlab?"
        ) from error
    return net.eval(), recipe


def _last_checkpoint(folder: RunDirectory) -> Path:
    if not folder.status_file.exists():
        raise BadInput(f"{folder.path} is not a run directory: it has no status.json")
    if folder.last_checkpoint.exists():
        return folder.last_checkpoint
    status = folder.status()
    ended = {"diverged": "diverged at", "failed": "failed after"}.get(str(status.get("status")))
    why = f": the run {ended} step {status['step']}" if ended else " yet"
    raise BadInput(f"{folder.path} has no checkpoint{why}")
