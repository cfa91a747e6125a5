"""The figure of nearby_tokens."""

import numpy as np
from matplotlib.figure import Figure

from attnlab.claims.results import Evidence, PredictionResult
from attnlab.plotting.drawing import COLORS, panels

from .measure import BANDS


def figure(evidence: Evidence) -> Figure:
    drawing, axes = panels(2, width=6.0, height=4.8)
    names = [str(a) if a == b else f"{a} to {b}" for a, b in BANDS]
    for axis, color, key, name, title in (
        (axes[0], COLORS[6], "bands", "shakespeare", "All characters of TinyShakespeare"),
        (axes[1], COLORS[1], "bands, brackets", "brackets", "Closing brackets of the plays"),
    ):
        found = evidence.shown(name)
        if found is None:
            continue
        rows = _rows(found, key)
        axis.bar(range(len(BANDS)), rows.mean(0), color=color, alpha=0.35)
        for row in rows:
            axis.plot(range(len(BANDS)), row, "o", color=color, alpha=0.75)
        axis.set_xticks(range(len(BANDS)), names, fontsize=12)
        axis.set(
            xlabel="keys taken away (characters back)",
            ylabel="loss gained (nats)",
            title=title,
        )
    return drawing


def _rows(found: PredictionResult, key: str) -> np.ndarray:
    (arm,) = found.rows
    return np.array(found.each(key, arm))
