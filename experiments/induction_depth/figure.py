"""The figure of induction_depth."""

from matplotlib.figure import Figure

from attnlab.claims.results import Evidence
from attnlab.plotting.drawing import dots, panels

from . import ONE, SMEARED, TWO


def figure(evidence: Evidence) -> Figure:
    drawing, axes = panels(1, width=8.0)
    groups = []
    for name, arm in (("two_layers", TWO), ("one_layer", ONE), ("smeared", SMEARED)):
        found = evidence.shown(name)
        if found is not None:
            groups.append((arm.name, found.values))
    dots(axes[0], groups)
    axes[0].axhline(1 / 32, color="0.4", linestyle=":")
    axes[0].set(ylim=(0, 1.05), ylabel="share of right answers", title="Induction, 3,200 steps")
    return drawing
