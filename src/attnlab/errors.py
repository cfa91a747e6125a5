"""The one error that is the user's to mend, and the end that was asked for."""

import errno
import signal
import sysconfig
import traceback
from pathlib import Path

# What a disk says that is full, read-only or not ours.
DISK = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}
LIBRARIES = [Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib")]


class BadInput(ValueError):
    """A sentence that names the offending value and says what would be right.

    The two doors, train.py and the command `attnlab`, print it without a traceback and exit
    with code 2.
    """


class Terminated(SystemExit):
    """SIGTERM, as an exception that lets locks go and half-written files be removed."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


def first_line(error: BaseException) -> str:
    """What an error says, without the pages that some libraries add."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def of_the_disk(error: OSError) -> str:
    """What a disk refuses, and where."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror}"


def with_its_place(error: BaseException) -> str:
    """What an error says; one that a user's own code raised, with its class, file and line."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if Path(__file__).parent in file.parents:
            break
        if not any(library in file.parents for library in LIBRARIES):
            return (
                f"{type(error).__name__} in {file.name}, line {frame.lineno}: {first_line(error)}"
            )
    return first_line(error)
