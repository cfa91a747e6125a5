"""The figure of quadratic_cost."""

import torch
from matplotlib.figure import Figure

from attnlab.claims.results import Evidence
from attnlab.plotting.drawing import BLACK, DASHES, MARKERS, label_lines, panels

from . import FITTED, KERNELS, SIZES


def figure(evidence: Evidence) -> Figure:
    drawing, axes = panels(2, width=6)
    for axis, part, what, title in (
        (axes[0], "time_manual", "CPU seconds, forward and backward", "Time"),
        (axes[1], "memory_manual", "peak bytes", "Memory"),
    ):
        axis.set_xscale("log", base=2)
        axis.set_xticks(SIZES[::2], [str(T) for T in SIZES[::2]])
        axis.set(yscale="log", xlabel="T", ylabel=what, title=title)
        found = evidence.shown(part)
        if found is None:
            continue
        for i, name in enumerate(KERNELS):
            best = torch.tensor(found.each(name), dtype=torch.float64).min(0).values
            line = {"marker": MARKERS[i], "linestyle": DASHES[i], "color": BLACK}
            axis.plot(SIZES, best, label=name, **line)
        power = 2 if part == "time_manual" else 1
        guide = 0.4 * best[-1] * (torch.tensor(FITTED) / SIZES[-1]) ** power  # below SDPA's line
        axis.plot(FITTED, guide, color="0.5", linewidth=1.2, label=f"slope {power}")
        label_lines(axis)
    return drawing
