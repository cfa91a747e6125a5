"""The figure of flipped_mask."""

import math

import numpy as np
from matplotlib.figure import Figure

from attnlab.claims.results import Evidence
from attnlab.plotting.drawing import DASHES, color_of, dots, label_lines, looks, panels

from . import MASKS


def figure(evidence: Evidence) -> Figure:
    bets, text = evidence.shown("proof_uniform"), evidence.shown("loss")
    read = evidence.shown("last_position")
    drawing, axes = panels(3, width=5.2, height=4.4)
    if bets is not None:
        for name in MASKS:
            color, dash = looks(MASKS)[name]
            for seed, row in enumerate(bets.each("history")):
                steps, bet = zip(*enumerate(row[f"uniform {name}"], 1), strict=True)
                style = {"color": color, "ls": DASHES[dash], "lw": 1.4, "alpha": 0.7}
                axes[0].plot(steps, bet, label="_" if seed else name, **style)
        axes[0].axhline(math.log(1e9), color="black", lw=1, ls="--", label="_")
        place, right = (1, math.log(1e9) - 2), axes[0].get_yaxis_transform()
        style = {"ha": "right", "va": "top", "fontsize": 11}
        axes[0].annotate("above: proof, p < 1e-9", place, xycoords=right, **style)
        axes[0].set(ylim=(-60, 45), xlabel="step", ylabel="ln M (nats)", title="Uniform tokens")
        label_lines(axes[0])
    if text is not None:
        others = evidence.shown("other_masks")
        dots(axes[1], [*text.scores.items(), *(others.scores.items() if others else ())])
        axes[1].axhline(1.40, color="black", lw=1, ls="--")
        label, right = "no causal model reaches 1.40", axes[1].get_yaxis_transform()
        axes[1].annotate(label, (1, 1.43), xycoords=right, ha="right", fontsize=11)
        axes[1].set(ylabel="validation loss (nats)", title="TinyShakespeare", ylim=(0, None))
    if read is not None:
        for arm in read.rows:
            curves = np.array(read.each("by position", arm))
            if len(curves):
                axes[2].plot(curves.mean(0), color=color_of(arm), label=arm)
        axes[2].set(xlabel="position in the window", ylabel="loss (nats)", title="By position")
        label_lines(axes[2])
    return drawing
