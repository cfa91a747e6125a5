"""The figure of other_settings."""

from matplotlib.figure import Figure

from attnlab.claims.results import Evidence
from attnlab.plotting.drawing import dots, panels

from . import SETTINGS

PANELS = {
    "unscaled": (["unscaled"], "nats above the scaled model", "Without the scale"),
    "flipped": (["flipped"], "nats above the causal mask", "Flipped mask"),
    "tied free": (["tied", "free"], "times the rms of a weight", "Distance of identical heads"),
}
VARIANTS = {"tied": "identical_heads", "free": "identical_qkv"}


def figure(evidence: Evidence) -> Figure:
    drawing, axes = panels(len(PANELS), width=4.2, height=4.2)
    for axis, (kinds, unit, title) in zip(axes, PANELS.values(), strict=True):
        groups, variants = [], []
        for kind in kinds:
            for setting in SETTINGS:
                if (found := evidence.shown(f"{kind}_{setting}")) is not None:
                    groups.append((f"{kind} {setting}" if kinds[1:] else setting, found.values))
                    variants.append(VARIANTS.get(kind, kind))
        dots(axis, groups, variants)
        axis.axhline(0, color="0.4", linestyle=":")
        axis.set(ylabel=unit, title=title)
    return drawing
