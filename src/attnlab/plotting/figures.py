"""Figures of a sweep: losses, entropy by layer, loss by position, each over its seeds."""

import io
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnlab.errors import BadInput
from attnlab.files import write_atomically
from attnlab.plotting.drawing import (
    DASHES,
    MOST,
    LineStyle,
    label_lines,
    looks,
    panels,
    styled,
    svg,
)

Curve = list[tuple[int, float]]  # (step, value)

PANELS_A_ROW = 4
DONE = {"finished", "stopped", "running", "interrupted"}
BASELINE = "sdpa"
CLOSE = 0.05  # nats; curves that lie nearer look like one


@dataclass(frozen=True)
class RunCurves:
    """What the figures show of one run.

    Args:
        name: of its setting; runs that differ by their seed alone share it.
        variant: the name of its attention.
        seed: pairs it with runs of other settings.
        status: finished, diverged, ...
        step: the last one.
        unit: what one prediction is, "character".
        scalars: tag -> (step, value) in order.
        by_position: validation loss at each position, nats.
    """

    name: str
    variant: str
    seed: object
    status: str
    step: int
    unit: str
    scalars: Mapping[str, Curve]
    by_position: Sequence[float] = ()


def draw(runs: Sequence[RunCurves], folder: Path) -> list[Path]:
    """Draw every figure for which the runs have the numbers, as PNG and SVG.

    Args:
        runs: of one sweep.
        folder: where the files go; created if missing.

    Returns:
        the files.

    Raises:
        BadInput: there are more settings than lines that can be told apart, or losses of
            different units.
    """
    units = sorted({run.unit for run in runs})
    if len(units) > 1:
        raise BadInput(
            f"losses per {' and per '.join(units)} cannot share an axis; "
            f"choose runs of one task with --where unit={units[0]}"
        )
    found = len(_by_name(runs))
    if found > MOST:
        raise BadInput(
            f"{found} settings are too many for one figure, which can show {MOST}; "
            "choose some with --where attn=unscaled, or give the directory of one sweep"
        )
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, make in (("loss", losses), ("entropy", entropies), ("position", positions)):
        with styled():
            figure = make(runs)
            if figure is None:
                continue
            picture = io.BytesIO()
            figure.savefig(picture, format="png", dpi=110)
            # Replaced, and never written through a symbolic link.
            write_atomically(folder / f"{name}.png", picture.getvalue())
            write_atomically(folder / f"{name}.svg", svg(figure, name).encode())
        files += [folder / f"{name}.png", folder / f"{name}.svg"]
    return files


def losses(runs: Sequence[RunCurves]) -> Figure | None:
    """Draw the training and validation loss, mean and standard deviation over seeds.

    Where curves lie within 0.05 nats of one another, a third panel shows their differences from
    the baseline, paired by seed.
    """
    groups = _by_name(runs)
    style = looks(groups)
    tag, apart = _differences(groups)
    figure, axes = panels(3 if apart else 2, width=5.6, height=4.8)
    drawn = False
    for place, of in zip(axes, ("train/loss", "val/loss"), strict=False):
        for name, found in groups.items():
            whole = [run.scalars.get(of, []) for run in found if run.status in DONE]
            drawn |= band(place, whole, f"{name} (n={len(whole)})", style[name])
            drawn |= _ended(place, [run for run in found if run.status not in DONE], of, style)
        title = "training" if of == "train/loss" else "validation"
        place.set(title=title, xlabel="step", ylabel=f"loss (nats per {runs[0].unit})")
    if not drawn:
        return None
    axes[1].sharey(axes[0])
    for place in axes:
        place.set_xlim(0, 1.02 * max(run.step for run in runs))
    label_lines(axes[1])
    if apart:
        axes[2].axhline(0, color="black", lw=1)
        for name, curves in apart.items():
            band(axes[2], curves, name, style[name])
        late = [x for curves in apart.values() for c in curves for _, x in c[len(c) // 2 :]]
        reach = 1.3 * max(map(abs, late), default=0) or CLOSE
        kind = "validation" if tag == "val/loss" else "training"
        axes[2].set(title=f"{kind}, minus {BASELINE}", xlabel="step", ylim=(-reach, reach))
        axes[2].set_ylabel(f"paired difference (nats per {runs[0].unit})")
        label_lines(axes[2])
    return figure


def entropies(runs: Sequence[RunCurves]) -> Figure | None:
    """Draw the entropy of each layer's patterns against the step, a panel for each setting."""
    read = {
        name: [_by_layer(run.scalars) for run in found if run.status in DONE]
        for name, found in _by_name(runs).items()
    }
    read = {name: seeds for name, seeds in read.items() if any(seeds)}
    if not read:
        return None
    figure, axes = panels(len(read), width=4.2, columns=PANELS_A_ROW, share=True)
    layers = 1 + max(layer for seeds in read.values() for seed in seeds for layer in seed)
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, layers))
    axes[0].set_xlim(0, 1.02 * max(run.step for run in runs))
    axes[0].set_ylim(0, 1.05)
    for place, (name, seeds) in zip(axes, read.items(), strict=True):
        for layer in sorted({layer for seed in seeds for layer in seed}):
            curves = [seed[layer] for seed in seeds if layer in seed]
            look = (matplotlib.colors.to_hex(shades[layer]), layer % len(DASHES))
            band(place, curves, f"layer {layer}", look)
        title = textwrap.fill(name, 30, break_long_words=False, break_on_hyphens=False)
        longest = max(map(len, title.split("\n")))
        place.set_title(title, fontsize=min(13, 13 * 32 / longest))
        label_lines(place)
    for place in axes[-PANELS_A_ROW:]:
        place.set_xlabel("step")
        place.tick_params(labelbottom=True)
    for place in axes[::PANELS_A_ROW]:
        place.set_ylabel("entropy (1: all keys alike)")
    return figure


