"""Figures of runs: losses, entropy by layer, loss by position, and paired differences."""

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnlab.errors import BadInput
from attnlab.files import write_atomically
from attnlab.plotting import drawing

Curve = list[tuple[int, float]]  # (step, value)
Styles = Mapping[str, drawing.LineStyle]  # by the names of settings

PANELS_A_ROW = 4
DONE = {"finished", "stopped", "running", "interrupted"}
BASELINE = "sdpa"
SHARES = {  # measures of a run -> what a figure calls them
    "attn/future_mass": "weight on the future",
    "attn/saturated_rows": "saturated rows",
    "attn/head_similarity": "similarity of heads",
}
CLOSE = 0.2  # nats; curves closer than that look like one


@dataclass(frozen=True)
class RunCurves:
    """The data of one run that the figures show."""

    name: str  # of its setting, shared by runs that differ only in their seed
    variant: str  # the name of its attention
    seed: object  # pairs the run with those of other settings
    status: str  # finished, diverged, ...
    step: int  # the last one
    unit: str  # what is predicted, such as "character"
    scalars: Mapping[str, Curve]  # by tag
    by_position: Sequence[float] = ()  # validation loss, nats
    text: str | None = None  # SHA-256 of the corpus, if it is known


@dataclass(frozen=True)
class SettingResult:
    """The final results of one setting, over its seeds."""

    name: str  # determines the color, see `drawing.looks`
    differences: Sequence[float] = ()  # validation loss minus that of the baseline, by seed, nats
    by_position: Sequence[Sequence[float]] = ()  # validation loss of each run, nats
    # A measure between 0 and 1 -> its value in each run.
    shares: Mapping[str, Sequence[float]] = field(default_factory=dict)


def draw(runs: Sequence[RunCurves], folder: Path) -> list[Path]:
    """Draw every figure for which the runs have data, as PNG and SVG; return the files.

    Raises BadInput as `check` does.
    """
    check(runs)
    files = []
    for name, make in (("loss", losses), ("entropy", entropies), ("position", positions)):
        with drawing.styled():
            if (figure := make(runs)) is None:
                continue
            contents = {
                "png": drawing.png(drawing.pixels(figure)),
                "svg": drawing.svg(figure, name).encode(),
            }
        for suffix, content in contents.items():
            files.append(folder / f"{name}.{suffix}")
            write_atomically(files[-1], content)  # never through a symbolic link
    return files


def check(runs: Sequence[RunCurves]) -> None:
    """Refuse, by BadInput, more settings than lines can show and losses in different units."""
    units, found = sorted({run.unit for run in runs}), len(_by_name(runs))
    if len(units) > 1:
        raise BadInput(
            f"losses per {' and per '.join(units)} cannot share an axis; "
            f"choose runs with one unit (attnlab plot: --where unit={units[0]})"
        )
    if found > drawing.MOST:
        raise BadInput(
            f"{found} settings are too many: a figure can show {drawing.MOST}; "
            "choose the directory of one sweep, or fewer runs (attnlab plot: --where attn=sdpa)"
        )


