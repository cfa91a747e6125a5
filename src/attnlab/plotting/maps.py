"""Heatmaps of patterns: blue for the past, orange for the future, green below 0, on a square-root
scale; gray is blocked, cyan is not a number.

Training draws with `shades` alone, which needs no figures of matplotlib and half a second less.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from matplotlib.colors import LinearSegmentedColormap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Pixels = npt.NDArray[np.uint8]  # (height, width, 3)
PAST = LinearSegmentedColormap.from_list(
    "past", ("#ffffff", "#dfebf7", "#9ecae1", "#4292c6", "#0b519c", "#06264f"), 255
)
FUTURE = LinearSegmentedColormap.from_list(
    "future", ("#ffffff", "#feead6", "#fdb97d", "#ee7a1b", "#b04303", "#571c02"), 255
)
NEGATIVE = LinearSegmentedColormap.from_list(
    "negative", ("#ffffff", "#e0f3e2", "#a5d9ab", "#4daf5f", "#167a33", "#063d17"), 255
)
BLOCKED = (222, 222, 226)
NOT_A_NUMBER = (0, 190, 230)
GAP = 3  # pixels between two pictures
VISIBLE = str.maketrans("\n \t", "↵␣→")  # signs for characters that leave no ink
LONGEST_SYMBOL = 12  # characters of a token that are shown


def shades(pattern: npt.NDArray[np.floating], mask: npt.NDArray[np.bool_]) -> Pixels:
    """The colors of a pattern (T, T) with its mask (T, T), True = may attend; a pixel a weight."""
    root = np.abs(np.nan_to_num(pattern)).clip(0, 1) ** 0.5
    is_future = np.triu(np.ones(pattern.shape, bool), 1)
    colors: Pixels = PAST(root, bytes=True)[..., :3]
    colors[is_future] = FUTURE(root[is_future], bytes=True)[..., :3]
    colors[pattern < 0] = NEGATIVE(root[pattern < 0], bytes=True)[..., :3]
    colors[~mask & (pattern == 0)] = BLOCKED
    colors[~np.isfinite(pattern)] = NOT_A_NUMBER
    return colors


def sheet(pictures: Sequence[Pixels], columns: int, gap: int = GAP) -> Pixels:
    """Pictures (H, W, 3), of any sizes, side by side in equal cells on white."""
    height = max(x.shape[0] for x in pictures) + gap
    width = max(x.shape[1] for x in pictures) + gap
    rows = -(-len(pictures) // columns)
    page = np.full((rows * height, columns * width, 3), 255, np.uint8)
    for number, picture in enumerate(pictures):
        y, x = number // columns * height, number % columns * width
        page[y : y + picture.shape[0], x : x + picture.shape[1]] = picture
    return page


def grid(
    pictures: Sequence[Pixels], titles: Sequence[str], text: Sequence[str], *, columns: int
) -> "Figure":
    """Draw patterns (T, T, 3) of a text of T symbols side by side, queries down and keys to the
    right, with the symbols at the left of each row and below each column."""
    from matplotlib.figure import Figure

    T = len(text)
    labels = [symbol.translate(VISIBLE)[:LONGEST_SYMBOL] for symbol in text]
    cell = T + GAP
    rows = -(-len(pictures) // columns)
    picture = sheet(pictures, columns)
    inch = max(0.12, 2.4 / T)  # inches of a weight; a title needs the width of a short text
    margin = 1.2  # inches, for the symbols
    figure = Figure(figsize=(picture.shape[1] * inch + margin, picture.shape[0] * inch + margin))
    axes = figure.subplots()
    axes.imshow(picture, interpolation="nearest")
    for number, title in enumerate(titles):
        row, column = divmod(number, columns)
        axes.text(column * cell - 0.5, row * cell - 0.8, title, fontsize=8, va="bottom")
    axes.set_xticks(places_of_symbols(columns, T), labels * columns)
    axes.set_yticks(places_of_symbols(rows, T), labels * rows)
    axes.tick_params(labelsize=7, length=0)
    are_short = max(map(len, labels)) < 3
    axes.tick_params(axis="x", rotation=0 if are_short else 90)
    lettered = rows - 1 if are_short else 0  # above the last row; long symbols have no room there
    for row in range(lettered):
        for place, symbol in zip(places_of_symbols(columns, T), labels * columns, strict=True):
            axes.text(place, row * cell + T - 0.3, symbol, fontsize=7, ha="center", va="top")
    axes.set(xlabel="key", ylabel="query", ylim=(rows * cell - GAP - 0.5, -0.5))
    bare(axes)
    return figure


def places_of_symbols(count: int, T: int) -> list[int]:
    """Where the T symbols of each of `count` pictures of a `sheet` stand along one side."""
    places: list[int] = []
    for number in range(count):
        start = number * (T + GAP)
        places += range(start, start + T)
    return places


def bare(axes: "Axes") -> None:
    """Leave out the lines of a panel that shows a picture."""
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
