"""The figure of results beyond the trained length."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from attnlab.plotting import drawing
from attnlab.plotting.curves import DONE, Curve, FigureData, band, by_name, panels_for


def lengths(data: FigureData, width: float | None = None) -> Figure | None:
    """Draw loss or accuracy by position beyond the trained length, which is marked, over seeds.

    A point is the mean over a 32nd of the positions; the width is as for `draw`.
    """
    groups = {
        name: longer
        for name, group in by_name(data.runs).items()
        if (longer := [run.longer for run in group if run.status in DONE and run.longer])
    }
    if not groups:
        return None
    style, every = drawing.looks(groups), [x for longer in groups.values() for x in longer]
    figure, (place,) = panels_for(1, width, wide=8.0)
    for name, longer in groups.items():
        band(place, [_means(x.values) for x in longer], f"{name} (n={len(longer)})", style[name])
    for trained in {x.trained for x in every}:
        place.axvline(trained - 0.5, color="0.4", ls=":", lw=1.5)
        place.annotate(f" {trained}", (trained, 0.95), xycoords=("data", "axes fraction"))
    place.set(xlabel="position; dotted: the trained length", xlim=(0, None))
    place.set(title="longer than trained", ylabel=" or ".join(sorted({x.measure for x in every})))
    drawing.label_lines(place)
    return figure


def _means(values: Sequence[float]) -> Curve:
    """The means over pieces of a 32nd of the positions, at the middle of each."""
    size = max(1, len(values) // 32)
    pieces = {t: np.array(values[t : t + size], float) for t in range(0, len(values), size)}
    return [
        (t + size // 2, float(np.nanmean(piece)))
        for t, piece in pieces.items()
        if not np.isnan(piece).all()
    ]
