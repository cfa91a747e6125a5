"""Still pictures of a sweep: losses, entropy by layer, loss by position, each over its seeds."""

import math
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnlab.errors import BadInput
from attnlab.plotting.drawing import COLORS, legend_below, panels, styled, svg
from attnlab.runs import Run, group, labels, read_curves

Curve = list[tuple[int, float]]
DASHES = ("-", "--", ":", "-.")
MOST_GROUPS = len(COLORS) * len(DASHES)
PANELS_A_ROW = 4
DONE = {"finished", "running", "interrupted"}


def draw(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Draw every figure for which the runs have the numbers, as PNG and SVG.

    Args:
        runs: of one sweep.
        folder: where the files go; it is made.

    Returns:
        the files.

    Raises:
        BadInput: there are more groups than lines that an eye can tell apart, or runs of
            different tasks.
    """
    tasks = sorted({str(run.config.get("module")) for run in runs if run.config})
    if len(tasks) > 1:  # damaged runs have no configuration
        raise BadInput(
            f"the losses of different tasks share no axis: module = {' and '.join(tasks)}; "
            f"choose one with --where module={tasks[0]}"
        )
    found = len(_by_group(runs))
    if found > MOST_GROUPS:
        raise BadInput(
            f"{found} settings are too many for a figure, which can show {MOST_GROUPS} apart; "
            "choose some by --where attn=unscaled, say, or by the folder of a sweep"
        )
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, make in (("loss", losses), ("entropy", entropies), ("position", positions)):
        with styled():
            figure = make(runs)
            if figure is None:
                continue
            figure.savefig(folder / f"{name}.png", dpi=110)
            (folder / f"{name}.svg").write_text(svg(figure, name), encoding="utf-8")
        files += [folder / f"{name}.png", folder / f"{name}.svg"]
    return files


def losses(runs: Sequence[Run]) -> Figure | None:
    """Training and validation loss against the step, mean and standard deviation over seeds."""
    figure, axes = panels(2, width=6.0)
    drawn = False
    for tag, title, place in zip(
        ("train/loss", "val/loss"), ("training", "validation"), axes, strict=True
    ):
        for number, (name, found) in enumerate(_by_group(runs)):
            curves = [read_curves(run.folder, tag).get(tag, []) for run in found]
            drawn |= _band(place, curves, name, number, found)
        place.set(title=title, xlabel="step", ylabel=f"loss, nats per {_unit(runs)}")
    if not drawn:
        return None
    legend_below(figure, axes[1])
    return figure


def entropies(runs: Sequence[Run]) -> Figure | None:
    """Entropy of each layer's patterns against the step, a panel a variant."""
    groups = [(name, [r for r in found if r.status in DONE]) for name, found in _by_group(runs)]
    tags = r"attn/entropy/L(\d+)(H\d+)?"
    read = [
        (name, [_by_layer(read_curves(r.folder, tags)) for r in found]) for name, found in groups
    ]
    read = [(name, seeds) for name, seeds in read if any(seeds)]
    if not read:
        return None
    figure, axes = panels(len(read), width=4.2, columns=PANELS_A_ROW)
    for place, (name, seeds) in zip(axes, read, strict=True):
        for layer in sorted({layer for seed in seeds for layer in seed}):
            curves = [seed[layer] for seed in seeds if layer in seed]
            _band(place, curves, f"layer {layer}", layer, [])
        place.set(title=textwrap.fill(name, 28), xlabel="step", ylim=(0, 1.05))
    for place in axes[::PANELS_A_ROW]:
        place.set_ylabel("entropy (1: all keys alike)")
    axes[-1].legend(fontsize=11)
    return figure


def positions(runs: Sequence[Run]) -> Figure | None:
    """Validation loss at each position at the end, mean and standard deviation over seeds."""
    figure, (place,) = panels(1, width=8.0)
    drawn = False
    for number, (name, found) in enumerate(_by_group(runs)):
        curves = [run.metrics.get("loss_by_position", []) for run in found if run.status in DONE]
        drawn |= _band(place, [list(enumerate(curve)) for curve in curves], name, number, [])
    if not drawn:
        return None
    place.set(xlabel="position", ylabel=f"loss, nats per {_unit(runs)}", ylim=(0, None))
    legend_below(figure, place)
    return figure


def _unit(runs: Sequence[Run]) -> str:
    """What one prediction is, as the finished runs say."""
    return next((run.metrics["unit"] for run in runs if "unit" in run.metrics), "prediction")


def _by_group(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    names = labels(runs)
    result: dict[str, list[Run]] = {}
    for found in group(runs):
        result.setdefault(names[found.runs[0].group], []).extend(found.runs)
    return list(result.items())


def _band(
    place: Axes, curves: Sequence[Curve], name: str, number: int, runs: Sequence[Run]
) -> bool:
    """The mean of the curves with a band; what ended early is a line of its own, with a cross."""
    style: Any = {
        "color": COLORS[number % len(COLORS)],
        "linestyle": DASHES[number // len(COLORS) % len(DASHES)],
    }
    bad = [run.status not in DONE for run in runs] if runs else [False] * len(curves)
    whole = [curve for curve, is_bad in zip(curves, bad, strict=True) if curve and not is_bad]
    if whole:
        steps, mean, sd = _over_seeds(whole)
        alone = "o" if len(steps) == 1 else ""  # one validation makes no line
        place.plot(steps, mean, marker=alone, label=f"{name} (n={len(whole)})", **style)
        if len(whole) > 1:
            place.fill_between(steps, mean - sd, mean + sd, alpha=0.2, lw=0, color=style["color"])
    for curve, run in zip(curves, runs, strict=False):
        if run.status in DONE:
            continue
        finite = [(step, x) for step, x in curve if math.isfinite(x)] or [(run.step, math.nan)]
        label = f"{name}: {run.status}"
        if label in place.get_legend_handles_labels()[1]:
            label = "_"  # one name for all its seeds
        place.plot(*zip(*finite, strict=True), lw=1, label=label, **(style | {"linestyle": ":"}))
        place.plot(*finite[-1], "x", color=style["color"], markersize=11)
    return bool(whole) or bool(runs)


def _over_seeds(curves: Sequence[Curve]) -> tuple[Any, Any, Any]:
    """Steps that all seeds have, their mean and standard deviation there."""
    common = sorted(set.intersection(*({step for step, _ in curve} for curve in curves)))
    tables = [dict(curve) for curve in curves]
    values = np.array([[table[step] for step in common] for table in tables])
    sd = values.std(0, ddof=1) if len(curves) > 1 else np.zeros(len(common))
    return np.array(common), values.mean(0), sd


def _by_layer(curves: dict[str, Curve]) -> dict[int, Curve]:
    """A layer's mean over its heads' tags."""
    layers: dict[int, list[dict[int, float]]] = {}
    for tag, curve in curves.items():
        found = re.search(r"/L(\d+)", tag)
        assert found is not None
        layers.setdefault(int(found[1]), []).append(dict(curve))
    return {
        layer: [(step, float(np.mean([head[step] for head in heads]))) for step in heads[0]]
        for layer, heads in layers.items()
    }
