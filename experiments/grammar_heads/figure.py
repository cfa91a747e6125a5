"""The figure of grammar_heads."""

import numpy as np
from matplotlib.figure import Figure

from attnlab.claims.results import Evidence
from attnlab.plotting.drawing import COLORS, panels

from . import PLAYS


def figure(evidence: Evidence) -> Figure:
    bracket = evidence.shown("bracket")
    drawing, axes = panels(2, width=6.2, height=4.8)
    if bracket is None:
        return drawing
    for x, name in enumerate(("bracket", "noun")):
        for side, what, color in ((-0.15, "weight", COLORS[1]), (0.15, "shuffled", "0.55")):
            values = bracket.each(f"{name}: {what}", PLAYS.name)
            axes[0].plot(np.full(len(values), x + side), values, "o", color=color, alpha=0.75)
            axes[0].hlines(float(np.mean(values)), x + side - 0.1, x + side + 0.1, color=color)
    axes[0].text(0.3, 0.83, "on the source", color=COLORS[1])
    axes[0].text(0.3, 0.16, "at the distances of others", color="0.4")
    axes[0].set_xticks([0, 1], ["closing\nbracket", "repeated\nnoun"])
    axes[0].set(
        xlim=(-0.5, 1.6), ylim=(0, 1), ylabel="weight of the best head", title="Where it looks"
    )
    for x, (what, color) in enumerate(
        (("price of the head", COLORS[1]), ("price of its neighbor", "0.55"))
    ):
        values = bracket.each(f"bracket: {what}", PLAYS.name)
        spread = np.linspace(-0.12, 0.12, len(values)) if len(values) > 1 else np.zeros(1)
        axes[1].plot(x + spread, values, "o", color=color, alpha=0.75)
    axes[1].axhline(0, color="0.4", linestyle=":")
    axes[1].set_xticks([0, 1], ["that head", "another head\nof the layer"])
    axes[1].set(
        xlim=(-0.5, 1.5), ylabel="loss at the bracket (nats)", title="What removing a head costs"
    )
    return drawing
