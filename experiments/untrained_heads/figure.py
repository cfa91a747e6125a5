"""The figure of untrained_heads."""

import numpy as np
from matplotlib.figure import Figure

from attnlab.claims.results import Evidence
from attnlab.plotting.drawing import COLORS, panels

from .measure import ANSWER, QUERY, WORDS


def figure(evidence: Evidence) -> Figure:
    found = evidence.shown("peaks")
    drawing, axes = panels(2, width=6.4)
    if found is None:
        return drawing
    shares = 100 * np.array(found.each("peaks"))  # (seeds, words)
    places = np.arange(len(WORDS))
    colors = [COLORS[1] if word == ANSWER else "0.6" for word in places]
    axes[0].barh(places, shares.mean(0), color=colors)
    axes[0].errorbar(shares.mean(0), places, xerr=shares.std(0), fmt="none", ecolor="0.2", lw=1.5)
    axes[0].axvline(100 / len(WORDS), color="black", linestyle="--", linewidth=1.5)
    axes[0].set_yticks(places, WORDS, fontsize=11)
    axes[0].invert_yaxis()  # the sentence is read downward
    axes[0].set(
        xlabel="heads that peak there (%)",
        xlim=(0, 14),
        title=f'Where heads look from "{WORDS[QUERY]}"',
    )
    axes[0].text(100 / len(WORDS) + 1.2, 0, "dashed: chance", va="center", fontsize=12)
    for x, (name, color) in enumerate((("cosine", COLORS[6]), ("cosine, identity", COLORS[0]))):
        values = found.each(name)
        spread = np.linspace(-0.15, 0.15, len(values)) if len(values) > 1 else np.zeros(1)
        axes[1].plot(x + spread, values, "o", color=color)
    axes[1].set_xticks([0, 1], ["untrained\npatterns", "identity\npattern"])
    axes[1].set(
        xlim=(-0.6, 1.6),
        ylim=(0, 0.3),
        ylabel="mean |cosine| of two heads",
        title="Outputs of two heads",
    )
    return drawing