def losses(runs: Sequence[RunCurves], columns: int | None = None) -> Figure | None:
    """Draw the training and validation loss, mean and standard deviation over seeds.

    If curves end within 0.2 nats of the baseline's, a third panel shows their differences from it,
    paired by seed. There are `columns` panels per row; None puts all panels in one row.
    """
    groups = _by_name(runs)
    style, unit = drawing.looks(groups), runs[0].unit
    tag, close = _close(groups)
    tags = {"train/loss": "training", "val/loss": "validation"}
    if not any(run.status not in DONE or any(map(run.scalars.get, tags)) for run in runs):
        return None
    figure, axes = drawing.panels(3 if close else 2, width=5.6, height=4.8, columns=columns)
    for place, (of, title) in zip(axes, tags.items(), strict=False):
        for name, found in groups.items():
            curves = [c for run in found if run.status in DONE and (c := run.scalars.get(of))]
            _band(place, curves, f"{name} (n={len(curves)})", style[name])
            _diverged_or_failed(place, [run for run in found if run.status not in DONE], of, style)
        place.set(title=title, xlabel="step", ylabel=f"loss (nats per {unit})")
    axes[1].sharey(axes[0])
    for place in axes:
        place.set_xlim(0, 1.02 * max(run.step for run in runs))
    drawing.label_lines(axes[1])
    if close:
        axes[2].axhline(0, color="black", lw=1)
        for name, curves in close.items():
            _band(axes[2], curves, name, style[name])
        late = [abs(x) for curves in close.values() for c in curves for _, x in c[len(c) // 2 :]]
        reach = 1.3 * max(filter(math.isfinite, late), default=CLOSE) or CLOSE
        axes[2].set(title=f"{tags[tag]}, minus {BASELINE}", xlabel="step", ylim=(-reach, reach))
        axes[2].set_ylabel(f"paired difference (nats per {unit})")
        drawing.label_lines(axes[2])
    return figure


def entropies(runs: Sequence[RunCurves]) -> Figure | None:
    """Draw the entropy of each layer's patterns against the step, one panel per setting."""
    read = {
        name: seeds
        for name, found in _by_name(runs).items()
        if any(seeds := [_by_layer(run.scalars) for run in found if run.status in DONE])
    }
    if not read:
        return None
    figure, axes = drawing.panels(len(read), width=4.2, columns=PANELS_A_ROW, share=True)
    layers = sorted({layer for seeds in read.values() for seed in seeds for layer in seed})
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, len(layers)))
    axes[0].set(xlim=(0, 1.02 * max(run.step for run in runs)), ylim=(0, 1.05))
    for place, (name, seeds) in zip(axes, read.items(), strict=True):
        for n, layer in enumerate(layers):
            curves = [seed[layer] for seed in seeds if layer in seed]
            look = (matplotlib.colors.to_hex(shades[n]), n % len(drawing.DASHES))
            _band(place, curves, f"layer {layer}", look)
        title = textwrap.fill(name, 30, break_long_words=False, break_on_hyphens=False)
        longest = max(map(len, title.split("\n")))
        place.set_title(title, fontsize=min(13, 13 * 32 / longest))
        drawing.label_lines(place)
    for place in axes[-PANELS_A_ROW:]:
        place.set_xlabel("step")
        place.tick_params(labelbottom=True)
    for place in axes[::PANELS_A_ROW]:
        place.set_ylabel("entropy (1: all keys alike)")
    return figure


def positions(runs: Sequence[RunCurves]) -> Figure | None:
    """Draw the final validation loss at each position, over seeds."""
    done = [run for run in runs if run.status in DONE and len(run.by_position)]
    settings = [
        SettingResult(f"{name} (n={len(found)})", by_position=[run.by_position for run in found])
        for name, found in _by_name(done).items()
    ]
    return sweep_figure(settings, runs[0].unit, width=8.0)


def sweep_figure(
    settings: Sequence[SettingResult], unit: str, columns: int | None = None, width: float = 5.6
) -> Figure | None:
    """Draw paired differences, loss by position, and measures of attention at the end.

    Panels without data are omitted; the result is None if all are. `unit` is what is predicted,
    such as "character"; there are `columns` panels per row, each `width` inches wide.
    """
    style = drawing.looks(each.name for each in settings)
    drawers = []
    drawers += [_differences] if any(each.differences for each in settings) else []
    drawers += [_positions] if any(each.by_position for each in settings) else []
    drawers += [_shares] if any(each.shares for each in settings) else []
    if not drawers:
        return None
    with drawing.styled():
        figure, axes = drawing.panels(len(drawers), width=width, height=4.4, columns=columns)
        for place, drawer in zip(axes, drawers, strict=True):
            drawer(place, settings, style, unit)
    return figure


def _differences(place: Axes, settings: Sequence[SettingResult], style: Styles, unit: str) -> None:
    """Draw the difference of every seed, and the median as a bar."""
    shown = [each for each in reversed(settings) if each.differences]
    for y, each in enumerate(shown):
        color, kind = style[each.name]
        spread = np.linspace(-0.15, 0.15, len(each.differences))
        place.plot(each.differences, y + spread, drawing.MARKERS[kind], color=color, alpha=0.75)
        place.vlines(float(np.median(each.differences)), y - 0.3, y + 0.3, color=color, lw=3)
    place.axvline(0, color="black", lw=1)
    place.locator_params(axis="x", nbins=4)
    names = [textwrap.fill(each.name, 20, break_long_words=False) for each in shown]
    place.set_yticks(range(len(shown)), names)
    place.set_ylim(-0.6, len(shown) - 0.4)
    place.set(title="each seed minus the baseline", xlabel=f"validation loss (nats per {unit})")


