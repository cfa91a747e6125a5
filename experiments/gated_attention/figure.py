"""The figure of gated_attention."""

from matplotlib.figure import Figure

from attnlab.claims.results import Evidence
from attnlab.plotting.drawing import dots, panels

LOSSES = {"loss_300": "each head", "channels": "each channel", "loss_1200": "each head, 1,200"}
SINKS = {
    "softmax_sink_300": ("softmax", "sdpa"),
    "sink_300": ("gated", "gate_head"),
    "softmax_sink_1200": ("softmax, 1,200", "sdpa"),
    "sink_1200": ("gated, 1,200", "gate_head"),
}


def figure(evidence: Evidence) -> Figure:
    drawing, axes = panels(2, width=6.4, height=4.6)
    found = {name: evidence.shown(name) for name in (*LOSSES, *SINKS)}
    losses = [(label, each.values) for name, label in LOSSES.items() if (each := found[name])]
    dots(axes[0], losses, ["gate_head"] * len(losses))
    axes[0].axhline(0, color="0.4", linestyle=":")
    axes[0].set(ylabel="loss minus that of softmax (nats)", title="TinyShakespeare")
    sinks = [(*looks, each.values) for name, looks in SINKS.items() if (each := found[name])]
    dots(axes[1], [(label, values) for label, _, values in sinks], [kind for _, kind, _ in sinks])
    axes[1].axhline(0.3, color="0.4", linestyle=":")
    axes[1].set(ylim=(0, 1), ylabel="weight on the start symbol", title="Backcopy")
    return drawing
