"""The figure of exclusive_attention."""

from matplotlib.figure import Figure

from attnlab.claims.results import Evidence
from attnlab.plotting.drawing import dots, panels

LABELS = {
    f"{name}_{steps}": f"T = {T}".replace(" ", "\N{NO-BREAK SPACE}")
    + f" {steps:,}\N{NO-BREAK SPACE}steps"
    for steps in (300, 1200)
    for name, T in (("short", 64), ("long", 256))
}


def figure(evidence: Evidence) -> Figure:
    drawing, axes = panels(1, width=8.0)
    found = {label: evidence.shown(name) for name, label in LABELS.items()}
    groups = [(label, each.values) for label, each in found.items() if each]
    dots(axes[0], groups, ["exclusive"] * len(groups))
    axes[0].axhline(0, color="0.4", linestyle=":")
    axes[0].set(ylabel="loss minus that of softmax (nats)", title="Without a token's own value")
    return drawing
