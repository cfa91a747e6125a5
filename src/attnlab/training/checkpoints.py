"""A checkpoint file: sealed by a digest, and read without running what it may hold."""

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import torch

from attnlab.errors import BadInput, first_line
from attnlab.files import read_file

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
