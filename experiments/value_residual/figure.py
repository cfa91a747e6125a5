"""The figure of value_residual."""

from matplotlib.figure import Figure

from attnlab.claims.results import Evidence
from attnlab.plotting.drawing import dots, panels

LABELS = {"loss_300": "300 steps", "loss_1200": "1,200 steps"}


def figure(evidence: Evidence) -> Figure:
    drawing, axes = panels(1, width=6.4)
    found = {label: evidence.shown(name) for name, label in LABELS.items()}
    groups = [(label, each.values) for label, each in found.items() if each]
    dots(axes[0], groups, ["value_residual"] * len(groups))
    axes[0].axhline(0, color="0.4", linestyle=":")
    axes[0].set(ylabel="loss minus that of softmax (nats)", title="A value residual")
    return drawing
