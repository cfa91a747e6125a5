"""The data of figures of runs, and how a curve over seeds is drawn."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnlab.plotting import drawing

Curve = list[tuple[int, float]]  # (step, value)
Styles = Mapping[str, drawing.LineStyle]  # by the names of settings

DONE = {"finished", "stopped", "running", "interrupted"}


@dataclass(frozen=True)
class ByLength:
    """A result of a run at each position of texts that are longer than in its training."""

    trained: int  # the length in the training
    measure: str  # the label of the axis
    values: Sequence[float]  # NaN where nothing is predicted


@dataclass(frozen=True)
class RunCurves:
    """The data of one run that the figures show."""

    name: str  # of its setting, shared by runs that differ only in their seed
    status: str  # finished, diverged, ...
    step: int  # the last one
    unit: str  # what is predicted, such as "character"
    scalars: Mapping[str, Curve]  # by tag
    by_position: Sequence[float] = ()  # validation loss, nats
    longer: ByLength | None = None


@dataclass(frozen=True)
class FigureData:
    """What the figures of several runs show."""

    runs: Sequence[RunCurves]
    title: str = ""  # the finding
    # Setting -> its final validation losses minus those of its baseline, by seed, in nats.
    differences: Mapping[str, Sequence[float]] = field(default_factory=dict)
    # Setting -> head, such as "L0H1" -> its pattern at the end, one pixel for each weight.
    maps: Mapping[str, Mapping[str, drawing.Pixels]] = field(default_factory=dict)


def by_name(runs: Sequence[RunCurves]) -> dict[str, list[RunCurves]]:
    names = dict.fromkeys(run.name for run in runs)
    return {name: [run for run in runs if run.name == name] for name in names}


def compared_tag(runs: Sequence[RunCurves]) -> str:
    """The tag to compare: of the training if a run has few validations. It has more points, and
    runs of one seed are trained on the same batches."""
    points = [len(run.scalars.get("val/loss", ())) for run in runs if run.status in DONE]
    return "val/loss" if min(points, default=0) > 2 else "train/loss"


def panels_for(
    count: int,
    width: float | None,
    *,
    wide: float = 5.6,
    columns: int | None = None,
    share: bool = False,
) -> tuple[Figure, list[Axes]]:
    """Panels in rows or, in a printed column of this width, one below the other."""
    if width is None:
        return drawing.panels(count, width=wide, height=4.6, columns=columns, share=share)
    return drawing.panels(count, width=width, height=0.7 * width, columns=1, share=share)


def band(place: Axes, curves: Sequence[Curve], label: str, look: drawing.LineStyle) -> None:
    """Draw the mean of the curves with a band of one standard deviation."""
    if not curves:
        return
    by_step = [dict(curve) for curve in curves]
    steps = sorted(set.intersection(*map(set, by_step)))
    values = np.array([[curve[step] for step in steps] for curve in by_step])
    mean, (color, dash) = values.mean(0), look
    point = "o" if len(steps) == 1 else ""  # a line of one point is invisible
    place.plot(steps, mean, marker=point, label=label, color=color, linestyle=drawing.DASHES[dash])
    if len(curves) > 1:
        sd = values.std(0, ddof=1)
        place.fill_between(steps, mean - sd, mean + sd, alpha=0.2, lw=0, color=color)


def diverged_or_failed(place: Axes, runs: Sequence[RunCurves], tag: str, style: Styles) -> None:
    """Draw each run that diverged or failed as a thin line that ends in a cross."""
    for number, run in enumerate(runs):
        finite = [(step, x) for step, x in run.scalars.get(tag, []) if math.isfinite(x)]
        curve = finite or [(run.step, math.nan)]
        label = "_" if number else f"{run.name}: {run.status}"  # one name for all its seeds
        color, dash = style[run.name]
        steps, values = zip(*curve, strict=True)
        place.plot(steps, values, label=label, color=color, linestyle=drawing.DASHES[dash], lw=1)
        place.plot(*curve[-1], "x", color=color, markersize=11)
        if not number and math.isfinite(curve[-1][1]):
            place.annotate(
                label, curve[-1], (9, -4), textcoords="offset points", size="small", color=color
            )
