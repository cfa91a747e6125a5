"""The figure of parity."""

import numpy as np
from matplotlib.figure import Figure

from attnlab.claims.results import Evidence
from attnlab.plotting.drawing import DASHES, label_lines, looks, panels

from . import LENGTHS, TRAINED_AT, UP_TO_1, UP_TO_2

ARMS = {"up_to_2": (UP_TO_2, "delta_net_negative"), "up_to_1": (UP_TO_1, "delta_net")}


def figure(evidence: Evidence) -> Figure:
    drawing, axes = panels(len(LENGTHS), width=6.2, share=True)
    for axis, steps in zip(axes, LENGTHS, strict=True):
        for name, (arm, variant) in ARMS.items():
            if (found := evidence.shown(f"{name}_{steps}")) is None:
                continue
            curves = np.array(found.each("by position", f"{arm.name}, {steps} steps"))
            bits = np.arange(1, curves.shape[1] + 1)
            color, dash = looks(variant for _, variant in ARMS.values())[variant]
            axis.plot(bits, curves.T, color=color, alpha=0.25, lw=0.8, label="_")
            axis.plot(bits, curves.mean(0), color=color, ls=DASHES[dash], label=arm.name)
        axis.axvline(TRAINED_AT + 0.5, color="0.4", linestyle=":", label="_")
        axis.set(xlabel="bits so far", ylim=(0.4, 1.02), title=f"{steps:,} steps")
    axes[0].set(ylabel="share of right answers")
    label_lines(axes[-1])
    return drawing
