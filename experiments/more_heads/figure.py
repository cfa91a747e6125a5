"""The figure of more_heads."""

from matplotlib.figure import Figure

from attnlab.claims.results import Evidence
from attnlab.plotting.drawing import dots, panels


def figure(evidence: Evidence) -> Figure:
    found, between = evidence.shown("early"), evidence.shown("between")
    drawing, axes = panels(1, width=8)
    if found is not None:
        baseline = found.scores["1 head"]
        scores = dict(found.scores) | (dict(between.scores) if between is not None else {})
        groups = [
            (name, [a - b for a, b in zip(scores[name], baseline, strict=False)])
            for name in ("1 head", "2 heads", "4 heads", "8 heads")
            if name in scores
        ]
        dots(axes[0], groups)
        axes[0].set(ylabel="loss minus that of one head (nats)", title="Heads of one width")
    return drawing
