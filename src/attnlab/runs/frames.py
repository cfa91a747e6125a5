"""Runs as data frames and Parquet files."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attnlab.files import write_atomically
from attnlab.runs.pairing import labels
from attnlab.runs.reading import Run, read_curves, read_runs

if TYPE_CHECKING:
    import pandas


def load(root: str | Path | Sequence[Run], *, curves: bool = False) -> "pandas.DataFrame":
    """Read all runs below a directory into a data frame; BadInput if there are none.

    `root` is `outputs`, a sweep in it, a run directory, or the result of `read_runs`. A row is a
    run with its settings and metrics or, with `curves`, a logged value with its tag and step.
    """
    import pandas  # takes half a second

    runs = read_runs(Path(root)) if isinstance(root, str | Path) else root
    names = labels(runs)
    named = [({"run": names[run.folder], "folder": str(run.folder)}, run) for run in runs]
    if not curves:
        return pandas.DataFrame([name | run.values for name, run in named])
    rows = [
        [*name.values(), run.variant, run.values.get("seed"), tag, step, value]
        for name, run in named
        for tag, curve in read_curves(run.folder, ".*").items()
        for step, value in curve
    ]
    columns = ["run", "folder", "attn", "seed", "tag", "step", "value"]
    return pandas.DataFrame(rows, columns=columns)


def write_parquet(runs: Sequence[Run], file: Path) -> None:
    """Write `load(runs)` as a Parquet file; columns of mixed types, and of mappings, as text."""
    table = load(runs)
    for key in table.columns:
        kinds = {type(value) for value in table[key] if value is not None and value == value}
        if dict in kinds or (len(kinds) > 1 and kinds != {int, float}):
            table[key] = [None if value is None else str(value) for value in table[key]]
    content = io.BytesIO()
    table.to_parquet(content)
    write_atomically(file, content.getvalue())
