"""A checkpoint file, read without Lightning and without running what it may hold."""

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from attnlab.errors import BadInput, first_line


def read_checkpoint(file: Path) -> dict[str, Any]:
    """Load a checkpoint onto the CPU; a pickle in it that would run code is refused.

    Raises:
        BadInput: the file is missing, damaged, or not one of ours.
    """
    if not file.exists():
        raise BadInput(f"there is no checkpoint {file}")
    try:
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()  # torch.load would read flipped bytes as weights
        checkpoint = torch.load(file, map_location="cpu", weights_only=True)
    except (
        OSError,
        zipfile.BadZipFile,
        pickle.UnpicklingError,
        # What broken archives make of the parsers below them.
        RuntimeError,
        NotImplementedError,
        EOFError,
        ValueError,
        IndexError,
        KeyError,
    ) as error:
        raise BadInput(f"the checkpoint {file} cannot be read: {first_line(error)}") from error
    if damaged is not None:
        raise BadInput(f"the checkpoint {file} is damaged: {damaged} has a wrong checksum")
    ours = checkpoint.get("attnlab") if isinstance(checkpoint, dict) else None
    if not isinstance(ours, dict) or not {"recipe", "val_losses"} <= ours.keys():
        raise BadInput(f"{file} is not a checkpoint of attnlab")
    if not {"state_dict", "loops", "global_step"} <= checkpoint.keys():
        raise BadInput(f"{file} is not a whole checkpoint of attnlab")
    return dict(checkpoint)
