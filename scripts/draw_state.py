"""Draw docs/img/recall_state.svg: what a layer recalls, over the numbers that generation keeps.

    python -m scripts.draw_state

The points are the rows of the ranking: every variant with a known state, after n steps at its best
rate, the median of ten seeds and their range.
"""

import math
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnlab.claims.ranking import Protocol, rows_at_n_and_4n, trial_of
from attnlab.claims.rows import COMMITTED, Rows
from attnlab.claims.trials import read_test
from attnlab.plotting.drawing import as_svg, color_of_label, styled
from scripts.fill_pages import ROOT

FILE = ROOT / "docs/img/recall_state.svg"
RANKING = ROOT / "experiments/ranking/ranking.yaml"
TASKS = ("mqar", "noisy recall")
TICKS = (1024, 2048, 4096, 8192, 16384)


class Point(NamedTuple):
    """A variant on a task."""

    variant: str
    state: int  # numbers that generation keeps of T positions, in all layers
    percent: list[float]  # of right answers, by seed


def points(task_name: str) -> Iterator[Point]:
    """The variants of the ranking whose test on a task is complete, and that have a state."""
    protocol = Protocol.read(RANKING)
    rows = rows_at_n_and_4n(Rows(protocol.folder / COMMITTED))
    task = protocol.tasks[task_name]
    for name, arm in protocol.arms.items():
        mine = trial_of(protocol, name, task, times=1)
        found = read_test(mine, rows, mine.seeds)
        if arm.control or found.missing or "cached" not in found.rows[0]["values"]["costs"]:
            continue
        percent = [mine.read(row).points + 100 * (task.floor or 0) for row in found.rows]
        yield Point(name, found.rows[0]["values"]["costs"]["cached"], percent)


def panel(axes: Axes, task: str) -> None:
    """One task: a line from the worst to the best seed of each variant, and its median."""
    by_place: dict[tuple[int, int], list[Point]] = {}
    for point in points(task):
        color = color_of_label(point.variant)
        axes.plot([point.state] * 2, [min(point.percent), max(point.percent)], color=color, lw=1)
        axes.plot(point.state, median(point.percent), "o", color=color, ms=4)
        place = (round(5 * math.log2(point.state)), round(median(point.percent) / 8))
        by_place.setdefault(place, []).append(point)
    for first, *others in by_place.values():  # points that nearly lie on one another
        label = f"{first.variant} and {len(others)} more" if others else first.variant
        place = (first.state, median(first.percent))
        axes.annotate(label, place, (4, 3), textcoords="offset points", rotation=20, fontsize=6.5)
    axes.set_xscale("log", base=2)
    axes.set_xticks(TICKS, [f"{tick:,}" for tick in TICKS], fontsize=8)
    axes.set_xlim(TICKS[0], 2 * TICKS[-1])
    axes.set(xlabel="numbers that generation keeps", ylim=(0, 112), yticks=range(0, 101, 20))
    axes.set_title(task, fontsize=9)


def draw() -> Figure:
    """Both tasks side by side."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    panel(left, TASKS[0])
    panel(right, TASKS[1])
    left.set_ylabel("% of right answers after n steps", fontsize=8)
    return figure


if __name__ == "__main__":
    with styled():
        FILE.write_text(as_svg(draw()), encoding="utf-8")
