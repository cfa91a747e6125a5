"""What the chapters share: tables, figures, and training runs.

A notebook shows what these functions return; as a script, a chapter prints it.
"""

import contextlib
import inspect
import io
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib
import pandas as pd
import torch
from IPython import get_ipython
from IPython.display import HTML, Markdown
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import attnlab

# What a chapter does not show is not measured.
SHORT = "probes=none logger=none train_loss=false"

# Runs and figures of chapters: outputs/ has those of the user alone.
FOLDER = Path("outputs-of-chapters")

# A question, or an answer without numbers: a paragraph of a text cell.
ASKED = re.compile(r"^# \*\*(?:Predict|Explain)\.\*\*.*\n(?:# .+\n)*", re.MULTILINE)
printed: dict[Path, int] = {}  # up to which line of a chapter its questions were

# The tensors of a chapter are small: on a busy machine, several threads would wait
# for each other longer than they compute.
torch.set_num_threads(1)


def in_notebook() -> bool:
    """Whether this is a notebook, which shows the last value of a cell."""
    return get_ipython() is not None


def print_questions() -> None:
    """Print the questions above the line of a script that runs.

    A reader who has no cells meets them before the answer."""
    frames = [frame for frame in inspect.stack(0) if frame.filename != __file__]
    for frame in frames:
        file = Path(frame.filename)
        if file.resolve().parent == Path(__file__).resolve().parent:
            lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
            above = "".join(lines[printed.get(file, 0) : frame.lineno])
            printed[file] = frame.lineno
            for asked in ASKED.findall(above):
                text = re.sub(r"^# ?", "", asked, flags=re.MULTILINE)
                print(textwrap.fill(without_marks(text), 99), end="\n\n", flush=True)


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> Markdown:
    """A table whose cells may contain Markdown."""
    lines = [[str(cell) for cell in line] for line in (head, *rows)]
    if not in_notebook():
        print_questions()
        plain_lines = [[without_marks(cell) for cell in line] for line in lines]
        widths = [max(map(len, column)) for column in zip(*plain_lines, strict=True)]
        for line in plain_lines:
            cells = [
                cell.ljust(width) for cell, width in zip(line, widths, strict=True)
            ]
            print("  ".join(cells).rstrip())
        print()
    lines.insert(1, ["---"] * len(lines[0]))
    return Markdown("\n".join(f"| {' | '.join(line)} |" for line in lines))


def paragraph(content: str) -> Markdown:
    """A paragraph with numbers that the chapter has computed."""
    if not in_notebook():
        print_questions()
        print(textwrap.fill(without_marks(content), 99), end="\n\n")
    return Markdown(content)


def without_marks(content: str) -> str:
    """Markdown as plain text: without ** and `, and without addresses of links."""
    return re.sub(r"\*\*|`", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", content))


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
    """A figure as SVG; the name makes its ids unique on the page.

    A script writes it to FOLDER.
    """
    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        # Tight: the layout of a figure does not know the labels beside a heatmap.
        figure.savefig(
            drawn, format="svg", metadata={"Date": None}, bbox_inches="tight"
        )
    if not in_notebook():
        print_questions()
        file = FOLDER / f"{name}.svg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(drawn.getvalue(), encoding="utf-8")
        print(f"[{file}] {alt}\n")
    svg = drawn.getvalue()
    svg = svg[svg.index("<svg") :]
    return HTML(f'<div class="figure" role="img" aria-label="{alt}">{svg}</div>')


def train(name: str, overrides: str) -> pd.DataFrame:
    """Train models as `python train.py -m name=NAME ...` does, with `SHORT`.

    The runs follow each other in this process: to start others takes longer than it
    saves. Returns a row for each run.
    """
    words = [f"name={name}", f"outputs={FOLDER}", *overrides.split(), *SHORT.split()]
    if not in_notebook():
        print_questions()
        print("training, a minute or less:")
        print(f"python train.py -m {' '.join(words)}\n", flush=True)
    with contextlib.redirect_stdout(io.StringIO()):  # a line for each run
        return attnlab.sweep(*words, jobs=1)
