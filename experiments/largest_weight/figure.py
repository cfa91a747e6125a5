"""The figure of largest_weight."""

import numpy as np
from matplotlib.figure import Figure

from attnlab.claims.results import Evidence
from attnlab.plotting.drawing import COLORS, label_lines, panels

from .measure import KEYS, SIZES

COLOR = dict(zip(KEYS, (COLORS[1], COLORS[0]), strict=True))


def figure(evidence: Evidence) -> Figure:
    found = evidence.shown("ten_keys")
    drawing, axes = panels(2, width=6.0)
    if found is None:
        return drawing
    for n, place in zip(KEYS, (0.62, 0.30), strict=True):
        heights = np.mean(found.each(f"histogram, {n} keys"), axis=0)
        edges = np.linspace(0, 1, len(heights) + 1)
        axes[0].stairs(heights, edges, color=COLOR[n], linewidth=2.2)
        share = float(np.mean(found.each(f"share above 0.999, {n} keys")))
        text = f"{n} keys: {share:.0%} of rows\nabove 0.999"
        axes[0].text(0.06, place, text, color=COLOR[n], transform=axes[0].transAxes)
        means = np.array(found.each(f"by size, {n} keys"))
        axes[1].plot(SIZES, means.mean(0), "o-", color=COLOR[n], label=f"{n} keys")
    axes[0].set(xlabel="largest weight of a row", ylabel="share of rows", title="D = 512")
    axes[1].set_xscale("log", base=2)
    axes[1].set_xticks(SIZES, [str(D) for D in SIZES])
    axes[1].axhline(1, color="0.4", linestyle=":", label="_")
    axes[1].set(xlabel="D", ylabel="mean largest weight", ylim=(0, 1.05), title="Unscaled")
    label_lines(axes[1])
    return drawing
