"""Files that appear whole or not at all."""

import json
import os
import sys
from pathlib import Path
from typing import Any


def write_atomically(file: Path, content: bytes) -> None:
    """Write beside the file, flush to the disk, and put it in place in one step.

    Raises:
        OSError: the disk is full or may not be written; the old file then stands as it was.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with beside.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(file)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(file)) from error
    finally:
        if beside.exists():
            beside.unlink()


def write_json(file: Path, content: dict[str, Any]) -> None:
    """Write a dictionary as JSON, atomically; NaN is written as NaN."""
    write_atomically(file, (json.dumps(content, indent=2) + "\n").encode())


def read_json(file: Path) -> dict[str, Any]:
    """Read what `write_json` wrote."""
    content: dict[str, Any] = json.loads(file.read_text())
    return content


def make_importable(conf: Path) -> None:
    """Let Python import the modules in a folder of configuration files and beside it.

    Only for a folder that the user named, or that belongs to a claim the user runs.
    """
    for folder in (conf.resolve(), conf.resolve().parent):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
