"""The corpora that `conf/data` names."""

import warnings
from pathlib import Path

from attnlab.data.corpus import VALIDATION_SHARE, Corpus
from attnlab.data.plays import Plays
from attnlab.data.tinyshakespeare import NotFound, tinyshakespeare
from attnlab.errors import BadInput

PLAYS_LENGTH = 600_000


def plays(length: int = PLAYS_LENGTH, seed: int = 0) -> Corpus:
    """Little plays from a known automaton, whose exact entropy stands beside the loss.

    Args:
        length: characters in all.
        seed: of the text, apart from the run's seed, so that all runs read the same plays.

    Raises:
        BadInput: a number out of its range.
    """
    for name, value, least in (("length", length, 1), ("seed", seed, 0)):
        if value < least:
            raise BadInput(f"data.{name} = {value} must be at least {least}")
    text, log_p = Plays().generate(seed, length)
    cut = int(length * (1 - VALIDATION_SHARE))
    return Corpus(name="plays", text=text, val_floor=float(-log_p[cut + 1 :].mean()))


def text(path: str) -> Corpus:
    """Any text of the user's, in UTF-8, newlines as they stand.

    Raises:
        BadInput: the file is missing, is no UTF-8, is empty, or has too large an alphabet.
    """
    file = Path(path).expanduser()
    try:
        content = file.read_bytes().decode("utf-8")
    except OSError as error:
        raise BadInput(f"data.path = {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInput(
            f"data.path = {path} is not UTF-8: byte {error.start} is "
            f"{error.object[error.start]:#x}"
        ) from error
    if not content:
        raise BadInput(f"data.path = {path} is empty")
    return Corpus(name=file.name, text=content)


def auto(path: str | None = None) -> Corpus:
    """TinyShakespeare, or, where it cannot be had, the embedded plays with a loud warning.

    Args:
        path: of TinyShakespeare's file; a path that leads nowhere is an error, not a warning.
    """
    try:
        return tinyshakespeare(path)
    except NotFound as error:
        warnings.warn(f"TRAINING ON THE EMBEDDED CORPUS 'plays' INSTEAD. {error}", stacklevel=2)
        return plays()
