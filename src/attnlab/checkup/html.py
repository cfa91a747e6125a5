"""A report as one self-contained HTML page, its maps drawn as SVG by hand."""

import math
from importlib.resources import files

from torch import Tensor

from attnlab.checkup.diagnoses import CAUSES
from attnlab.checkup.findings import Report

_SHADES = ("#f4f6f8", "#cfe3ee", "#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#084594")
_AHEAD = ("#f4f6f8", "#fde0cf", "#fcbba1", "#fc9272", "#fb6a4a", "#de2d26", "#a50f15")
_UNTRIED = "#dddddd"
_LEAST = 1e-8


def page(report: Report) -> str:
    """The page, as a string."""
    from jinja2 import Environment

    template = files("attnlab.checkup").joinpath("report.html.j2").read_text(encoding="utf-8")
    pictures = [
        {"title": title, "svg": drawn(map_)}
        for finding in report.findings
        for title, map_ in finding.maps.items()
    ]
    titles = {name: cause.title for name, cause in CAUSES.items()}
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(
        report=report, pictures=pictures, titles=titles
    )


def drawn(map_: Tensor) -> str:
    """A (T, T) map of shares from 0 to 1 as an SVG: rows read, columns are read, on a log scale.

    What is above the diagonal, where a causal model has nothing, is red.
    """
    T = len(map_)
    cell = max(2, 320 // T)
    size = T * cell
    parts = [
        f'<svg viewBox="0 0 {size} {size}" width="{size}" height="{size}" role="img" '
        f'shape-rendering="crispEdges">'
    ]
    for t in range(T):
        colors = [_color(float(map_[t, j]), ahead=j > t) for j in range(T)]
        parts += _bars(colors, t, cell)
    parts.append("</svg>")
    return "".join(parts)


def _color(value: float, *, ahead: bool) -> str:
    if math.isnan(value):
        return _UNTRIED
    shades = _AHEAD if ahead else _SHADES
    if value <= _LEAST:
        return shades[0]
    height = 1 + math.log10(min(value, 1.0)) / -math.log10(_LEAST)  # 0 to 1
    return shades[1 + round(height * (len(shades) - 2))]


def _bars(colors: list[str], t: int, cell: int) -> list[str]:
    """One row, with neighbors of one color drawn as one bar."""
    ends = [j for j in range(1, len(colors)) if colors[j] != colors[j - 1]] + [len(colors)]
    starts = [0, *ends[:-1]]
    return [
        f'<rect x="{a * cell}" y="{t * cell}" width="{(b - a) * cell}" height="{cell}" '
        f'fill="{colors[a]}"/>'
        for a, b in zip(starts, ends, strict=True)
    ]
