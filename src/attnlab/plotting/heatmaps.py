"""Heatmaps of attention patterns and of cosines between heads, and the loss by position.

Every function draws (height, width, 3) bytes.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from attnlab.plotting.drawing import COLORS, Pixels, panels, pixels, styled

Matrix = npt.NDArray[np.float32]

LARGEST_WIDTH = 8000  # pixels; some viewers refuse more
FONT = "DejaVu Sans Mono"  # comes with Matplotlib
INK, PAPER, EDGE = "#1e1e1e", "#ffffff", "#00823c"
BLOCKED, NOT_A_NUMBER = (222, 222, 226), (0, 190, 230)
LONGEST = 12  # characters of a token's label
MOST_NUMBERS = 8  # rows of a matrix whose numbers are written
SPECIAL = {"\n": "↵", " ": "␣", "\t": "→"}


@dataclass(frozen=True)
class Panel:
    """One heatmap.

    Args:
        title: the line above it.
        values: (rows, columns).
        mask: (rows, columns) bool, where a query may attend; None where nothing is blocked.
    """

    title: str
    values: Matrix
    mask: npt.NDArray[np.bool_] | None = None


def grid(panels: Sequence[Panel], text: Sequence[str], *, columns: int, heading: str) -> Pixels:
    """Draw patterns side by side, with queries downwards and keys to the right.

    The color shows the weight on a square-root scale. The green line is the edge of the mask,
    gray cells are blocked and have no weight, and blue cells are not a number.

    Args:
        panels: patterns (T, T), in reading order.
        text: T characters, or T tokens.
        columns: panels a row.
        heading: the line above all panels.
    """
    room = (LARGEST_WIDTH - 200) // columns - 150
    cell = max(1, min(16, max(3, 448 // len(text)), room // len(text)))
    labels = tuple(_label(symbol) for symbol in text)
    return _page("weight", len(panels), labels, labels, ("query", "key"), columns, cell).draw(
        panels, heading
    )


def matrices(titles: Sequence[str], values: Sequence[Matrix], heading: str) -> Pixels:
    """Draw matrices (H, H) between heads, with a number in each cell where there is room."""
    heads = tuple(map(str, range(len(values[0]))))
    page = _page("cosine", len(values), heads, heads, ("head", "head"), len(values), 40)
    return page.draw([Panel(t, v) for t, v in zip(titles, values, strict=True)], heading)


def alignment(
    pattern: Matrix, source: Sequence[str], target: Sequence[str], heading: str
) -> Pixels:
    """Draw the attention between two sentences: target words downward, source words to the right.

    Args:
        pattern: (T, S) weights; T and S count the ends of the sentences.
        source: S - 1 words.
        target: T - 1 words.
        heading: the line above.
    """
    down, across = (*target, "⏎"), (*source, "⏎")
    page = _page("weight", 1, down, across, ("target", "source"), 1, 26)
    return page.draw([Panel("", pattern)], heading)


def curve(values: Sequence[float], heading: str) -> Pixels:
    """Draw the loss at each position, in nats, on an axis that begins at 0.

    Values that are not finite are left out.
    """
    with styled():
        figure, (place,) = panels(1, width=6.4, height=3.6)
        place.plot(range(len(values)), values, color=COLORS[0])
        place.set(xlabel="position", ylabel="loss (nats)", ylim=(0, None))
        place.set_title(heading, fontsize=12)
        return pixels(figure)


class _Page:
    """Heatmaps with labels and a color bar, to be drawn many times with other values.

    Matplotlib takes 0.3 s for such a figure, most of it for the labels. They are kept as pixels
    ("blitting"), so that the next drawing takes 20 ms: a run draws every layer several times.
    """

    def __init__(
        self,
        colors: str,
        count: int,
        down: Sequence[str],
        across: Sequence[str],
        axes: tuple[str, str],
        columns: int,
        cell: int,
    ) -> None:
        weights = colors == "weight"
        norm = PowerNorm(0.5, 0, 1) if weights else Normalize(-1, 1)
        self.colors = ScalarMappable(norm, "magma_r" if weights else "RdBu_r")
        rows = -(-count // columns)
        size = (columns * (cell * len(across) + 90) + 110, rows * (cell * len(down) + 80) + 40)
        # At 72 dots an inch, a point is a pixel.
        self.figure = Figure(
            (max(size[0], 420) / 72, size[1] / 72), 72, facecolor=PAPER, layout="constrained"
        )
        self.canvas = FigureCanvasAgg(self.figure)
        self.heading = self.figure.suptitle(
            "", x=0.02, ha="left", fontsize=13, color=INK, parse_math=False
        )
        self.places = list(self.figure.subplots(rows, columns, squeeze=False).flat)
        for spare in self.places[count:]:
            spare.set_axis_off()
        del self.places[count:]
        self.titles, self.images, self.edges = [], [], []
        self.numbers: list[list[Text]] = []
        for number, place in enumerate(self.places):
            empty = np.zeros((len(down), len(across), 3), dtype=np.uint8)
            self.images.append(place.imshow(empty, interpolation="nearest"))
            self.edges.append(LineCollection([], colors=EDGE, linewidths=1.5))
            place.add_collection(self.edges[-1])
            self.titles.append(place.set_title("", loc="left", size=11, color=INK))
            if not weights and len(down) <= MOST_NUMBERS:
                where = np.ndindex(len(down), len(across))
                self.numbers.append(
                    [place.text(j, i, "", ha="center", va="center", size=11) for i, j in where]
                )
            if number % columns == 0:
                _name(place, place.yaxis, down, axes[0], cell)
            else:
                place.set_yticks([])
            if number + columns >= count:
                _name(place, place.xaxis, across, axes[1], cell)
            else:
                place.set_xticks([])
            place.spines[:].set_visible(False)
        bar = self.figure.colorbar(self.colors, ax=self.places, shrink=0.6, pad=0.02)
        bar.set_label("weight" if weights else "cosine", fontsize=11)
        bar.set_ticks([0, 0.01, 0.1, 0.3, 0.6, 1] if weights else [-1, -0.5, 0, 0.5, 1])
        bar.ax.tick_params(labelsize=9)
        self.labels: object = None  # pixels

    def draw(self, panels: Sequence[Panel], heading: str) -> Pixels:
        """Draw one panel in each place."""
        wide = int(self.figure.get_figwidth() * 72 / 8.5)  # characters of the heading
        self.heading.set_text(heading if len(heading) <= wide else heading[: wide - 1] + "…")
        for number, panel in enumerate(panels):
            self.titles[number].set_text(panel.title)
            self.images[number].set_data(self._shades(panel))
            self.edges[number].set_segments(_outline(panel.mask))
        for texts, panel in zip(self.numbers, panels, strict=False):
            for text, x in zip(texts, panel.values.flat, strict=True):
                text.set(text=f"{x:.2f}", color=PAPER if abs(x) > 0.7 else INK)
        moving: list[Artist] = [self.heading, *self.titles, *self.images, *self.edges]
        moving += [text for texts in self.numbers for text in texts]
        with warnings.catch_warnings():
            # A font without a glyph draws a box.
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
            if self.labels is None:
                self.figure.draw_without_rendering()  # lays the page out with its first titles
                self.figure.set_layout_engine("none")
                for artist in moving:
                    artist.set_animated(True)  # left out of canvas.draw()
                self.canvas.draw()
                self.labels = self.canvas.copy_from_bbox(self.figure.bbox)
            self.canvas.restore_region(self.labels)
            for artist in moving:
                self.figure.draw_artist(artist)
        return np.array(self.canvas.buffer_rgba())[..., :3]

    def _shades(self, panel: Panel) -> Pixels:
        """(rows, columns) values to (rows, columns, 3) colors."""
        finite = np.isfinite(panel.values)
        shades = self.colors.to_rgba(np.where(finite, panel.values, 0), bytes=True)[..., :3]
        if panel.mask is not None:
            shades[~panel.mask & (panel.values == 0)] = BLOCKED
        shades[~finite] = NOT_A_NUMBER
        return np.asarray(shades)


_page = lru_cache(maxsize=4)(_Page)


def _label(symbol: str) -> str:
    shown = "".join(SPECIAL.get(character, character) for character in symbol)
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"


def _name(place: Axes, axis: Axis, labels: Sequence[str], name: str, cell: int) -> None:
    """Write each cell's label beside an axis, or some positions where there is no room."""
    axis.set_label_text(name, fontsize=11, color=INK)
    if cell < 6:
        axis.set_major_locator(MaxNLocator(6, integer=True))
        axis.set_tick_params(labelsize=9)
        return
    # Plain texts: ticks would take five times as long.
    axis.set_ticks([])
    queries, longest = axis is place.yaxis, max(map(len, labels))
    size = min(12, cell if longest <= 2 else cell - 3)
    upright = queries or longest <= 2
    how: Any = {"family": FONT, "fontsize": size, "color": INK, "parse_math": False}
    for i, label in enumerate(labels):
        if queries:
            place.text(-0.8, i, label, ha="right", va="center", in_layout=False, **how)
        else:
            turn, below = 0 if upright else 90, place.get_ylim()[0] + 0.2
            place.text(
                i, below, label, ha="center", va="top", rotation=turn, in_layout=False, **how
            )
    axis.labelpad = 4 + size * (1 if upright and not queries else 0.61 * longest)


def _outline(mask: npt.NDArray[np.bool_] | None) -> list[list[tuple[float, float]]]:
    """Segments between the cells inside and outside a mask."""
    if mask is None:
        return []
    down = [
        [(j + 0.5, i - 0.5), (j + 0.5, i + 0.5)]
        for i, j in np.argwhere(mask[:, 1:] != mask[:, :-1])
    ]
    across = [
        [(j - 0.5, i + 0.5), (j + 0.5, i + 0.5)] for i, j in np.argwhere(mask[1:] != mask[:-1])
    ]
    return down + across
