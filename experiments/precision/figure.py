"""The figure of precision."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from attnlab.claims.results import Evidence
from attnlab.plotting.drawing import BLACK, DASHES, MARKERS, PURPLE, label_lines, panels

from . import DTYPES, KERNELS, SCORES

ORDER = ("fp32", "fp16", "bf16")  # of the figure: fewer and fewer bits
LABELS = {"manual": "manual", "sdpa": "SDPA", "naive": "scores in the inputs' dtype"}


def table(evidence: Evidence) -> list[Mapping[str, Any]]:
    """The largest error of each kernel, averaged over seeds."""
    found = evidence.shown("bf16_worst")
    if found is None:
        return []
    return [
        {"kernel": kernel, "scores": f"x{factor}"}
        | {dtype: _mean(found.each(f"{kernel} {dtype} x{factor}")) for dtype in DTYPES}
        for factor in SCORES
        for kernel in KERNELS
    ]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def figure(evidence: Evidence) -> Figure:
    drawing, axes = panels(len(SCORES), width=6.2, share=True)
    titles = ("Scores of unit size", "Scores 64 times as large")
    for axis, factor, title in zip(axes, SCORES, titles, strict=True):
        shown = [row for row in table(evidence) if row["scores"] == f"x{factor}"]
        for i, row in enumerate(shown):
            heights = [float(row[dtype]) for dtype in ORDER]
            color = PURPLE if row["kernel"] == "naive" else BLACK
            label = LABELS[row["kernel"]]
            line = {"marker": MARKERS[i], "linestyle": DASHES[i], "color": color}
            axis.plot(range(len(ORDER)), heights, label=label, **line)
        axis.set_xticks(range(len(ORDER)), ORDER)
        axis.set(yscale="log", title=title)
    axes[0].set(ylabel="largest error against fp64")
    label_lines(axes[-1])
    return drawing
