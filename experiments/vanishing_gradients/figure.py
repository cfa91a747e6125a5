"""The figure of vanishing_gradients."""

import numpy as np
from matplotlib.figure import Figure

from attnlab.claims.results import Evidence
from attnlab.plotting.drawing import COLORS, label_lines, panels

from .measure import SIZES

LINES = {
    "W_q": ("gradient of the query weights", COLORS[1]),
    "scores": ("gradient of all scores", COLORS[6]),
    "trace": ("trace of the softmax's Jacobian", COLORS[2]),
    "median row": ("gradient of the median row of scores", COLORS[0]),
}


def figure(evidence: Evidence) -> Figure:
    found = evidence.shown("weights")
    drawing, axes = panels(1, width=9.0, height=5.2)
    if found is None:
        return drawing
    for what, (text, color) in LINES.items():
        ratios = np.array([found.each(f"{what} at {D}") for D in SIZES]).T  # (seeds, sizes)
        axes[0].plot(SIZES, np.median(ratios, axis=0), "o-", color=color, label=text)
        for row in ratios:
            axes[0].plot(SIZES, row, color=color, alpha=0.2, linewidth=1, label="_")
    axes[0].axhline(1, color="0.4", linestyle=":", label="_")
    axes[0].set_xscale("log", base=2)
    axes[0].set_yscale("log")
    axes[0].set_xticks(SIZES, [str(D) for D in SIZES])
    axes[0].set(
        xlabel="D, at a width of 512",
        ylabel="norm unscaled / norm scaled",
        title="Gradients at initialization",
    )
    label_lines(axes[0])
    return drawing