def positions(runs: Sequence[RunCurves]) -> Figure | None:
    """Draw the final validation loss at each position, over seeds."""
    figure, (place,) = panels(1, width=8.0, height=4.8)
    groups = _by_name(runs)
    style = looks(groups)
    drawn = False
    for name, found in groups.items():
        curves = [list(enumerate(run.by_position)) for run in found if run.status in DONE]
        drawn |= band(place, curves, f"{name} (n={len(curves)})", style[name])
    if not drawn:
        return None
    place.set(xlabel="position", ylabel=f"loss (nats per {runs[0].unit})", ylim=(0, None))
    label_lines(place)
    return figure


def _by_name(runs: Sequence[RunCurves]) -> dict[str, list[RunCurves]]:
    groups: dict[str, list[RunCurves]] = {}
    for run in runs:
        groups.setdefault(run.name, []).append(run)
    return groups


def _differences(
    groups: Mapping[str, Sequence[RunCurves]],
) -> tuple[str, dict[str, list[Curve]]]:
    """The tag that is compared, and each close setting's curves minus the baseline's, by seed.

    The validation loss is compared if it has at least three points, else the training loss, which
    all runs of a seed take over the same batches.
    """
    bases = sorted((n for n, found in groups.items() if found[0].variant == BASELINE), key=len)
    done = {n: [r for r in found if r.status in DONE] for n, found in groups.items()}
    val = [run.scalars.get("val/loss", []) for found in done.values() for run in found]
    tag = "val/loss" if val and min(map(len, val)) > 2 else "train/loss"
    curves = {
        name: {run.seed: dict(run.scalars[tag]) for run in found if run.scalars.get(tag)}
        for name, found in done.items()
    }
    ends = {  # the mean of the last tenth: one batch says little
        name: float(np.mean([np.mean([*c.values()][-1 - len(c) // 10 :]) for c in seeds.values()]))
        for name, seeds in curves.items()
        if seeds
    }
    apart: dict[str, list[Curve]] = {}
    for name, end in ends.items() if bases else ():
        near = any(abs(end - x) <= CLOSE for other, x in ends.items() if other != name)
        close = near and bases[0] in ends and abs(end - ends[bases[0]]) <= 4 * CLOSE
        pairs = [
            [(step, x - base[step]) for step, x in curve.items() if step in base]
            for seed, curve in curves[name].items()
            if (base := curves[bases[0]].get(seed))
        ]
        if close and name != bases[0] and any(pairs):
            apart[name] = [pair for pair in pairs if pair]
    return tag, apart


def band(place: Axes, curves: Sequence[Curve], label: str, look: LineStyle) -> bool:
    """Draw the mean of the curves with a band of one standard deviation; whether there was one."""
    whole = [dict(curve) for curve in curves if curve]
    if not whole:
        return False
    steps = sorted(set.intersection(*map(set, whole)))
    values = np.array([[curve[step] for step in steps] for curve in whole])
    mean, style = values.mean(0), _style(look)
    alone = "o" if len(steps) == 1 else ""  # one validation makes no line
    place.plot(steps, mean, marker=alone, label=label, **style)
    if len(whole) > 1:
        sd = values.std(0, ddof=1)
        place.fill_between(steps, mean - sd, mean + sd, alpha=0.2, lw=0, color=style["color"])
    return True


def _ended(
    place: Axes, runs: Sequence[RunCurves], tag: str, style: Mapping[str, LineStyle]
) -> bool:
    """Draw each run that diverged or failed as a thin line to a cross; whether there was one."""
    for number, run in enumerate(runs):
        curve = [(step, x) for step, x in run.scalars.get(tag, []) if math.isfinite(x)]
        curve = curve or [(run.step, math.nan)]
        label = "_" if number else f"{run.name}: {run.status}"  # one name for all its seeds
        look = _style(style[run.name]) | {"lw": 1}
        place.plot(*zip(*curve, strict=True), label=label, **look)
        place.plot(*curve[-1], "x", color=look["color"], markersize=11)
        if not number and math.isfinite(curve[-1][1]):
            place.annotate(
                label, curve[-1], (9, -4), textcoords="offset points", size=11, color=look["color"]
            )
    return bool(runs)


def _style(look: LineStyle) -> dict[str, Any]:
    return {"color": look[0], "linestyle": DASHES[look[1]]}


def _by_layer(scalars: Mapping[str, Curve]) -> dict[int, Curve]:
    """The entropy of each layer: that of the layer, or the mean over the tags of its heads."""
    layers: dict[int, list[dict[int, float]]] = {}
    for tag, curve in scalars.items():
        found = re.fullmatch(r"attn/entropy/L(\d+)(?:H\d+)?", tag)
        if found is not None:
            layers.setdefault(int(found[1]), []).append(dict(curve))
    return {
        layer: [(step, float(np.mean([head[step] for head in heads]))) for step in heads[0]]
        for layer, heads in layers.items()
    }
