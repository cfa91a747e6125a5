"""Figures that compare settings: losses, paired differences, and the pattern of each head."""

import math
import re
import textwrap
from collections.abc import Callable, Mapping
from functools import partial

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnlab.plotting import drawing
from attnlab.plotting.curves import (
    DONE,
    Curve,
    FigureData,
    Styles,
    band,
    by_name,
    compared_tag,
    diverged_or_failed,
    panels_for,
)

MOST_POINTS = 60  # of a curve of training losses, which are noisy
MOST_HEADS = 16  # side by side


def positions(data: FigureData, width: float | None = None) -> Figure | None:
    """Draw the final validation loss at each position, over seeds; the width is as for `draw`."""
    if not any(len(run.by_position) for run in data.runs if run.status in DONE):
        return None
    figure, (place,) = panels_for(1, width, wide=8.0)
    _positions(place, data, drawing.looks(by_name(data.runs)))
    return figure


def comparison(data: FigureData, width: float | None = None) -> Figure | None:
    """Draw the panels of `parts` side by side, each head's pattern below, and the finding above.

    The width is as for `draw`. None if there is no panel to draw.
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
    title = textwrap.wrap(data.title, int(72 * wide / (0.6 * size)))
    figure = Figure(figsize=(wide, sum(heights) + 1.5 * size * len(title) / 72))
    figure.suptitle("\n".join(title), fontsize=size)
    rows = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for drawer, place in zip(
        drawers.values(),
        rows[0].subplots(-(-len(drawers) // across), across, squeeze=False).flat,
        strict=True,
    ):
        drawer(place)
    if len(heights) > 1:
        _maps(rows[1].subplots(), data, int(48 * wide / (0.6 * size)))
    return figure


def parts(data: FigureData) -> dict[str, Callable[[Axes], None]]:
    """The panels of a comparison for which there are data: title -> a function that draws it."""
    style = drawing.looks(by_name(data.runs))
    done = [run for run in data.runs if run.status in DONE]
    drawers = {}
    if any(run.scalars.get(compared_tag(data.runs)) for run in data.runs):
        drawers["loss by step"] = _by_step
    if any(math.isfinite(x) for seeds in data.differences.values() for x in seeds):
        drawers["each seed minus the baseline"] = _differences
    if any(len(run.by_position) for run in done):
        drawers["loss by position"] = _positions
    return {title: partial(drawer, data=data, style=style) for title, drawer in drawers.items()}


def _by_step(place: Axes, data: FigureData, style: Styles) -> None:
    """Draw the validation losses or, if there are few, the training losses, without the start."""
    tag, late = compared_tag(data.runs), []
    for name, runs in by_name(data.runs).items():
        done = [run for run in runs if run.status in DONE]
        curves = [_thinned(c) for run in done if (c := run.scalars.get(tag))]
        band(place, curves, name, style[name])
        diverged_or_failed(place, [run for run in runs if run.status not in DONE], tag, style)
        late += [x for c in curves for step, x in c if 10 * step >= c[-1][0] and math.isfinite(x)]
    kind = "validation" if tag == "val/loss" else "training"
    place.set(title="loss by step", xlabel="step")
    place.set_ylabel(f"{kind} loss (nats per {data.runs[0].unit})")
    if late:
        margin = 0.05 * (max(late) - min(late)) or 0.1
        place.set_ylim(min(late) - margin, max(late) + margin)
    drawing.label_lines(place)


def _differences(place: Axes, data: FigureData, style: Styles) -> None:
    """Draw the difference of every seed, and the median as a bar."""
    shown = [(name, seeds) for name, seeds in data.differences.items() if seeds][::-1]
    labels = []
    for y, (name, seeds) in enumerate(shown):
        color, kind = style[name]
        finite = [x for x in seeds if math.isfinite(x)]
        lost = f" ({len(seeds) - len(finite)} diverged)" if len(finite) < len(seeds) else ""
        labels.append(textwrap.fill(name + lost, 20, break_long_words=False))
        if finite:
            spread = np.linspace(-0.15, 0.15, len(finite)) if len(finite) > 1 else np.zeros(1)
            place.plot(finite, y + spread, drawing.MARKERS[kind], color=color, alpha=0.75)
            place.vlines(float(np.median(finite)), y - 0.3, y + 0.3, color=color, lw=3)
    place.axvline(0, color="black", lw=1)
    place.locator_params(axis="x", nbins=3)
    place.set_yticks(range(len(shown)), labels)
    place.set_ylim(-0.6, len(shown) - 0.4)
    place.set_title("each seed minus the baseline")
    place.set_xlabel(f"validation loss (nats per {data.runs[0].unit})")


def _positions(place: Axes, data: FigureData, style: Styles) -> None:
    """Draw the mean over runs of the loss at each position."""
    for name, runs in by_name(data.runs).items():
        done = [run for run in runs if run.status in DONE]
        curves = [list(enumerate(run.by_position)) for run in done if len(run.by_position)]
        band(place, curves, f"{name} (n={len(curves)})", style[name])
    place.set(title="loss by position", xlabel="position")
    place.set_ylabel(f"validation loss (nats per {data.runs[0].unit})")
    drawing.label_lines(place)


def head_names(maps: Mapping[str, Mapping[str, object]]) -> list[str]:
    """The names of all heads ("L0H1") of all settings, in order."""
    names = {head for heads in maps.values() for head in heads}
    return sorted(names, key=lambda name: [int(x) for x in re.findall(r"\d+", name)])


def _maps(place: Axes, data: FigureData, room: int) -> None:
    """Draw the pattern of each head at the end, with a row for each setting; lines have at most
    `room` characters."""
    heads, style = head_names(data.maps), drawing.looks(data.maps)
    shown, named = heads[:MOST_HEADS], [name for name in data.maps if data.maps[name]]
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
        label.set_color(style[name][0])
    place.tick_params(length=0, labeltop=True, labelbottom=False)
    place.grid(visible=False)
    place.spines[:].set_visible(False)
    some = "" if shown == heads else f", {len(shown)} of {len(heads)} heads"
    title = f"patterns at the end, first seed{some} (queries down, keys to the right)"
    place.set_title(textwrap.fill(title, room))
    colors = "weight on earlier keys: blue, on later keys: orange, negative: green"
    place.set_xlabel(textwrap.fill(colors, room))


def _thinned(curve: Curve) -> Curve:
    """A curve of at most `MOST_POINTS` means of neighboring points."""
    pieces = np.array_split(np.array(curve), min(MOST_POINTS, len(curve)))
    return [(int(piece[-1, 0]), float(piece[:, 1].mean())) for piece in pieces]
