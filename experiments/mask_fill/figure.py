"""The figure of mask_fill."""

import math

from matplotlib.figure import Figure

from attnlab.claims.results import Evidence
from attnlab.plotting.drawing import dots, panels

from . import LEAK_FREE, UNSCALED


def figure(evidence: Evidence) -> Figure:
    drawing, axes = panels(2, width=6.4)
    start, trained = evidence.shown("finite_at_start"), evidence.shown("finite_holds")
    future = []
    if start is not None:
        future += [(f"{name} start", start.each(name)) for name in ("zero_fill", "finite_fill")]
    if trained is not None:
        future.append(("finite_fill trained", trained.each("future mass", UNSCALED.name)))
    losses: dict[str, list[float]] = {}
    for name in ("zero_fill_loss", "finite_is_unused"):
        found = evidence.shown(name)
        losses |= {} if found is None else found.scores
    for axis, groups in ((axes[0], future), (axes[1], list(losses.items()))):
        finite = [(name, [x for x in values if math.isfinite(x)]) for name, values in groups]
        dots(axis, finite, [name.split()[0] for name, _ in finite])
    axes[0].set(ylabel="largest weight on the future", ylim=(-0.05, 1.05), title="Patterns")
    axes[1].axhline(LEAK_FREE, color="black", linestyle="--")
    style = {"transform": axes[1].get_yaxis_transform(), "va": "top", "fontsize": 12}
    axes[1].text(0.02, LEAK_FREE - 0.04, "no causal model has been seen below this loss", **style)
    axes[1].set(ylabel="validation loss (nats)", ylim=(0, None), title="TinyShakespeare")
    return drawing
