"""A text column of a Hugging Face dataset, or of a local folder of files."""

from attnlab.data.corpora import Corpus
from attnlab.errors import BadInput, first_line


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
    return Corpus.from_pieces(f"{dataset}/{split}", [text[:limit]])
