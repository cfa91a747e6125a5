"""Errors in the user's input, and messages of one sentence."""

import errno
import sysconfig
import traceback
from pathlib import Path

# Error numbers of a disk that is full, read-only or without permission.
DISK = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}
LIBRARIES = [Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib")]


class BadInput(ValueError):
    """A sentence that names the bad value and says what to do.

    `train.py` and `attnlab` print it without a traceback and exit with code 2.
    """


class Terminated(SystemExit):
    """A signal as an exception, so that locks are released and unfinished files removed."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.signal = number


def first_line(error: BaseException, *, with_class: bool = False) -> str:
    """The first line of an error's message, or its class where it has none.

    `with_class` puts the class in front, as in "ValueError: ...".
    """
    name, line = type(error).__name__, str(error).strip().partition("\n")[0].rstrip()
    if not line:
        return name
    return f"{name}: {line}" if with_class else line


def counted(n: int, noun: str, ending: str = "s") -> str:
    """A number with its noun: "1 run", "2 runs", or with the ending "es" "2 processes"."""
    return f"{n:,} {noun}{ending * (n != 1)}"


def printable(text: str) -> str:
    """A text whose control characters, escapes included, are written out, as in \\x1b."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def disk_message(error: OSError) -> str:
    """The message of an error of the disk, with its file."""
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)


def missing_package(error: ModuleNotFoundError) -> str:
    """The sentence for a package that is not installed; empty for an error of our own."""
    name = str(error.name or "attnlab").partition(".")[0]
    if name == "attnlab":
        return ""
    package = {"hydra": "hydra-core", "yaml": "pyyaml", "PIL": "pillow"}.get(name, name)
    return f"{name} is not installed; install it with: pip install {package}"


def users_frame(error: BaseException) -> traceback.FrameSummary | None:
    """Where the user's code raised an error; None if a library or attnlab did."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if Path(__file__).parent in file.parents:
            return None
        # A relative name, such as <frozen importlib._bootstrap>, is not a file.
        if file.is_absolute() and not any(library in file.parents for library in LIBRARIES):
            return frame
    return None


def with_location(error: BaseException) -> str:
    """The first line of an error; with its class, file and line if the user's code raised it."""
    frame = users_frame(error)
    if frame is None:
        return first_line(error)
    said = first_line(error) if str(error) else frame.line  # an assertion, with its condition
    return f"{type(error).__name__} in {Path(frame.filename).name}, line {frame.lineno}: {said}"
