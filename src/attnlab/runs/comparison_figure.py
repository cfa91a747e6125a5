"""The figure that compares settings: losses, paired differences, and the pattern of each head."""

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnlab.plotting import drawing
from attnlab.plotting.drawing import LineStyle, Pixels
from attnlab.runs.history import maps, read_history
from attnlab.runs.pairing import Comparison
from attnlab.runs.reading import Run, read_curves
from attnlab.runs.sentences import claim

Curve = list[tuple[int, float]]  # (step, value)

MOST_POINTS = 60  # of a curve of training losses, which are noisy
MOST_HEADS = 16  # side by side
MOST_FINDINGS = 3  # in a title
DONE = {"finished", "stopped", "running", "interrupted"}


@dataclass(frozen=True)
class FigureData:
    """What figures show of comparisons."""

    comparisons: Sequence[Comparison]
    curves: Mapping[Path, Mapping[str, Curve]]  # run directory -> tag -> its curve
    # Setting -> head, such as "L0H1" -> its pattern at the end, one pixel for each weight.
    maps: Mapping[str, Mapping[str, Pixels]] = field(default_factory=dict)

    @cached_property
    def runs(self) -> list[Run]:
        return [run for c in self.comparisons for run in c.setting.runs]

    @cached_property
    def unit(self) -> str:
        """What is predicted, such as "character"; unfinished runs do not say it."""
        return next((str(r.values["unit"]) for r in self.runs if "unit" in r.values), "character")

    @cached_property
    def style(self) -> dict[str, LineStyle]:
        """Color and dash of each setting."""
        return drawing.looks(c.setting.label for c in self.comparisons)

    def of(self, c: Comparison, tag: str) -> list[Curve]:
        """The curves of the runs of a setting that did not diverge or fail."""
        done = [self.curves[run.folder] for run in c.setting.runs if run.status in DONE]
        return [curve for curves in done if (curve := curves.get(tag))]


def figure_data(comparisons: Sequence[Comparison], *, with_maps: bool = True) -> FigureData:
    """Read what figures show; the maps are of the first run of each setting. BadInput if a file of
    a run is damaged."""
    tags = r"(train|val)/loss|(attn|layers)/entropy/L.*"
    folders = [run.folder for c in comparisons for run in c.setting.runs]
    patterns = {}
    for c in comparisons if with_maps else ():
        if history := read_history(c.setting.first.folder):
            patterns[c.setting.label] = maps(history)
    return FigureData(comparisons, {x: read_curves(x, tags) for x in folders}, patterns)


def findings(comparisons: Sequence[Comparison]) -> list[str]:
    """What the comparisons say, at most three of them, the largest differences."""
    paired = [c for c in comparisons if c.pairs and not c.is_baseline]

    def size(c: Comparison) -> float:
        return abs(c.interval[0]) if math.isfinite(c.interval[0]) else math.inf

    return [claim(c) for c in sorted(paired, key=size, reverse=True)[:MOST_FINDINGS]]


