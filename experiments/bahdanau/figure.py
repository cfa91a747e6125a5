"""The figure of bahdanau."""

import math
import statistics
from collections.abc import Mapping
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from attnlab.claims.results import Evidence
from attnlab.plotting.drawing import color_of, dots, label_lines, panels

from . import SIZES, TIMED

QUALITY = ("quality_narrow", "wide_early", "quality_wide", "unscaled_wide")
VARIANTS = {"scaled dot": "scaled", "additive": "additive", "dot": "unscaled"}  # for their colors


def table(evidence: Evidence) -> list[Mapping[str, Any]]:
    """Means over seeds of every arm, in the prediction that has most seeds of it."""
    table: dict[str, dict[str, Any]] = {}
    for name in QUALITY:
        found = evidence.shown(name)
        for arm in [] if found is None else found.rows:
            row: dict[str, Any] = {"score and D": arm, "seeds": len(found.rows[arm])}
            for key in ("bleu", "exact match", "alignment"):
                values = found.each(key, arm)  # type: ignore[union-attr]
                row[key] = statistics.fmean(values or [math.nan])  # empty if all runs diverged
            if row["seeds"] > table.get(arm, {"seeds": 0})["seeds"]:
                table[arm] = row
    return list(table.values())


def figure(evidence: Evidence) -> Figure:
    drawing, axes = panels(3, width=6.2, height=5.2)
    groups: dict[str, list[float]] = {}
    for name in QUALITY:
        found = evidence.shown(name)
        groups |= {} if found is None else found.scores
    looks = [next(v for s, v in VARIANTS.items() if name.startswith(s)) for name in groups]
    dots(axes[0], list(groups.items()), looks)
    axes[0].tick_params(axis="x", labelsize=11)
    axes[0].set(ylabel="BLEU", title="Quality")
    aligned = evidence.shown("alignment")
    drawn = [] if aligned is None else [row["values"] for row in aligned.rows["scaled dot 32"]]
    for values in [values for values in drawn if "pattern" in values][:1]:
        _draw_alignment(axes[1], values)
    timed = evidence.shown("faster_wide")
    if timed is not None:
        for name, variant in zip(TIMED, ("additive", "scaled"), strict=True):
            best = [min(timed.each(f"{name} {size}")) for size in SIZES]
            axes[2].plot(SIZES, best, "o-", color=color_of(variant), label=name)
        axes[2].set_xscale("log", base=2)
        axes[2].set_xticks(SIZES, [str(size) for size in SIZES])
        axes[2].set_ylim(bottom=0)
        axes[2].set(xlabel="D", ylabel="CPU seconds an epoch", title="Speed")
        label_lines(axes[2])
    return drawing


def _draw_alignment(axes: Axes, values: Mapping[str, Any]) -> None:
    """Draw a pattern: English words from left to right, their translation downward."""
    shown = axes.imshow(
        torch.tensor(values["pattern"]).numpy(), cmap="magma_r", norm=PowerNorm(0.5, 0, 1)
    )
    source, target = [*values["source"], "."], [*values["target"], "."]
    # Every other word is one line lower, so that words of any length fit side by side.
    axes.set_xticks(range(len(source)), ["\n" * (n % 2) + word for n, word in enumerate(source)])
    axes.set_yticks(range(len(target)), target)
    axes.tick_params(labelsize=10)
    axes.grid(visible=False)
    axes.set(title="Pattern of scaled dot", xlabel="key: source", ylabel="query: translation")
    axes.figure.colorbar(shown, ax=axes, shrink=0.8, label="weight", ticks=(0, 0.01, 0.1, 0.4, 1))
