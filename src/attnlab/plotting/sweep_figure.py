"""The picture that a sweep ends with: each variant against the baseline, from metrics alone."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnlab.plotting.drawing import MARKERS, LineStyle, label_lines, looks, panels, styled
from attnlab.plotting.figures import band


@dataclass(frozen=True)
class SettingResult:
    """What the runs of one setting ended with, over its seeds.

    Args:
        name: of the setting; a variant's own name gives it the variant's color.
        differences: validation loss minus the baseline's of the same seed, nats; empty for the
            baseline.
        by_position: validation loss at each position, nats, one sequence per run.
        shares: name of a measure between 0 and 1 -> its value in each run.
    """

    name: str
    differences: Sequence[float] = ()
    by_position: Sequence[Sequence[float]] = ()
    shares: Mapping[str, Sequence[float]] = field(default_factory=dict)


def sweep_figure(settings: Sequence[SettingResult], unit: str) -> Figure:
    """Draw paired differences, loss by position, and what attention does at the end.

    Panels for which no run has numbers are left out.

    Args:
        settings: the baseline and what is compared with it.
        unit: what one prediction is, "character".

    Raises:
        ValueError: there are more settings than lines that can be told apart.
    """
    style = looks(each.name for each in settings)
    drawers = [_differences]
    if any(each.by_position for each in settings):
        drawers.append(_positions)
    if any(each.shares for each in settings):
        drawers.append(_shares)
    with styled():
        figure, axes = panels(len(drawers), width=5.6, height=4.4)
        for place, drawer in zip(axes, drawers, strict=True):
            drawer(place, settings, style, unit)
    return figure


def _differences(
    place: Axes, settings: Sequence[SettingResult], style: Mapping[str, LineStyle], unit: str
) -> None:
    """Draw every seed's difference, and the median as a bar."""
    shown = [each for each in settings if each.differences]
    for y, each in enumerate(reversed(shown)):
        color, kind = style[each.name]
        spread = np.linspace(-0.15, 0.15, len(each.differences))
        place.plot(each.differences, y + spread, MARKERS[kind], color=color, alpha=0.75)
        place.vlines(float(np.median(each.differences)), y - 0.3, y + 0.3, color=color, lw=3)
    place.axvline(0, color="black", lw=1)
    place.locator_params(axis="x", nbins=5)
    names = [textwrap.fill(each.name, 20, break_long_words=False) for each in reversed(shown)]
    place.set_yticks(range(len(shown)), names)
    place.set_ylim(-0.6, len(shown) - 0.4)
    place.set(title="each seed minus the baseline", xlabel=f"validation loss (nats per {unit})")


def _positions(
    place: Axes, settings: Sequence[SettingResult], style: Mapping[str, LineStyle], unit: str
) -> None:
    """Draw the mean over runs of the loss at each position."""
    for each in settings:
        band(place, [list(enumerate(x)) for x in each.by_position], each.name, style[each.name])
    place.set(title="loss by position", xlabel="position", ylim=(0, None))
    place.set_ylabel(f"validation loss (nats per {unit})")
    label_lines(place)


def _shares(
    place: Axes, settings: Sequence[SettingResult], style: Mapping[str, LineStyle], unit: str
) -> None:
    """Draw the measures as rows of dots, one for each setting, at its mean over runs."""
    names = list(dict.fromkeys(name for each in settings for name in each.shares))
    for n, each in enumerate(settings):
        color, kind = style[each.name]
        shift = 0.25 * (1 - 2 * n / max(1, len(settings) - 1))
        found = [(y, each.shares[name]) for y, name in enumerate(names) if name in each.shares]
        means = [float(np.mean(values)) for _, values in found]
        rows = [y + shift for y, _ in found]
        place.plot(means, rows, MARKERS[kind], color=color, label=each.name)
    place.set_yticks(range(len(names)), [textwrap.fill(name, 14) for name in names])
    place.set(title="attention at the end", xlim=(-0.04, 1.04), ylim=(-0.6, len(names) - 0.4))
    place.set_xlabel("mean over layers and heads")
    place.legend(fontsize=11, loc="center left", bbox_to_anchor=(1, 0.5))
