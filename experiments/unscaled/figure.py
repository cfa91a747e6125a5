"""The figure of unscaled."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from matplotlib.figure import Figure

from attnlab.claims.results import Evidence
from attnlab.plotting.drawing import color_of, label_lines, panels

from . import COARSE, CONDENSATION, FINE, _spread, _wide_pair
from .theory import KEYS, SIZES

TABLE = (8, 64, 512)
WIDTHS = (16, 32, 64, 128, 256, 512)  # of heads, at C = 512


def figure(evidence: Evidence) -> Figure:
    start = evidence.shown("entropy")
    fine, coarse = evidence.shown("map_fine"), evidence.shown("map")
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
    for D in WIDTHS:
        scores = _scores_of_width(evidence, D)
        if scores:
            price = [a - b for a, b in zip(*scores, strict=True)]
            axes[1].plot([D] * len(price), price, "o", color=color_of("unscaled"), alpha=0.75)
    axes[1].axhline(0, color="0.3", linewidth=1)
    axes[1].set_xscale("log", base=2)
    axes[1].set(xlabel="D", ylabel="unscaled minus scaled (nats)", title="One layer, C = 512")
    if fine is not None:
        _draw_map(axes[2], fine.scores, FINE, drawing)
    elif coarse is not None:
        _draw_map(axes[2], coarse.scores, COARSE, drawing)
    return drawing


def _scores_of_width(evidence: Evidence, D: int) -> list[list[float]]:
    """Scores of both arms at one width of heads, from any prediction that has them."""
    for name in ("wide", "wide_and_narrow", "all_widths"):
        found = evidence.shown(name)
        names = [arm.name for arm in _wide_pair(D)]
        if found is not None and names[0] in found.scores:
            return [found.scores[each] for each in names]
    return []


def _draw_map(
    axis: Any, losses: Mapping[str, list[float]], at: tuple[Any, Any], drawing: Figure
) -> None:
    stds, rates = at
    values = torch.tensor([sum(v) / len(v) for v in losses.values()])
    values = values.view(len(stds), len(rates), 2)
    grid = values[..., 0] - values[..., 1]
    bound = max(0.05, float(grid.abs().max()))
    image = axis.pcolormesh(grid, cmap="PuOr_r", vmin=-bound, vmax=bound, edgecolors="white")
    axis.set_yticks([i + 0.5 for i in range(len(stds))], [f"{_spread(s):.2g}" for s in stds])
    axis.set_xticks([i + 0.5 for i in range(len(rates))], [f"{lr:g}" for lr in rates])
    for i in range(len(stds)):
        for j in range(len(rates)):
            value = float(grid[i, j])
            color = "white" if abs(value) > 0.6 * bound else "black"
            place = {"ha": "center", "va": "center"}
            axis.annotate(f"{value:+.2f}", (j + 0.5, i + 0.5), color=color, **place)
    above = sum(_spread(std) < CONDENSATION for std in stds)  # the line is between two rows
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
