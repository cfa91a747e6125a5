"""Reads untrusted files, writes files that appear whole or not at all, and imports modules."""

import gc
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnlab.errors import BadInput

LARGEST = 16 * 2**30  # bytes of any file that is read as a whole
LARGEST_JSON = 64 * 2**20
# What a write that was killed leaves behind: .last.ckpt.attnlab-4711.tmp
TEMPORARY = re.compile(r"\.(?P<name>.+)\.attnlab-[0-9]+\.tmp")


def write_atomically(file: Path, content: bytes) -> None:
    """Write beside the file, flush to the disk, and put it in place in one step.

    Raises:
        OSError: the disk is full or not writable. The old file is unchanged.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.attnlab-{os.getpid()}.tmp")
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


def read_file(file: Path, *, at_most: int = LARGEST) -> bytes:
    """Read a regular file. A pipe, a device or a directory is refused without waiting for it.

    Args:
        file: the file; a symbolic link is followed.
        at_most: bytes.

    Raises:
        OSError: the file is missing or not readable.
        BadInput: it is not a regular file, or it is too large.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise BadInput(f"{file} is not a regular file")
        if status.st_size > at_most:
            raise BadInput(f"{file} is too large: {status.st_size:,} bytes, at most {at_most:,}")
        return stream.read(at_most + 1)


def read_json(file: Path) -> dict[str, Any]:
    """Read what `write_json` wrote.

    Raises:
        OSError: the file is missing or not readable.
        BadInput: it does not hold a JSON object.
    """
    try:
        content = json.loads(read_file(file, at_most=LARGEST_JSON))
    except (RecursionError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadInput(f"{file} is not valid JSON") from error
    if not isinstance(content, dict):
        raise BadInput(f"{file} must hold a JSON object, not {type(content).__name__}")
    return content


def make_importable(conf: Path) -> None:
    """Let Python import the modules in a folder of configuration files and beside it.

    Only for a folder that the user named, or that belongs to a claim the user runs.
    """
    for folder in (conf.resolve(), conf.resolve().parent):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))


@contextmanager
def fast_imports() -> Iterator[None]:
    """Turn the garbage collector off during imports, which halves their time.

    Imports create hardly any garbage, but the collector scans all that PyTorch and Lightning
    define again and again, and once more when the process exits. So what was imported is also
    exempt from later collections.
    """
    before, was_enabled = len(sys.modules), gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
    if len(sys.modules) > before:
        gc.freeze()
