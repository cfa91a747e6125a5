"""Heatmaps of patterns and of cosines between heads, and the loss by position, as pixels."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import matplotlib
import matplotlib.colors
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from attnlab.plotting.drawing import COLORS, Pixels, panels, pixels, styled

Matrix = npt.NDArray[np.float32]
Font = ImageFont.FreeTypeFont | ImageFont.TransposedFont

LARGEST_WIDTH = 8000  # pixels; some viewers refuse more
FONT = Path(matplotlib.get_data_path(), "fonts/ttf/DejaVuSansMono.ttf")
INK, PAPER = "#1e1e1e", "#ffffff"
EDGE, BLOCKED, NOT_A_NUMBER = (0, 130, 60), (222, 222, 226), (0, 190, 230)
# The colors of `attnlab explore`, for weights on the past, weights on the future, and below 0.
PAST, FUTURE, NEGATIVE = (
    matplotlib.colors.LinearSegmentedColormap.from_list("weights", stops, 255)
    for stops in (
        ("#ffffff", "#dfebf7", "#9ecae1", "#4292c6", "#0b519c", "#06264f"),
        ("#ffffff", "#feead6", "#fdb97d", "#ee7a1b", "#b04303", "#571c02"),
        ("#ffffff", "#e0f3e2", "#a5d9ab", "#4daf5f", "#167a33", "#063d17"),
    )
)
LONGEST = 12  # characters of a token's label
MOST_NUMBERS = 8  # rows of a matrix whose numbers are written
SPECIAL = str.maketrans({"\n": "↵", " ": "␣", "\t": "→"})


@dataclass(frozen=True)
class Panel:
    """One heatmap."""

    title: str  # the line above it
    values: Matrix  # (rows, columns)
    # True = may attend; None blocks nothing, and then columns are not positions of the rows' text.
    mask: npt.NDArray[np.bool_] | None = None


def grid(panels: Sequence[Panel], text: Sequence[str], *, columns: int, heading: str) -> Pixels:
    """Draw patterns side by side, with queries downwards and keys to the right.

    The color shows the weight on a square-root scale, blue for the position itself and earlier
    ones, orange for later ones, and green below 0. The green line is the edge of the mask, gray
    cells are blocked and have no weight, and cyan cells are not a number. The panels are patterns
    (T, T) of a text of T symbols, with `columns` in each row and the heading above all of them.
    """
    room = (LARGEST_WIDTH - 200) // columns - 150
    cell = max(1, min(16, max(3, 448 // len(text)), room // len(text)))
    labels = tuple(_cut(symbol.translate(SPECIAL), LONGEST) for symbol in text)
    return _page(panels, heading, labels, labels, ("query", "key"), columns, cell)


def matrices(titles: Sequence[str], values: Sequence[Matrix], heading: str) -> Pixels:
    """Draw matrices (H, H) between heads, with a number in each cell where there is room."""
    heads = tuple(map(str, range(len(values[0]))))
    panels = [Panel(title, matrix) for title, matrix in zip(titles, values, strict=True)]
    return _page(panels, heading, heads, heads, ("head", "head"), len(panels), 40, weights=False)


def alignment(
    pattern: Matrix, source: Sequence[str], target: Sequence[str], heading: str
) -> Pixels:
    """Draw the attention between two sentences: target words downward, source words to the right.

    The pattern is (T, S) for T - 1 target and S - 1 source words, and the ends of the sentences.
    """
    down, across = (*target, "⏎"), (*source, "⏎")
    return _page([Panel("", pattern)], heading, down, across, ("target", "source"), 1, 26)


def curve(values: Sequence[float], heading: str) -> Pixels:
    """Draw the loss at each position, in nats; values that are not finite are left out."""
    with styled():
        figure, (place,) = panels(1, width=6.4, height=3.6)
        place.plot(range(len(values)), values, color=COLORS[0])
        place.set(xlabel="position", ylabel="loss (nats)")
        place.set_title(heading, fontsize=12)
        return pixels(figure)


def _page(
    panels: Sequence[Panel],
    heading: str,
    down: Sequence[str],
    across: Sequence[str],
    axes: tuple[str, str],
    columns: int,
    cell: int,
    *,
    weights: bool = True,
) -> Pixels:
    """Draw panels with labels and a color bar by Pillow; Matplotlib takes 0.3 s for the labels."""
    wide, high = cell * len(across), cell * len(down)
    size = max(8, min(12, cell - 1))  # of the labels
    left, below = (40 + int(max(map(_font(size).getlength, labels))) for labels in (down, across))
    rows = -(-len(panels) // columns)
    width = max(left + columns * (wide + 24) + 70, 360)
    page = Image.new("RGB", (width, 40 + rows * (high + 32) + below), PAPER)
    draw = ImageDraw.Draw(page)
    draw.text((10, 10), _cut(heading, page.width // 8 - 2), INK, _font(13))
    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        x, y = left + column * (wide + 24), 60 + row * (high + 32)
        draw.text((x, y - 16), panel.title, INK, _font(11))
        page.paste(Image.fromarray(shades(panel, cell, weights=weights)), (x, y))
        if not weights and len(down) <= MOST_NUMBERS:
            for (i, j), value in np.ndenumerate(panel.values):
                center = (x + (j + 0.5) * cell, y + (i + 0.5) * cell)
                ink = PAPER if abs(value) > 0.7 else INK
                draw.text(center, f"{value:.2f}", ink, _font(11), "mm")
        if column == 0:
            for i, label in _labels(down, cell):
                draw.text((x - 6, y + (i + 0.5) * cell), label, INK, _font(size), "rm")
            middle = y + (high - _font(11).getlength(axes[0])) / 2
            draw.text((4, middle), axes[0], INK, _font(11, upright=True))
        if number + columns >= len(panels):
            _label_columns(draw, across, x, y + high + 5, cell, size)
            draw.text((x + wide // 2, y + high + below - 18), axes[1], INK, _font(11), "mt")
    below_0 = not weights or any((panel.values < 0).any() for panel in panels)
    _color_bar(page, draw, weights, -1 if below_0 else 0, panels[0].mask is None)
    return np.asarray(page)


def _label_columns(
    draw: ImageDraw.ImageDraw, symbols: Sequence[str], x: int, y: int, cell: int, size: int
) -> None:
    """Write labels below the columns of a panel, upright unless they are short."""
    for j, label in _labels(symbols, cell):
        middle = x + (j + 0.5) * cell
        if len(label) <= 2 or cell < 6:
            draw.text((middle, y), label, INK, _font(size), "mt")
        else:  # an upright font has no anchors
            draw.text((middle - size / 2, y), label, INK, _font(size, upright=True))


def shades(panel: Panel, cell: int = 1, *, weights: bool = True) -> Pixels:
    """The colors of a panel, with `cell` pixels squared per value, and the edge of the mask."""
    finite = np.isfinite(panel.values)
    later = np.triu(np.full(panel.values.shape, panel.mask is not None), 1)
    colors = _colors(np.where(finite, panel.values, 0), weights, later)
    if panel.mask is not None:
        colors[~panel.mask & (panel.values == 0)] = BLOCKED
    colors[~finite] = NOT_A_NUMBER
    colors = colors.repeat(cell, 0).repeat(cell, 1)
    if panel.mask is not None and cell > 1:
        inside = panel.mask.repeat(cell, 0).repeat(cell, 1)
        for axis in (0, 1):  # one pixel on each side of the edge
            before, after = (np.roll(inside, by, axis) for by in (1, -1))
            edge = np.argwhere((inside != before) | (inside != after))
            inner = edge[(edge[:, axis] > 0) & (edge[:, axis] < inside.shape[axis] - 1)]
            colors[tuple(inner.T)] = EDGE
    return colors


def _colors(
    values: npt.NDArray[np.floating], weights: bool, later: npt.NDArray[np.bool_]
) -> Pixels:
    """Colors for weights, by the square root of their size, or for cosines, from -1 to 1."""
    values = values.clip(-1, 1)
    if not weights:
        return matplotlib.colormaps["RdBu_r"]((values + 1) / 2, bytes=True)[..., :3]
    root, hue = np.abs(values) ** 0.5, np.where(values < 0, 2, later)[..., None]
    return np.choose(hue, [map_(root, bytes=True)[..., :3] for map_ in (PAST, FUTURE, NEGATIVE)])


def _color_bar(
    page: Image.Image, draw: ImageDraw.ImageDraw, weights: bool, low: int, one: bool
) -> None:
    """Draw the scale from `low` to 1, in the colors of the past and the future unless `one`."""
    x, top, height = page.width - 58, 60, max(60, min(240, page.height - 110))
    places = np.linspace(1, low, height)  # from the top
    values = places * np.abs(places) if weights else places
    bar = _colors(values[:, None].repeat(12, 1), weights, np.arange(12) >= (12 if one else 6))
    page.paste(Image.fromarray(bar), (x, top))
    ticks = [0, 0.01, 0.1, 0.3, 0.6, 1] if weights else [0, 0.5, 1]
    for value in ticks + [-x for x in ticks if low and x > 0.01]:
        at = np.sign(value) * abs(value) ** 0.5 if weights else value
        y = top + (1 - at) / (1 - low) * height
        draw.text((x + 16, y), f"{value:g}", INK, _font(9), "lm")
    draw.text((x, top - 16), "weight" if weights else "cosine", INK, _font(10))


@lru_cache
def _font(size: int, *, upright: bool = False) -> Font:
    font = ImageFont.truetype(FONT, size)
    return ImageFont.TransposedFont(font, Image.Transpose.ROTATE_90) if upright else font


def _labels(symbols: Sequence[str], cell: int) -> list[tuple[int, str]]:
    """The symbols by position or, if cells are too small, the numbers of some positions."""
    some = range(0, len(symbols), max(1, len(symbols) // 5))
    return list(enumerate(symbols)) if cell >= 6 else [(i, str(i)) for i in some]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
