"""The figure of path_length."""

import statistics

from matplotlib.figure import Figure

from attnlab.claims.results import Evidence
from attnlab.plotting.drawing import COLORS, label_lines, panels

from . import FAR, NEAR, arm

DISTANCES = (NEAR, 16, FAR, 64)


def figure(evidence: Evidence) -> Figure:
    drawing, axes = panels(1, width=8.0)
    scores: dict[str, list[float]] = {}
    for name in ("falls", "stays", "between"):
        found = evidence.shown(name)
        scores |= {} if found is None else found.scores
    for color, attn in ((COLORS[1], "recurrent"), (COLORS[0], "sdpa")):
        means = {n: scores[arm(attn, n).name] for n in DISTANCES if arm(attn, n).name in scores}
        for n, values in means.items():
            axes[0].plot([n] * len(values), values, "o", color=color, alpha=0.6)
        label = arm(attn, 0).name.partition(",")[0]
        axes[0].plot(
            list(means), list(map(statistics.fmean, means.values())), color=color, label=label
        )
    axes[0].axhline(1 / 8, color="0.4", linestyle=":")
    axes[0].set_xscale("log", base=2)
    axes[0].set_xticks(DISTANCES, [str(n) for n in DISTANCES])
    axes[0].set(
        ylim=(0, 1.05),
        xlabel="distance of the answer, positions",
        ylabel="share of right answers",
        title="Copying 4 symbols, 500 steps",
    )
    label_lines(axes[0])
    return drawing
