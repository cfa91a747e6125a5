"""The figure of recurrent_cost."""

import statistics

from matplotlib.figure import Figure

from attnlab.claims.results import Evidence
from attnlab.plotting.drawing import COLORS, label_lines, panels

from .measure import RECURRENT, SIZES, C


def figure(evidence: Evidence) -> Figure:
    drawing, axes = panels(1, width=8.0)
    found = evidence.shown("gru_short")
    axes[0].set_xscale("log", base=2)
    axes[0].set_xticks([n / C for n in SIZES], [f"{n / C:g}" for n in SIZES])
    axes[0].set(
        yscale="log",
        xlabel="length of the text / width of the layer",
        ylabel="CPU time / that of attention",
        title="Forward and backward pass",
    )
    if found is None:
        return drawing
    for color, name in zip(COLORS, RECURRENT, strict=False):
        ratios = [statistics.median(found.each(f"{name} at {T}")) for T in SIZES]
        axes[0].plot([T / C for T in SIZES], ratios, "o-", color=color, label=f"nn.{name}")
    axes[0].axhline(1, color="0.4", linestyle=":")
    axes[0].axvline(1, color="0.4", linestyle=":")
    label_lines(axes[0])
    return drawing
