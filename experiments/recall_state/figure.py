"""The figure of recall_state."""

import numpy as np
from matplotlib.figure import Figure

from attnlab.claims.results import Evidence
from attnlab.plotting.drawing import dots, panels

from . import HEADS, PAIRS

LABELS = {"full": "full", "large_state": "1,024 numbers", "small_state": "256", "window": "window"}


def figure(evidence: Evidence) -> Figure:
    grid = evidence.shown("map")
    drawing, axes = panels(2 if grid else 1, width=7.0, height=4.4)
    results = {name: evidence.shown(name) for name in LABELS}
    dots(axes[0], [(LABELS[name], found.values) for name, found in results.items() if found])
    axes[0].axhline(1 / 32, color="0.4", linestyle=":")
    axes[0].set(ylim=(0, 1.05), ylabel="share of right answers", title="16 pairs, 2,400 steps")
    if grid:
        means = np.array([np.mean(scores) for scores in grid.scores.values()])
        shares = means.reshape(len(PAIRS), len(HEADS))[:, ::-1]
        axes[1].pcolormesh(shares, cmap="Blues", vmin=0, vmax=1, edgecolors="white")
        for (i, j), share in np.ndenumerate(shares):
            color = "white" if share > 0.6 else "black"
            axes[1].annotate(
                f"{share:.0%}", (j + 0.5, i + 0.5), ha="center", va="center", color=color
            )
        axes[1].set_xticks([0.5, 1.5, 2.5], [f"{64 * 64 // n:,}" for n in reversed(HEADS)])
        axes[1].set_yticks([0.5, 1.5, 2.5], [str(pairs) for pairs in PAIRS])
        axes[1].set(xlabel="numbers in the state", ylabel="pairs", title="Linear attention")
        axes[1].grid(False)
    return drawing
