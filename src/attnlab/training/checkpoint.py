"""A checkpoint file, read without Lightning and without running what it may hold."""

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from attnlab.errors import BadInput


def read_checkpoint(file: Path) -> dict[str, Any]:
    """Load a checkpoint onto the CPU; a pickle in it that would run code is refused.

    Raises:
        BadInput: the file is missing, damaged, or not one of ours.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()  # torch.load would read flipped bytes as weights
        if damaged is not None:
            raise BadInput(f"the checkpoint {file} is damaged: {damaged} has a wrong checksum")
        checkpoint = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise BadInput(f"there is no checkpoint {file}") from error
    except (OSError, zipfile.BadZipFile, pickle.UnpicklingError, RuntimeError, EOFError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BadInput(f"the checkpoint {file} cannot be read: {reason}") from error
    if not isinstance(checkpoint, dict) or "attnlab" not in checkpoint:
        raise BadInput(f"{file} is not a checkpoint of attnlab")
    return checkpoint
