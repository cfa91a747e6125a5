"""Figures as SVG: large type, colors for the color-blind, the same bytes each time."""

import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito (2008), "Color universal design", without yellow, which a projector loses.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

STYLE: Any = {
    "axes.grid": True,
    "axes.prop_cycle": cycler(color=COLORS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "font.size": 14,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "lines.linewidth": 2.2,
    "lines.markersize": 7,
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the style of the lab, whatever the caller's is."""
    with matplotlib.rc_context(STYLE):
        yield


def panels(
    count: int, *, width: float = 5.2, height: float = 4.4, columns: int | None = None
) -> tuple[Figure, list[Axes]]:
    """A figure of panels without a window, side by side, or in rows of so many columns."""
    across = min(count, columns or count)
    rows = math.ceil(count / across)
    figure = Figure(figsize=(width * across, height * rows))
    axes = list(figure.subplots(rows, across, squeeze=False).flat)
    for spare in axes[count:]:
        spare.set_axis_off()
    return figure, axes[:count]


def legend_below(figure: Figure, axes: Axes) -> None:
    """The lines of one panel by their names, below the figure, which grows by what they take."""
    handles, names = axes.get_legend_handles_labels()
    across = max(1, int(figure.get_figwidth() // 6))  # columns
    names = [textwrap.fill(name, 60) for name in names]
    rows = math.ceil(sum(name.count("\n") + 1 for name in names) / across) + 1
    figure.set_figheight(figure.get_figheight() + 0.23 * rows)
    figure.legend(handles, names, loc="outside lower center", ncols=across, fontsize=11)


def svg(figure: Figure, name: str) -> str:
    """A figure as SVG text; the name keeps the ids of several figures on one page apart."""
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "path"}):
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]  # no XML prologue: it goes into a page


def dots(axes: Axes, groups: Sequence[tuple[str, Sequence[float]]]) -> None:
    """Every value of every group, and each group's mean as a bar across."""
    for x, (_, values) in enumerate(groups):
        spread = np.linspace(-0.12, 0.12, len(values)) if len(values) > 1 else [0.0]
        color, marker = COLORS[x % len(COLORS)], MARKERS[x % len(MARKERS)]
        axes.plot(x + np.asarray(spread), values, marker, color=color, alpha=0.75)
        axes.hlines(float(np.mean(values)), x - 0.28, x + 0.28, color=color)
    axes.set_xticks(range(len(groups)), [name.replace(" ", "\n") for name, _ in groups])
    axes.set_xlim(-0.6, len(groups) - 0.4)
