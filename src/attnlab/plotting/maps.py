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
PAST, FUTURE, NEGATIVE = (
    LinearSegmentedColormap.from_list("weights", stops, 255)
    for stops in (
        ("#ffffff", "#dfebf7", "#9ecae1", "#4292c6", "#0b519c", "#06264f"),
        ("#ffffff", "#feead6", "#fdb97d", "#ee7a1b", "#b04303", "#571c02"),
        ("#ffffff", "#e0f3e2", "#a5d9ab", "#4daf5f", "#167a33", "#063d17"),
    )
)
VISIBLE = str.maketrans("\n \t", "↵␣→")
BLOCKED, NOT_A_NUMBER = (222, 222, 226), (0, 190, 230)


def shades(pattern: npt.NDArray[np.floating], mask: npt.NDArray[np.bool_]) -> Pixels:
    """The colors of a pattern (T, T) with its mask (T, T), True = may attend; a pixel a weight."""
    finite, root = np.isfinite(pattern), np.abs(np.nan_to_num(pattern)).clip(0, 1) ** 0.5
    hue = np.where(pattern < 0, 2, np.triu(np.ones(pattern.shape, int), 1))[..., None]
    colors = np.choose(hue, [x(root, bytes=True)[..., :3] for x in (PAST, FUTURE, NEGATIVE)])
    colors[~mask & (pattern == 0)] = BLOCKED
    colors[~finite] = NOT_A_NUMBER
    return colors


def sheet(pictures: Sequence[Pixels], columns: int, gap: int = 3) -> Pixels:
    """Pictures (H, W, 3), of any sizes, side by side in equal cells on white."""
    height, width = (max(x.shape[side] for x in pictures) + gap for side in (0, 1))
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

    T, labels = len(text), [x.translate(VISIBLE)[:12] for x in text]
    height, width = (x + 3 for x in pictures[0].shape[:2])
    rows = -(-len(pictures) // columns)
    picture = sheet(pictures, columns)
    size = max(0.12, 2.4 / T)  # inches of a weight; a title needs the width of a short text
    width_in, height_in = (side * size + 1.2 for side in (picture.shape[1], picture.shape[0]))
    figure = Figure(figsize=(width_in, height_in))
    axes = figure.subplots()
    axes.imshow(picture, interpolation="nearest")
    for number, title in enumerate(titles):
        place = number % columns * width - 0.5, number // columns * height - 0.8
        axes.text(*place, title, fontsize=8, va="bottom")
    axes.set_xticks([x * width + i for x in range(columns) for i in range(T)], labels * columns)
    axes.set_yticks([y * height + i for y in range(rows) for i in range(T)], labels * rows)
    axes.tick_params(labelsize=7, length=0)
    axes.tick_params(axis="x", rotation=0 if max(map(len, labels)) < 3 else 90)
    axes.set(xlabel="key", ylabel="query")
    bare(axes)
    return figure


def bare(axes: "Axes") -> None:
    """Leave out the lines of a panel that shows a picture."""
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
