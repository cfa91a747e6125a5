"""Reads untrusted files, and writes files that appear whole or not at all."""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from attnlab.errors import BadInput, first_line

LARGEST = 16 * 2**30  # bytes of any file that is read as a whole
LARGEST_JSON = 64 * 2**20
LARGEST_YAML = 2**20
DIGEST = 64  # hexadecimal digits of a SHA-256
DEEPEST = 1000  # levels of nested YAML
# The file that a killed write leaves behind: .last.ckpt.attnlab-4711.tmp
TEMPORARY = re.compile(r"\.(?P<name>.+)\.attnlab-[0-9]+\.tmp")


def write_atomically(file: Path, content: bytes) -> None:
    """Write beside the file, flush to the disk, and put it in place in one step.

    Raises OSError if the disk is full or not writable; the old file is then unchanged.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.attnlab-{os.getpid()}.tmp")
    try:
        beside.unlink(missing_ok=True)  # of a process that was killed and had the same number
        with beside.open("xb") as stream:  # never through a symbolic link
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


def seal(archive: bytes) -> bytes:
    """Add the SHA-256 of a zip archive to it, as the comment that an archive may end in.

    Any reader of such archives, `torch.load` among them, still reads it. The checksums inside an
    archive do not cover its directory, whose flipped bits `torch.load` can read as other weights.
    """
    assert archive[-2:] == b"\0\0"  # the length of the comment, the last field of the archive
    content = archive[:-2] + DIGEST.to_bytes(2, "little")
    return content + hashlib.sha256(content).hexdigest().encode()


def is_sealed(content: bytes) -> bool:
    """Whether a file ends in the SHA-256 of all before it, as `seal` writes it."""
    return hashlib.sha256(content[:-DIGEST]).hexdigest().encode() == content[-DIGEST:]


@contextmanager
def open_file(file: Path, *, at_most: int = LARGEST) -> Iterator[BinaryIO]:
    """Open a regular file of at most so many bytes; a symbolic link is followed.

    Raises OSError if it is missing or not readable, and BadInput if it is too large or a pipe, a
    device or a directory, which is refused without waiting for it.
    """
    with open(file, "rb", opener=lambda x, flags: os.open(x, flags | os.O_NONBLOCK)) as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise BadInput(f"{file} is not a regular file")
        if status.st_size > at_most:
            raise BadInput(f"{file} is too large: {status.st_size:,} bytes, at most {at_most:,}")
        yield stream


def read_file(file: Path, *, at_most: int = LARGEST) -> bytes:
    """Read a whole file; see `open_file` for the arguments and errors."""
    with open_file(file, at_most=at_most) as stream:
        return stream.read(os.fstat(stream.fileno()).st_size)


def read_json(file: Path) -> dict[str, Any]:
    """Read what `write_json` wrote.

    Raises OSError if the file is missing or not readable, and BadInput if it is not a JSON object.
    """
    text = read_file(file, at_most=LARGEST_JSON)
    try:
        content = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise BadInput(f"{file} is not valid JSON") from error
    if not isinstance(content, dict):
        raise BadInput(f"{file} must hold a JSON object, not {type(content).__name__}")
    return content


def read_yaml(file: Path) -> Any:
    """Read settings that a run saved: plain values, without tags, aliases or interpolations.

    Raises OSError if the file is missing or not readable, and BadInput if it is not YAML or holds
    anything but plain values.
    """
    import yaml  # not needed by most commands

    content = read_file(file, at_most=LARGEST_YAML)
    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    try:
        if b"*" in content or sum(map(content.count, (b"[", b"{", b"- ", b"? "))) > DEEPEST:
            depth = 0
            for event in yaml.parse(content, Loader=loader):
                # A few aliases let a short file stand for a huge one. A run writes none.
                if isinstance(event, yaml.AliasEvent):
                    raise ValueError("it has an alias")
                depth += isinstance(event, yaml.CollectionStartEvent)
                depth -= isinstance(event, yaml.CollectionEndEvent)
                if depth > DEEPEST:  # at 30,000 levels the C loader overflows its stack
                    raise ValueError("it is nested too deeply")
        settings = yaml.load(content, Loader=loader)
        check_plain(settings)
    except (RecursionError, ValueError, yaml.YAMLError) as error:
        raise BadInput(f"{file} does not hold plain settings: {first_line(error)}") from error
    return settings


def check_plain(value: Any) -> None:
    """Raise ValueError for values that JSON cannot express and containers that occur twice."""
    containers, rest = set[int](), [value]
    while rest:
        item = rest.pop()
        if isinstance(item, dict | list | tuple):
            if id(item) in containers and item:
                raise ValueError("a group of values occurs twice")
            containers.add(id(item))
            rest += [*item.keys(), *item.values()] if isinstance(item, dict) else item
        elif item is not None and type(item) not in (str, int, float, bool):
            raise ValueError(f"{type(item).__name__} is not a plain value")
