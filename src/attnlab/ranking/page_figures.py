"""The figures of the ranking: recall against the state, text against time and learning rate."""

import math
from collections.abc import Iterator, Mapping
from statistics import median
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from attnlab.plotting.drawing import MARKERS, color_of, label_lines, looks, panels
from attnlab.ranking.contestant_costs import costs, reference_processor
from attnlab.ranking.protocol import LONG
from attnlab.ranking.trials import Course
from attnlab.ranking.verdicts import Table

if TYPE_CHECKING:
    from attnlab.ranking.rank import Ranking

RECALL = ("capacity", "mqar")  # tasks, drawn against the size of the state
STATE = (
    "accuracy against the size of the state at T. The gray line joins the variants that are more "
    "accurate than all others with a state of this size or smaller."
)
CAPTIONS = {
    "speed": "Loss on the text against CPU time per step. The gray line joins the variants that "
    "no faster one surpasses. Variants that were timed on another processor are left out.",
    "rates": "Mean loss on the text over the selection seeds, at each learning rate that was "
    "tried, after n steps. The flatter a line, the less the variant depends on the rate.",
} | {task: f"{task}: {STATE}" for task in RECALL}


def figures(table: Table, ranking: "Ranking") -> Iterator[tuple[str, Figure]]:
    """Recall against the state, text against time, text against the learning rate, by their
    titles; those for which there are rows."""
    protocol, rows = ranking.protocol, ranking.rows
    text, arms = protocol.tasks[0], [arm for arm in protocol.arms.values() if not arm.control]
    processor = reference_processor(protocol, ranking.rows)
    for task in [each for each in protocol.tasks if each is text or each.name in RECALL]:
        key, steps = (
            "ms" if task is text else "cached",
            task.steps * (1 if ranking.quick else LONG),
        )
        points = dict[str, tuple[float, float]]()
        for arm in arms:
            course = Course(protocol, arm, task, rows)
            spent = costs(course, processor)  # of the model of this task
            cell = table.cells.get((arm.name, task.name, steps))
            other = key == "ms" and processor and spent.get("processor") != processor
            if other or key not in spent:
                continue
            if cell is not None and cell.seeds and math.isfinite(cell.value):
                results = [0.0 if math.isnan(x) else x for x in cell.accuracies]
                result = cell.value if task is text else median(results)
                points[arm.name] = spent[key], result
        what = f"{'loss' if task is text else 'accuracy'}: {task.name}, {steps:,} steps"
        if len(points) > 1:
            x = "CPU ms per step" if task is text else "state at T, in numbers"
            yield "speed" if task is text else task.name, _scatter(points, x, what, task is text)
    figure, (axes,) = panels(1, width=7.0)
    rates = set[float]()
    for arm in arms:
        choice, _ = Course(protocol, arm, text, rows).choose(text.steps)
        if choice is not None:
            rates |= choice.losses.keys()
            color, kind = looks([arm.name.split(",")[0]])[arm.name.split(",")[0]]
            axes.plot(*zip(*choice.losses.items(), strict=True), MARKERS[kind] + "-", color=color,
                      label=arm.name)  # fmt: skip
    axes.set(
        xscale="log", xlabel="learning rate", ylabel=f"loss: {text.name}, {text.steps:,} steps"
    )
    if axes.get_lines():
        axes.set_xticks(sorted(rates), [f"{rate:g}" for rate in sorted(rates)])
        axes.minorticks_off()
        label_lines(axes)
        yield "rates", figure


def _scatter(points: Mapping[str, tuple[float, float]], x: str, y: str, falls: bool) -> Figure:
    """Named points, and the line of those that are better than all points with a smaller x."""
    figure, (axes,) = panels(1, width=7.0)
    front, sign = list[tuple[float, float]](), 1 if falls else -1
    for label, (cost, value) in sorted(points.items(), key=lambda p: (p[1][0], sign * p[1][1])):
        axes.plot([cost], [value], "o:", color=color_of(label.split(",")[0]), label=label)
        if not front or sign * value < sign * front[-1][1]:
            front.append((cost, value))
    axes.plot(*zip(*front, strict=True), drawstyle="steps-post", color="gray", label="_front")
    wide = max(cost for cost, _ in points.values()) > 10 * min(cost for cost, _ in points.values())
    axes.set(xscale="log" if wide else "linear", xlabel=x, ylabel=y)
    label_lines(axes)
    return figure
