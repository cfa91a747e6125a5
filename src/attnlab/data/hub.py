"""Text columns of a dataset on the Hugging Face hub, or of files in a local directory."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnlab.data.corpora import Corpus
from attnlab.errors import BadInput, first_line

CHUNK_BYTES = 2**16  # read at a time from text and JSON; the default of `datasets` is 10 MB
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def hub(
    dataset: str,
    column: str | list[str] = "text",
    split: str = "train",
    limit: int = 1_000_000,
    config_name: str | None = None,
    revision: str | None = None,
    tokenizer: str = "characters",
) -> Corpus:
    """Stream text columns of a Hugging Face dataset, or of a local directory, up to a limit.

    It fetches only as much as `limit` characters need: a chunk of a text or JSON file, a row
    group of a Parquet file. Nothing is written to the cache of datasets. Raises BadInput if there
    is no such dataset, configuration, split, or column; if it cannot be read; or if it is empty.

    Args:
        dataset: a name on the hub, or a directory of text, CSV, JSON, or Parquet files.
        column: the column that holds the text, or several; values are joined by newlines.
        split: of the dataset; attnlab divides it into training and validation text.
        limit: characters to take, from the start.
        config_name: the configuration of the dataset, where it has several.
        revision: a branch, tag, or commit on the hub.
        tokenizer: see `attnlab.data.tokenizers.open_tokenizer`.
    """
    import datasets  # takes a second

    if not 1 <= limit < 2**63:
        raise BadInput(f"data.limit = {limit} must be at least 1 and below 2^63")
    if not (columns := [column] if isinstance(column, str) else column):
        raise BadInput("data.column = [] must name at least one column")
    name = "/".join(part for part in (dataset, config_name, split) if part)
    try:
        builder = datasets.load_dataset_builder(_source(dataset), config_name, revision=revision)
        pieces = _first(limit, builder, split, columns, dataset)
        corpus = Corpus.from_pieces(name, pieces, tokenizer)
    except BadInput:
        raise
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = first_line(error)
        if not Path(dataset).expanduser().is_dir():
            reason = f"there is no such directory here, and {reason}"
        raise BadInput(f"data.dataset = {dataset} cannot be loaded: {reason}") from error
    if not corpus.characters:
        raise BadInput(f"data.dataset = {dataset} is empty")
    return corpus


def _source(dataset: str) -> str:
    """The directory or the hub name, as `datasets` takes it; BadInput if it can be neither."""
    folder = Path(dataset).expanduser()
    if folder.is_file():
        raise BadInput(f"data.dataset = {dataset} is a file; give its directory, or use data=text")
    if folder.is_dir():
        return str(folder)
    if not HUB_NAME.fullmatch(dataset) or dataset.startswith("."):
        raise BadInput(f"data.dataset = {dataset} does not exist; give a directory or hub name")
    return dataset


def _first(limit: int, builder: Any, split: str, columns: list[str], name: str) -> Iterator[str]:
    """The first `limit` characters of the columns, a newline after each value."""
    kind = type(builder.config).__name__
    if kind in ("TextConfig", "JsonConfig"):
        builder.config.chunksize = CHUNK_BYTES
    elif kind == "ParquetConfig" and set(columns) <= set(builder.info.features or ()):
        builder.config.columns = columns
    for row in builder.as_streaming_dataset(split=split):
        for column in columns:
            if column not in row:
                known = ", ".join(row)
                raise BadInput(f"data.column = {column} is not in {name}, which has {known}")
            if not isinstance(row[column], str):
                raise BadInput(f"data.column = {column} of {name} holds values that are not text")
            piece = (row[column] + "\n")[:limit]
            yield piece
            limit -= len(piece)
            if not limit:
                return
