"""What the chapters share: tables, pictures, and training runs."""

import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from IPython.display import HTML, Markdown
from matplotlib.figure import Figure

from attnlab import read_runs
from attnlab.installation import lab_path
from attnlab.plotting.drawing import styled, svg
from attnlab.runs.reading import Run


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> Markdown:
    """A table whose cells may contain Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return Markdown(
        "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
    )


def picture(figure: Figure, name: str, alt: str) -> HTML:
    """A figure as SVG; the name makes its ids unique on the page."""
    with styled():
        drawn = svg(figure, name)
    return HTML(f'<div class="figure" role="img" aria-label="{alt}">{drawn}</div>')


def train(name: str, overrides: str) -> list[Run]:
    """Train models as `python train.py -m name=NAME ...` does, and read the runs.

    Raises RuntimeError with the output of train.py if it fails.
    """
    command = [sys.executable, str(lab_path("train.py")), "-m", f"name={name}"]
    ended = subprocess.run(
        [*command, *overrides.split()], capture_output=True, text=True
    )
    if ended.returncode:
        raise RuntimeError(ended.stdout + ended.stderr)
    return read_runs(Path("outputs") / name)