def _positions(place: Axes, settings: Sequence[SettingResult], style: Styles, unit: str) -> None:
    """Draw the mean over runs of the loss at each position."""
    for each in settings:
        _band(place, [list(enumerate(x)) for x in each.by_position], each.name, style[each.name])
    place.set(title="loss by position", xlabel="position", ylim=(0, None))
    place.set_ylabel(f"validation loss (nats per {unit})")
    drawing.label_lines(place)


def _shares(place: Axes, settings: Sequence[SettingResult], style: Styles, unit: str) -> None:
    """Draw a row of dots for each measure, with the mean over runs of each setting."""
    names = list(dict.fromkeys(name for each in settings for name in each.shares))
    for n, each in enumerate(settings):
        color, kind = style[each.name]
        shift = 0.25 * (1 - 2 * n / max(1, len(settings) - 1))
        rows = [y + shift for y, name in enumerate(names) if name in each.shares]
        means = [float(np.mean(each.shares[name])) for name in names if name in each.shares]
        place.plot(means, rows, drawing.MARKERS[kind], color=color, label=each.name)
    place.set_yticks(range(len(names)), [textwrap.fill(name, 14) for name in names])
    place.set(title="attention at the end", xlim=(-0.04, 1.04), ylim=(-0.6, len(names) - 0.4))
    place.set_xlabel("mean over layers and heads")
    place.legend(fontsize=11, loc="center left", bbox_to_anchor=(1, 0.5))


def _by_name(runs: Sequence[RunCurves]) -> dict[str, list[RunCurves]]:
    names = dict.fromkeys(run.name for run in runs)
    return {name: [run for run in runs if run.name == name] for name in names}


def _close(groups: Mapping[str, Sequence[RunCurves]]) -> tuple[str, dict[str, list[Curve]]]:
    """The tag to compare, and the curves of close settings minus the baseline's, by seed."""
    done = {name: [run for run in found if run.status in DONE] for name, found in groups.items()}
    # The training loss has more points; runs of one seed are trained on the same batches.
    points = [len(run.scalars.get("val/loss", ())) for found in done.values() for run in found]
    tag = "val/loss" if min(points, default=0) > 2 else "train/loss"
    plain = [name for name, found in groups.items() if found[0].variant == BASELINE]
    base = min(plain, key=len, default="")
    of_base = {run.seed: run for run in done.get(base, ())}
    close: dict[str, list[Curve]] = {}
    for name, found in done.items():
        pairs = [
            [(step, x - paired[step]) for step, x in run.scalars.get(tag, ()) if step in paired]
            for run in found
            if name != base and (other := of_base.get(run.seed))
            if None in (run.text, other.text) or run.text == other.text
            if (paired := dict(other.scalars.get(tag, ())))
        ]
        # The mean of the last tenth, because the loss of one batch is noisy.
        ends = [np.mean([x for _, x in pair][-1 - len(pair) // 10 :]) for pair in pairs if pair]
        if ends and abs(np.mean(ends)) <= CLOSE:
            close[name] = [pair for pair in pairs if pair]
    return tag, close


def _band(place: Axes, curves: Sequence[Curve], label: str, look: drawing.LineStyle) -> None:
    """Draw the mean of the curves with a band of one standard deviation."""
    if not curves:
        return
    found = [dict(curve) for curve in curves]
    steps = sorted(set.intersection(*map(set, found)))
    values = np.array([[curve[step] for step in steps] for curve in found])
    mean, (color, dash) = values.mean(0), look
    point = "o" if len(steps) == 1 else ""  # a line of one point is invisible
    place.plot(steps, mean, marker=point, label=label, color=color, linestyle=drawing.DASHES[dash])
    if len(found) > 1:
        sd = values.std(0, ddof=1)
        place.fill_between(steps, mean - sd, mean + sd, alpha=0.2, lw=0, color=color)


def _diverged_or_failed(place: Axes, runs: Sequence[RunCurves], tag: str, style: Styles) -> None:
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
                label, curve[-1], (9, -4), textcoords="offset points", size=11, color=color
            )


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
