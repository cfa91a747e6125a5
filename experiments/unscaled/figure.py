"""The figure of unscaled."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from matplotlib.figure import Figure

from attnlab.claims.results import Evidence
from attnlab.plotting.drawing import color_of, label_lines, panels

from . import CONDENSATION, RATES, STDS, spread
from .theory import KEYS, SIZES

TABLE = (8, 64, 512)


def figure(evidence: Evidence) -> Figure:
    start = evidence.shown("entropy")
    drawing, axes = panels(3, width=4.7, height=4.4)
    if start is not None:
        for name in ("scaled", "unscaled"):
            rows = torch.tensor([row[name] for row in start.each("entropy")])
            theory = start.each("theory")[0][name]
            axes[0].plot(SIZES, theory, color=color_of(name), label=name)
            axes[0].plot(SIZES, rows.mean(0), "o", color=color_of(name), label="_measured")
        axes[0].set_xscale("log", base=2)
        axes[0].axhline(math.log(KEYS), color="0.5", linestyle=":", label="_uniform")
        axes[0].set(xlabel="D", ylabel="entropy (nats)", title="Start: theory (lines), measured")
        label_lines(axes[0])
    _draw_rates(axes[1], evidence)
    if (found := evidence.shown("map")) is not None:
        _draw_map(axes[2], found.scores, drawing)
    return drawing


def _draw_rates(axis: Any, evidence: Evidence) -> None:
    """Mean loss of the pilots at every rate, and the loss of every seed at the best one."""
    for start, line in (("unit", "-"), ("gpt2", "--")):
        name = {"unit": "unit_variance_300", "gpt2": "gpt2_start_300"}[start]
        for kind in ("scaled", "unscaled"):
            arm = f"{kind}, {start}, 300 steps"
            choice = evidence.claim.prediction(name).chosen.get(arm)
            if choice is None:
                continue
            color, label = color_of(kind), f"{kind}, {start}"
            axis.plot(*zip(*choice.losses.items(), strict=True), line, color=color, label=label)
            scores = evidence.found[name].scores.get(arm, []) if name in evidence.found else []
            axis.plot([choice.rate] * len(scores), scores, ".", color=color, alpha=0.6)
    axis.set_xscale("log")
    axis.set(xlabel="learning rate", ylabel="validation loss (nats)", title="300 steps, D = 128")
    if axis.lines:
        axis.legend()


def _draw_map(axis: Any, losses: Mapping[str, list[float]], drawing: Figure) -> None:
    values = torch.tensor([sum(v) / len(v) for v in losses.values()])
    values = values.view(len(STDS), len(RATES), 2)
    grid = values[..., 0] - values[..., 1]
    bound = max(0.05, float(grid.abs().max()))
    image = axis.pcolormesh(grid, cmap="PuOr_r", vmin=-bound, vmax=bound, edgecolors="white")
    axis.set_yticks([i + 0.5 for i in range(len(STDS))], [f"{spread(s):.2g}" for s in STDS])
    axis.set_xticks([i + 0.5 for i in range(len(RATES))], [f"{lr:g}" for lr in RATES])
    for i in range(len(STDS)):
        for j in range(len(RATES)):
            value = float(grid[i, j])
            color = "white" if abs(value) > 0.6 * bound else "black"
            place = {"ha": "center", "va": "center"}
            axis.annotate(f"{value:+.2f}", (j + 0.5, i + 0.5), color=color, **place)
    above = sum(spread(std) < CONDENSATION for std in STDS)  # the line is between two rows
    axis.axhline(above, color="black", linestyle="--", linewidth=3)
    axis.set(xlabel="learning rate", ylabel="spread of unscaled scores", title="The map")
    axis.grid(False)
    drawing.colorbar(image, ax=axis, label="unscaled minus scaled (nats)")


def table(evidence: Evidence) -> list[Mapping[str, Any]]:
    """The largest weight of a row, averaged over rows."""
    start = evidence.shown("entropy")
    if start is None:
        return []
    mean = {
        name: torch.tensor([row[name] for row in start.each("largest")]).mean(0)
        for name in ("scaled", "unscaled")
    }
    return [
        {"D": D} | {f"largest weight, {name}": float(mean[name][SIZES.index(D)]) for name in mean}
        for D in TABLE
    ]
