"""The figure of healthy_softmax."""

import numpy as np
from matplotlib.figure import Figure

from attnlab.claims.results import Evidence
from attnlab.plotting.drawing import COLORS, label_lines, panels

from .measure import LOOKS

STYLES = {
    "one head, unscaled": COLORS[1],
    "one head": COLORS[6],
    "16 heads": COLORS[0],
}


def figure(evidence: Evidence) -> Figure:
    found = evidence.shown("wide")
    drawing, axes = panels(2, width=6.6, height=4.8)
    if found is None:
        return drawing
    for name, color in STYLES.items():
        seeds = found.each(f"{name}: curves")
        share = 100 * np.mean([curves["saturated"] for curves in seeds], axis=0)
        spread = np.mean([curves["spread"] for curves in seeds], axis=0)
        axes[0].plot(LOOKS, share, color=color, label="_")
        axes[1].plot(LOOKS, spread, color=color, label=name)
    axes[0].set(
        xlabel="step",
        ylabel="saturated rows (%)",
        ylim=(-3, 100),
        title="Saturated, at the best rates",
    )
    axes[1].set_yscale("log")
    axes[1].set(xlabel="step", ylabel="std of a row's scores", title="Spread of scores")
    label_lines(axes[1])
    return drawing
