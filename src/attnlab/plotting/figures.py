"""Figures of runs as files: losses, entropy by layer, loss by position, and the comparison."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from attnlab.errors import BadInput
from attnlab.files import write_atomically
from attnlab.plotting import drawing
from attnlab.plotting.comparisons import comparison, positions
from attnlab.plotting.curves import (
    DONE,
    Curve,
    FigureData,
    RunCurves,
    band,
    by_name,
    diverged_or_failed,
    panels_for,
)
from attnlab.plotting.extrapolation import lengths

PANELS_A_ROW = 4
FORMATS = ("png", "svg", "pdf")


def draw(
    data: FigureData,
    folder: Path,
    *,
    formats: Sequence[str] = ("png", "svg"),
    width: float | None = None,
) -> list[Path]:
    """Draw every figure for which the runs have data; return the files.

    Formats are `FORMATS`; in SVG and PDF, text is text. With a width in inches, figures are for a
    printed column of this width. Raises BadInput as `check` does, and for another format.
    """
    check(data.runs)
    if wrong := [name for name in formats if name not in FORMATS]:
        raise BadInput(f"format = {wrong[0]} must be one of {', '.join(FORMATS)}")
    if width is not None and not 1 <= width <= 40:
        raise BadInput(f"width = {width:g} must be 1 to 40 inches")
    files, makers = [], (losses, entropies, positions, lengths, comparison)
    names = ("loss", "entropy", "position", "length", "comparison")
    for name, make in zip(names, makers, strict=True):
        with drawing.styled(small=width is not None):
            if (figure := make(data, width)) is None:
                continue
            for suffix in formats:
                files.append(folder / f"{name}.{suffix}")
                write_atomically(files[-1], _encoded(figure, name, suffix))  # not through a link
    return files


def _encoded(figure: Figure, name: str, suffix: str) -> bytes:
    if suffix == "svg":
        return drawing.svg(figure, name, text_as="none").encode()
    return drawing.pdf(figure) if suffix == "pdf" else drawing.png(drawing.pixels(figure))


def check(runs: Sequence[RunCurves]) -> None:
    """Refuse, by BadInput, more settings than lines can show and losses in different units."""
    units, count = sorted({run.unit for run in runs}), len(by_name(runs))
    if len(units) > 1:
        raise BadInput(
            f"losses per {' and per '.join(units)} cannot share an axis; "
            f"choose runs with one unit (attnlab plot: --where unit={units[0]})"
        )
    if count > drawing.MOST:
        raise BadInput(
            f"{count} settings are too many: a figure can show {drawing.MOST}; "
            "choose the directory of one sweep, or fewer runs (attnlab plot: --where attn=sdpa)"
        )


def losses(data: FigureData, width: float | None = None) -> Figure | None:
    """Draw the training and validation loss, mean and standard deviation over seeds; the width is
    as for `draw`."""
    groups = by_name(data.runs)
    style, unit = drawing.looks(groups), data.runs[0].unit
    tags = {"train/loss": "training", "val/loss": "validation"}
    if not any(run.status not in DONE or any(map(run.scalars.get, tags)) for run in data.runs):
        return None
    figure, axes = panels_for(2, width)
    for place, (tag, title) in zip(axes, tags.items(), strict=True):
        for name, runs in groups.items():
            curves = [c for run in runs if run.status in DONE and (c := run.scalars.get(tag))]
            band(place, curves, f"{name} (n={len(curves)})", style[name])
            diverged_or_failed(place, [run for run in runs if run.status not in DONE], tag, style)
        place.set(title=title, xlabel="step", ylabel=f"loss (nats per {unit})")
        place.set_xlim(0, 1.02 * max(run.step for run in data.runs))
    axes[1].sharey(axes[0])
    axes[1].autoscale(axis="y")  # of both, even if one is empty
    drawing.label_lines(axes[1])
    return figure


def entropies(data: FigureData, width: float | None = None) -> Figure | None:
    """Draw the entropy of each layer's patterns against the step, one panel per setting."""
    read = {
        name: seeds
        for name, runs in by_name(data.runs).items()
        if any(seeds := [_by_layer(run.scalars) for run in runs if run.status in DONE])
    }
    if not read:
        return None
    figure, axes = panels_for(len(read), width, wide=4.2, columns=PANELS_A_ROW, share=True)
    layers = sorted({layer for seeds in read.values() for seed in seeds for layer in seed})
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, len(layers)))
    axes[0].set(xlim=(0, 1.02 * max(run.step for run in data.runs)), ylim=(0, 1.05))
    for place, (name, seeds) in zip(axes, read.items(), strict=True):
        for n, layer in enumerate(layers):
            curves = [seed[layer] for seed in seeds if layer in seed]
            look = (matplotlib.colors.to_hex(shades[n]), n % len(drawing.DASHES))
            band(place, curves, f"layer {layer}", look)
        title = textwrap.fill(name, 30, break_long_words=False, break_on_hyphens=False)
        longest, size = max(map(len, title.split("\n"))), matplotlib.rcParams["font.size"]
        place.set_title(title, fontsize=0.93 * size * min(1, 32 / longest))
        drawing.label_lines(place)
    for place in axes[-PANELS_A_ROW:]:
        place.set_xlabel("step")
        place.tick_params(labelbottom=True)
    for place in axes[::PANELS_A_ROW]:
        place.set_ylabel("entropy (1: all keys alike)")
    return figure


def _by_layer(scalars: Mapping[str, Curve]) -> dict[int, Curve]:
    """The entropy of each layer: its own tag, or the mean over the tags of its heads."""
    layers: dict[int, list[dict[int, float]]] = {}
    for tag, curve in scalars.items():
        if found := re.fullmatch(r"(?:attn|layers)/entropy/L(\d{1,4})(?:H\d+)?", tag):
            layers.setdefault(int(found[1]), []).append(dict(curve))
    return {
        layer: [(step, float(np.mean([head[step] for head in heads]))) for step in steps]
        for layer, heads in layers.items()
        if (steps := sorted(set.intersection(*map(set, heads))))
    }
