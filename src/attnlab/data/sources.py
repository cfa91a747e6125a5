"""The corpora that `conf/data` names."""

import warnings
from pathlib import Path

from attnlab.data.corpus import VALIDATION_SHARE, Corpus
from attnlab.data.plays import Plays
from attnlab.data.tinyshakespeare import NotFound, tinyshakespeare
from attnlab.errors import BadInput, first_line

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


def hub(
    dataset: str, column: str = "text", split: str = "train", limit: int = 1_000_000
) -> Corpus:
    """A column of text of a Hugging Face dataset: by its name on the hub, or a local folder.

    Args:
        dataset: "roneneldan/TinyStories", say, or a folder of text, CSV, JSON or Parquet files.
        column: which holds the text; its rows are put together with a newline between them.
        split: of the dataset, cut by attnlab into training and validation text.
        limit: characters that are taken, from the start.

    Raises:
        BadInput: there is no such dataset, split or column, it cannot be fetched or is empty.
    """
    import datasets  # takes a second

    if limit < 1:
        raise BadInput(f"data.limit = {limit} must be at least 1")
    try:
        rows = datasets.load_dataset(dataset, split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise BadInput(
            f"data.dataset = {dataset} cannot be loaded: {first_line(error)}"
        ) from error
    if column not in rows.column_names:
        known = ", ".join(rows.column_names)
        raise BadInput(f"data.column = {column} is not in {dataset}, which has {known}")
    text = ""
    for row in rows:
        if not isinstance(row[column], str):
            raise BadInput(f"data.column = {column} of {dataset} holds no text")
        text += row[column] + "\n"
        if len(text) >= limit:
            break
    if not text:
        raise BadInput(f"data.dataset = {dataset} is empty")
    return Corpus(name=f"{dataset}/{split}", text=text[:limit])


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
