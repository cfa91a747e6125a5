"""Figures of runs as files: losses, entropy by layer, loss by position, and the comparison."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnlab.errors import BadInput
from attnlab.files import write_atomically
from attnlab.plotting import drawing
from attnlab.runs.comparison_figure import (
    DONE,
    Curve,
    FigureData,
    band,
    by_position,
    common,
    comparison,
    diverged_or_failed,
    has_positions,
)
from attnlab.runs.reading import Run

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
    check(data)
    if wrong := [name for name in formats if name not in FORMATS]:
        raise BadInput(f"format = {wrong[0]} must be one of {', '.join(FORMATS)}")
    if width is not None and not 1 <= width <= 40:
        raise BadInput(f"width = {width:g} must be 1 to 40 inches")
    files = []
    makers = {"loss": losses, "entropy": entropies, "position": positions, "length": lengths}
    for name, make in (makers | {"comparison": comparison}).items():
        with drawing.styled(small=width is not None):
            if (figure := make(data, width)) is None:
                continue
            for suffix in formats:
                files.append(folder / f"{name}.{suffix}")
                content = drawing.encoded(figure, name, suffix)
                write_atomically(files[-1], content)  # not through a link
    return files


def check(data: FigureData) -> None:
    """Refuse, by BadInput, more settings than lines can show and losses in different units."""
    units = sorted({str(run.values.get("unit", data.unit)) for run in data.runs})
    if len(units) > 1:
        raise BadInput(
            f"losses per {' and per '.join(units)} cannot share an axis; "
            f"choose runs with one unit (--where unit={units[0]})"
        )
    if (count := len(data.comparisons)) > drawing.MOST:
        raise BadInput(
            f"{count} settings are too many: a figure can show {drawing.MOST}; "
            "choose the directory of one sweep, or fewer runs (--where attn=sdpa)"
        )


def panels_for(
    count: int, width: float | None, wide: float = 5.6, columns: int | None = None
) -> tuple[Figure, list[Axes]]:
    """Panels in rows or, in a printed column of this width, one below the other."""
    share = columns is not None
    if width is None:
        return drawing.panels(count, width=wide, height=4.6, columns=columns, share=share)
    return drawing.panels(count, width=width, height=0.7 * width, columns=1, share=share)


def losses(data: FigureData, width: float | None = None) -> Figure | None:
    """Draw the training and validation loss, mean and standard deviation over seeds; the width is
    as for `draw`."""
    tags = {"train/loss": "training", "val/loss": "validation"}
    there = [run.status not in DONE or tags.keys() & data.curves[run.folder] for run in data.runs]
    if not any(there):
        return None
    figure, axes = panels_for(2, width)
    for place, (tag, title) in zip(axes, tags.items(), strict=True):
        for c in data.comparisons:
            label, curves = c.setting.label, data.of(c, tag)
            band(place, curves, f"{label} (n={len(curves)})", data.style[label])
            diverged_or_failed(place, data, c, tag)
        place.set(title=title, xlabel="step", ylabel=f"loss (nats per {data.unit})")
        place.set_xlim(0, 1.02 * max(run.step for run in data.runs))
    axes[1].sharey(axes[0])
    axes[1].autoscale(axis="y")  # of both, even if one is empty
    drawing.label_lines(axes[1])
    return figure


def positions(data: FigureData, width: float | None = None) -> Figure | None:
    """Draw the final validation loss at each position, over seeds; the width is as for `draw`."""
    if not has_positions(data):
        return None
    figure, (place,) = panels_for(1, width, wide=8.0)
    by_position(place, data)
    return figure


def entropies(data: FigureData, width: float | None = None) -> Figure | None:
    """Draw the entropy of each layer's patterns against the step, one panel per setting."""
    read = {}
    for c in data.comparisons:
        done = [run.folder for run in c.setting.runs if run.status in DONE]
        if any(seeds := [_by_layer(data.curves[folder]) for folder in done]):
            read[c.setting.label] = seeds
    if not read:
        return None
    figure, axes = panels_for(len(read), width, wide=4.2, columns=PANELS_A_ROW)
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


def _by_layer(curves: Mapping[str, Curve]) -> dict[int, Curve]:
    """The entropy of each layer: its own tag, or the mean over the tags of its heads."""
    heads: dict[int, list[Curve]] = {}
    for tag, curve in curves.items():
        if found := re.fullmatch(r"(?:attn|layers)/entropy/L(\d{1,4})(?:H\d+)?", tag):
            heads.setdefault(int(found[1]), []).append(curve)
    layers = {}
    for layer, of_layer in heads.items():
        steps, values = common(of_layer)
        if steps:
            layers[layer] = list(zip(steps, values.mean(0).tolist(), strict=True))
    return layers


def lengths(data: FigureData, width: float | None = None) -> Figure | None:
    """Draw loss or accuracy by position beyond the trained length, which is marked, over seeds.

    A point is the mean over a 32nd of the positions; the width is as for `draw`.
    """
    figure, (place,) = panels_for(1, width, wide=8.0)
    trained, measures = set[int](), set[str]()
    for c in data.comparisons:
        found = [x for run in c.setting.runs if run.status in DONE and (x := _beyond(run))]
        curves = [_means(values) for _, _, values in found]
        band(place, curves, f"{c.setting.label} (n={len(curves)})", data.style[c.setting.label])
        trained |= {length for length, _, _ in found}
        measures |= {measure for _, measure, _ in found}
    if not trained:
        return None
    for length in trained:
        place.axvline(length - 0.5, color="0.4", ls=":", lw=1.5)
        place.annotate(f" {length}", (length, 0.95), xycoords=("data", "axes fraction"))
    place.set(xlabel="position; dotted: the trained length", xlim=(0, None))
    place.set(title="longer than trained", ylabel=" or ".join(sorted(measures)))
    drawing.label_lines(place)
    return figure


def _beyond(run: Run) -> tuple[int, str, Sequence[float]] | None:
    """The trained length, the measure, and its values at the largest of `data.eval_lengths`, if it
    is beyond that length."""
    key = "accuracy_by_position" if "val_accuracy" in run.metrics else "by_position"
    names = re.compile(rf"by_length\.(\d{{1,5}})\.{key}")
    results = {int(m[1]): x for name, x in run.metrics.items() if (m := names.fullmatch(name))}
    trained, length = run.values.get("model.block_size"), max(results, default=0)
    if not isinstance(trained, int) or length <= trained:
        return None
    measure = f"loss (nats per {run.values['unit']})" if key == "by_position" else "accuracy"
    return trained, measure, results[length]


def _means(values: Sequence[float]) -> Curve:
    """The means over pieces of a 32nd of the positions, at the middle of each."""
    import pandas  # takes half a second

    size = max(1, len(values) // 32)
    pieces = pandas.Series(values, dtype=float).groupby(lambda t: t // size * size + size // 2)
    return list(pieces.mean().dropna().items())
