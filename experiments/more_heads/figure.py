"""The figure of more_heads."""

from matplotlib.figure import Figure

from attnlab.claims.results import Evidence
from attnlab.plotting.drawing import dots, panels


def figure(evidence: Evidence) -> Figure:
    drawing, axes = panels(1, width=8)
    groups = []
    for name, label in (
        ("four_300", "4 heads of 16"),
        ("four_1200", "the same, 1,200 steps"),
        ("wide", "8 heads of 16"),
    ):
        if (found := evidence.shown(name)) is not None:
            groups.append((label, found.values))
    dots(axes[0], groups)
    axes[0].axhline(0, color="0.4", linestyle=":")
    axes[0].set(ylabel="loss minus that of one head (nats)", title="Several heads against one")
    return drawing
