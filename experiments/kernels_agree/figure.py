"""The figure of kernels_agree."""

from matplotlib.figure import Figure

from attnlab.claims.results import Evidence
from attnlab.plotting.drawing import COLORS, dots, label_lines, panels


def figure(evidence: Evidence) -> Figure:
    apart, trained = evidence.shown("trajectory"), evidence.shown("manual")
    other = evidence.shown("torch_mha")
    drawing, axes = panels(2, width=6)
    if apart is not None:
        for i, dtype in enumerate(("float32", "float64")):
            for seed, row in enumerate(apart.each(dtype)):
                floored, label = [max(apart, 1e-17) for apart in row], "_" if seed else dtype
                axes[0].plot(range(1, 51), floored, color=COLORS[i], alpha=0.4, lw=1, label=label)
        axes[0].set(yscale="log", xlabel="step", ylabel="loss apart (nats)", title="One function")
        label_lines(axes[0])
    if trained is not None and other is not None:
        dots(axes[1], [("manual", trained.values), ("torch_mha", other.values)])
        for margin in (-0.005, 0.005):
            axes[1].axhline(margin, color="black", linestyle="--")
        axes[1].set(ylabel="loss minus SDPA's (nats)", title="After training in fp32")
    return drawing
