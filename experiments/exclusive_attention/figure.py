"""The figure of exclusive_attention."""

from matplotlib.figure import Figure

from attnlab.claims.results import Evidence
from attnlab.plotting.drawing import dots, panels

LABELS = {
    "short_300": "T = 64",
    "long_300": "T = 256",
    "short_1200": "T = 64, 1,200 steps",
    "long_1200": "T = 256, 1,200 steps",
}


def figure(evidence: Evidence) -> Figure:
    drawing, axes = panels(1, width=8.0)
    found = {label: evidence.shown(name) for name, label in LABELS.items()}
    groups = [(label, each.values) for label, each in found.items() if each]
    dots(axes[0], groups, ["exclusive"] * len(groups))
    axes[0].axhline(0, color="0.4", linestyle=":")
    axes[0].set(ylabel="loss minus that of softmax (nats)", title="Without the own value")
    return drawing
