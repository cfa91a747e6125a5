"""Heatmaps of patterns: blue for the past, orange for the future, green below 0, on a square-root
scale; gray is blocked, cyan is not a number."""

import numpy as np
import numpy.typing as npt
from matplotlib.colors import LinearSegmentedColormap

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
