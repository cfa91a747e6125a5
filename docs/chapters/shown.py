"""What the chapters share: tables, figures, and training runs."""

import io
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib
import pandas as pd
from IPython.display import HTML, Markdown
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnlab import read_runs
from attnlab.installation import lab_path


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> Markdown:
    """A table whose cells may contain Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return Markdown(
        "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
    )


def panels(
    count: int, *, width: float = 6, height: float = 4, columns: int = 9, share=False
) -> tuple[Figure, list[Axes]]:
    """A figure with `count` plots, each so many inches wide and high."""
    columns = min(count, columns)
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows))
    grid = figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share)
    for unused in grid.flat[count:]:
        unused.remove()
    return figure, list(grid.flat[:count])


def picture(figure: Figure, name: str, alt: str) -> HTML:
    """A figure as SVG; the name makes its ids unique on the page."""
    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    svg = drawn.getvalue()
    svg = svg[svg.index("<svg") :]
    return HTML(f'<div class="figure" role="img" aria-label="{alt}">{svg}</div>')


def train(name: str, overrides: str) -> pd.DataFrame:
    """Train models as `python train.py -m name=NAME ...` does; a row for each run.

    Raises RuntimeError with the output of train.py if it fails.
    """
    command = [sys.executable, str(lab_path("train.py")), "-m", f"name={name}"]
    ended = subprocess.run(
        [*command, *overrides.split()], capture_output=True, text=True
    )
    if ended.returncode:
        raise RuntimeError(ended.stdout + ended.stderr)
    return read_runs(Path("outputs") / name)