def comparison(data: FigureData, width: float | None = None) -> Figure | None:
    """Draw the panels of `parts` side by side, each head's pattern below, and the finding above.

    With a width in inches, for a printed column. None if there is no panel to draw.
    """
    drawers = parts(data)
    if not drawers:
        return None
    across = len(drawers) if width is None else 1
    wide, panel = (6.2 * across, 4.6) if width is None else (width, 0.7 * width)
    heights, size = [panel * len(drawers) / across], matplotlib.rcParams["font.size"]
    if any(data.maps.values()):
        heads = min(MOST_HEADS, len(head_names(data.maps)))
        heights.append(min(1.2, 0.8 * wide / heads) * len(data.maps) + 6 * size / 72)
    title = textwrap.wrap("; ".join(findings(data.comparisons)), int(72 * wide / (0.6 * size)))
    figure = Figure(figsize=(wide, sum(heights) + 1.5 * size * len(title) / 72))
    figure.suptitle("\n".join(title), fontsize=size)
    rows = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    places = rows[0].subplots(-(-len(drawers) // across), across, squeeze=False).flat
    for drawer, place in zip(drawers.values(), places, strict=True):
        drawer(place)
    if len(heights) > 1:
        _maps(rows[1].subplots(), data, int(48 * wide / (0.6 * size)))
    return figure


def parts(data: FigureData) -> dict[str, Callable[[Axes], None]]:
    """The panels of a comparison for which there are data: title -> a function that draws it."""
    drawers: dict[str, Callable[..., None]] = {}
    if any(data.curves[run.folder].get(compared_tag(data)) for run in data.runs):
        drawers["loss by step"] = _by_step
    if any(c.finite for c in data.comparisons if not c.is_baseline):
        drawers["each seed minus the baseline"] = _differences
    if has_positions(data):
        drawers["loss by position"] = by_position
    return {title: partial(drawer, data=data) for title, drawer in drawers.items()}


def compared_tag(data: FigureData) -> str:
    """The tag to compare: of the training if a run has few validations. It has more points, and
    runs of one seed are trained on the same batches."""
    done = [data.curves[run.folder] for run in data.runs if run.status in DONE]
    few = min((len(curves.get("val/loss", ())) for curves in done), default=0) < 3
    return "train/loss" if few else "val/loss"


def _by_step(place: Axes, data: FigureData) -> None:
    """Draw the validation losses or, if there are few, the training losses, without the start."""
    tag, late = compared_tag(data), list[float]()
    for c in data.comparisons:
        thinned = _thinned(data.of(c, tag))
        band(place, thinned, c.setting.label, data.style[c.setting.label])
        diverged_or_failed(place, data, c, tag)
        late += [x for z in thinned for step, x in z if 10 * step >= z[-1][0] and math.isfinite(x)]
    kind = "validation" if tag == "val/loss" else "training"
    place.set(title="loss by step", xlabel="step")
    place.set_ylabel(f"{kind} loss (nats per {data.unit})")
    if late:
        margin = 0.05 * (max(late) - min(late)) or 0.1
        place.set_ylim(min(late) - margin, max(late) + margin)
    drawing.label_lines(place)


def _thinned(curves: Sequence[Curve]) -> list[Curve]:
    """The curves at the steps that all of them have, as means of neighboring points."""
    if not curves:
        return []
    steps, values = common(curves)
    pieces = np.array_split(np.arange(len(steps)), min(MOST_POINTS, max(1, len(steps))))
    return [[(steps[x[-1]], float(of[x].mean())) for x in pieces if len(x)] for of in values]


def _differences(place: Axes, data: FigureData) -> None:
    """Draw the difference of every seed, and the median as a bar, as in the table."""
    shown = [c for c in data.comparisons if c.pairs and not c.is_baseline][::-1]
    labels = []
    for y, c in enumerate(shown):
        (color, kind), lost = data.style[c.setting.label], len(c.pairs) - len(c.finite)
        label = c.setting.label + (f" ({lost} diverged)" if lost else "")
        labels.append(textwrap.fill(label, 20, break_long_words=False))
        if c.finite:
            spread = np.linspace(-0.15, 0.15, len(c.finite)) if len(c.finite) > 1 else np.zeros(1)
            place.plot(c.finite, y + spread, drawing.MARKERS[kind], color=color, alpha=0.75)
        if math.isfinite(c.interval[0]):
            place.vlines(c.interval[0], y - 0.3, y + 0.3, color=color, lw=3)
    place.axvline(0, color="black", lw=1)
    place.locator_params(axis="x", nbins=3)
    place.set_yticks(range(len(shown)), labels)
    place.set_ylim(-0.6, len(shown) - 0.4)
    place.set_title("each seed minus the baseline")
    place.set_xlabel(f"validation loss (nats per {data.unit})")


def has_positions(data: FigureData) -> bool:
    """Whether a run has its loss at each position."""
    return any(run.metrics.get("loss_by_position") for run in data.runs if run.status in DONE)


def by_position(place: Axes, data: FigureData) -> None:
    """Draw the mean over runs of the loss at each position."""
    for c in data.comparisons:
        done = [
            run.metrics.get("loss_by_position") for run in c.setting.runs if run.status in DONE
        ]
        curves = [list(enumerate(losses)) for losses in done if losses]
        band(place, curves, f"{c.setting.label} (n={len(curves)})", data.style[c.setting.label])
    place.set(title="loss by position", xlabel="position")
    place.set_ylabel(f"validation loss (nats per {data.unit})")
    drawing.label_lines(place)


def band(place: Axes, curves: Sequence[Curve], label: str, look: LineStyle) -> None:
    """Draw the mean of the curves with a band of one standard deviation."""
    if not curves:
        return
    steps, values = common(curves)
    mean, (color, dash) = values.mean(0), look
    point = "o" if len(steps) == 1 else ""  # a line of one point is invisible
    place.plot(steps, mean, marker=point, label=label, color=color, linestyle=drawing.DASHES[dash])
    if len(curves) > 1:
        sd = values.std(0, ddof=1)
        place.fill_between(steps, mean - sd, mean + sd, alpha=0.2, lw=0, color=color)


def common(curves: Sequence[Curve]) -> tuple[list[int], np.ndarray]:
    """The steps that all curves have, and the values there, (curves, steps)."""
    by_step = [dict(curve) for curve in curves]
    steps = sorted(set.intersection(*map(set, by_step)))
    return steps, np.array([[curve[step] for step in steps] for curve in by_step])


def diverged_or_failed(place: Axes, data: FigureData, c: Comparison, tag: str) -> None:
    """Draw each run that diverged or failed as a thin line that ends in a cross."""
    color, dash = data.style[c.setting.label]
    for number, run in enumerate(run for run in c.setting.runs if run.status not in DONE):
        curve = [(step, x) for step, x in data.curves[run.folder].get(tag, []) if math.isfinite(x)]
        curve = curve or [(run.step, math.nan)]
        label = "_" if number else f"{c.setting.label}: {run.status}"  # one name for all its seeds
        steps, values = zip(*curve, strict=True)
        place.plot(steps, values, label=label, color=color, linestyle=drawing.DASHES[dash], lw=1)
        place.plot(*curve[-1], "x", color=color, markersize=11)
        if not number and math.isfinite(curve[-1][1]):
            place.annotate(
                label, curve[-1], (9, -4), textcoords="offset points", size="small", color=color
            )


def head_names(maps: Mapping[str, Iterable[str]]) -> list[str]:
    """The names of all heads ("L0H1") of all settings, in order."""
    names = {head for heads in maps.values() for head in heads}
    return sorted(names, key=lambda name: [int(x) for x in re.findall(r"\d+", name)])


def _maps(place: Axes, data: FigureData, room: int) -> None:
    """Draw the pattern of each head at the end, with a row for each setting; lines have at most
    `room` characters."""
    heads, named = head_names(data.maps), [name for name in data.maps if data.maps[name]]
    shown = heads[:MOST_HEADS]
    side = max(len(map_) for maps in data.maps.values() for map_ in maps.values())
    cell = side + max(2, side // 12)
    sheet = np.full((len(named) * cell, len(shown) * cell, 3), 255, np.uint8)
    for row, name in enumerate(named):
        for column, head in enumerate(shown):
            if head in data.maps[name]:
                map_ = data.maps[name][head]
                places = np.arange(side) * len(map_) // side  # texts may differ in their lengths
                corner = sheet[row * cell :, column * cell :]
                corner[:side, :side] = map_[places][:, places]
    place.imshow(sheet)
    place.set_xticks([column * cell + side / 2 for column in range(len(shown))], shown)
    if 7 * len(shown) > room:
        place.tick_params(axis="x", rotation=90)
    place.set_yticks([row * cell + side / 2 for row in range(len(named))], named)
    for label, name in zip(place.get_yticklabels(), named, strict=True):
        label.set_color(data.style[name][0])
    place.tick_params(length=0, labeltop=True, labelbottom=False)
    place.grid(visible=False)
    place.spines[:].set_visible(False)
    some = "" if shown == heads else f", {len(shown)} of {len(heads)} heads"
    title = f"patterns at the end, first seed{some} (queries down, keys to the right)"
    place.set_title(textwrap.fill(title, room))
    colors = "weight on earlier keys: blue, on later keys: orange, negative: green"
    place.set_xlabel(textwrap.fill(colors, room))
