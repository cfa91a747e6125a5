"""The figure of recall_state."""

from matplotlib.figure import Figure

from attnlab.claims.results import Evidence
from attnlab.plotting.drawing import dots, panels

from . import FULL, LARGE, LINEAR, WINDOW


def figure(evidence: Evidence) -> Figure:
    drawing, axes = panels(1, width=8.0)
    groups = []
    for name, arm in (("full", FULL), ("linear", LINEAR), ("window", WINDOW), ("state", LARGE)):
        found = evidence.shown(name)
        if found is not None and arm.name in found.scores:
            groups.append((arm.name, found.scores[arm.name]))
    dots(axes[0], groups)
    axes[0].axhline(1 / 32, color="0.4", linestyle=":")
    axes[0].set(ylim=(0, 1.05), ylabel="share of right answers", title="Recall of 16 pairs")
    return drawing
