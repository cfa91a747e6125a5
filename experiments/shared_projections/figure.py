"""The figure of shared_projections."""

from matplotlib.figure import Figure

from attnlab.claims.results import Evidence
from attnlab.plotting.drawing import dots, panels

from . import SHARED_QK, SHARED_QKV


def figure(evidence: Evidence) -> Figure:
    drawing, axes = panels(1, width=8.0)
    groups = []
    for name, arm in (("queries_and_keys", SHARED_QK.name), ("all_three", SHARED_QKV.name)):
        found = evidence.shown(name)
        if found is not None:
            groups.append((arm, found.values))
    dots(axes[0], groups)
    axes[0].axhline(0, color="0.4", linestyle=":")
    axes[0].set(
        ylabel="loss minus that of separate\nprojections (nats)",
        title="TinyShakespeare, 600 steps",
    )
    return drawing
