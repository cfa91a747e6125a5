"""Heatmaps as pixels: patterns over their text, many times faster than by a plotting library."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

Pixels = npt.NDArray[np.uint8]

MARGIN = 8
LARGEST_WIDTH = 8000  # pixels; some viewers refuse more
TITLE = 18
INK, PAPER, EDGE = (30, 30, 30), (255, 255, 255), (0, 130, 60)
BLOCKED, NOT_A_NUMBER = (222, 222, 226), (0, 190, 230)
LONGEST = 12  # characters of a token's label
SPECIAL = {"\n": "↵", " ": "␣", "\t": "→"}


@dataclass(frozen=True)
class Panel:
    """One heatmap: its title, its values (T, T), and where a query may attend (T, T)."""

    title: str
    values: npt.NDArray[np.float32]
    mask: npt.NDArray[np.bool_]


def grid(
    panels: Sequence[Panel], text: Sequence[str], *, columns: int, heading: str
) -> Image.Image:
    """Patterns side by side: queries downwards, keys to the right, both labeled by the text.

    Color is the square root of the weight, light none and dark all of it; a green line is the
    edge of the mask, grey is blocked and without weight, blue is not a number.

    Args:
        panels: in reading order.
        text: T characters, or T tokens.
        columns: panels a row.
        heading: a line above.
    """
    room = LARGEST_WIDTH // columns - MARGIN - 40
    cell = max(1, min(16, max(3, 640 // len(text)), room // len(text)))
    across, down = _labels(text, cell)
    labels = down.width
    size = labels + cell * len(text)
    rows = -(-len(panels) // columns)
    width = MARGIN + columns * (size + MARGIN)
    page = Image.new("RGB", (width, 28 + rows * (TITLE + size + MARGIN)), PAPER)
    pen = ImageDraw.Draw(page)
    pen.text((MARGIN, 6), heading[: width // 9], INK, font(14))
    for place, panel in enumerate(panels):
        x = MARGIN + (place % columns) * (size + MARGIN)
        y = 28 + (place // columns) * (TITLE + size + MARGIN)
        pen.text((x + labels, y), panel.title, INK, font(12))
        page.paste(across, (x + labels, y + TITLE))
        page.paste(down, (x, y + TITLE + labels))
        picture = Image.fromarray(_pixels(panel, cell))
        page.paste(picture, (x + labels, y + TITLE + labels))
    return page


def matrices(
    titles: Sequence[str], values: Sequence[npt.NDArray[np.float32]], heading: str
) -> Image.Image:
    """Matrices (H, H) between heads with their numbers, -1 blue, 0 white, 1 red."""
    cell, between = 46, 24
    H = len(values[0])
    width = MARGIN + len(values) * (H * cell + between)
    page = Image.new("RGB", (max(width, 320), 28 + TITLE + H * cell + MARGIN), PAPER)
    pen = ImageDraw.Draw(page)
    pen.text((MARGIN, 6), heading, INK, font(14))
    colors = _colors("RdBu_r")
    for place, (title, matrix) in enumerate(zip(titles, values, strict=True)):
        left = MARGIN + place * (H * cell + between)
        pen.text((left, 28), title, INK, font(12))
        for (i, j), x in np.ndenumerate(matrix):
            corner = (left + j * cell, 28 + TITLE + i * cell)
            finite = np.isfinite(x)
            color = tuple(colors[int((x + 1) * 127.5)]) if finite else NOT_A_NUMBER
            pen.rectangle((*corner, corner[0] + cell - 2, corner[1] + cell - 2), fill=color)
            ink = PAPER if finite and abs(x) > 0.7 else INK
            pen.text((corner[0] + 4, corner[1] + 12), f"{x:.2f}", ink, font(12))
    return page


def alignment(
    pattern: npt.NDArray[np.float32], source: Sequence[str], target: Sequence[str], heading: str
) -> Image.Image:
    """Attention weights between two sentences: target words downward, source words to the right.

    Args:
        pattern: (T, S) weights; T and S count the ends of the sentences.
        source: S - 1 words.
        target: T - 1 words.
        heading: a line above.
    """
    cell, end = 26, "⏎"
    across, down = [*source, end], [*target, end]
    left = MARGIN + 9 * max(map(len, down))
    top = 28 + 9 * max(map(len, across))
    width = left + cell * len(across) + MARGIN
    page = Image.new("RGB", (width, top + cell * len(down) + MARGIN), PAPER)
    pen = ImageDraw.Draw(page)
    pen.text((MARGIN, 6), heading, INK, font(14))
    for s, word in enumerate(across):
        strip = Image.new("RGB", (9 * len(word), cell), PAPER)
        ImageDraw.Draw(strip).text((0, cell // 2), word, INK, font(14), anchor="lm")
        strip = strip.rotate(90, expand=True)
        page.paste(strip, (left + s * cell, top - 4 - strip.height))
    for t, word in enumerate(down):
        place = (left - 6, top + t * cell + cell // 2)
        pen.text(place, word, INK, font(14), anchor="rm")
    mask = np.ones(pattern.shape, dtype=np.bool_)
    page.paste(Image.fromarray(_pixels(Panel("", pattern, mask), cell)), (left, top))
    return page


def png(image: Image.Image) -> bytes:
    """The image as a file."""
    stream = io.BytesIO()
    image.save(stream, "PNG", compress_level=1)
    return stream.getvalue()


@lru_cache
def font(size: int) -> ImageFont.FreeTypeFont:
    """DejaVu Sans Mono, which Matplotlib brings along."""
    import matplotlib

    file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSansMono.ttf"
    return ImageFont.truetype(str(file), size)


def _labels(text: Sequence[str], cell: int) -> tuple[Image.Image, Image.Image]:
    """The text as a strip above and a strip to the left; words run upwards in the one above."""
    shown = ["".join(SPECIAL.get(symbol, symbol) for symbol in label) for label in text]
    shown = [label if len(label) <= LONGEST else label[: LONGEST - 1] + "…" for label in shown]
    words = cell >= 6 and any(len(label) > 1 for label in shown)
    letters = font(cell - 3 if words else cell)  # words one below the other need air
    longest = max(letters.getlength(label) for label in shown) if words else cell
    length, depth = cell * len(shown), int(longest) + 4
    down = Image.new("RGB", (depth, length), PAPER)
    if words:
        _write(down, shown, letters, cell, 2, "lm")
        return down.transpose(Image.Transpose.ROTATE_90), down
    across = Image.new("RGB", (length, depth), PAPER)
    if cell >= 6:
        _write(down, shown, letters, cell, depth // 2, "mm")
        above = ImageDraw.Draw(across)
        for i, symbol in enumerate(shown):
            middle = i * cell + cell // 2
            above.text((middle, depth // 2), symbol, INK, letters, anchor="mm")
    return across, down


def _write(
    strip: Image.Image,
    shown: Sequence[str],
    letters: ImageFont.FreeTypeFont,
    cell: int,
    x: int,
    anchor: str,
) -> None:
    """Labels one below the other, each in the middle of its cell."""
    pen = ImageDraw.Draw(strip)
    for i, label in enumerate(shown):
        pen.text((x, i * cell + cell // 2), label, INK, letters, anchor=anchor)


def _pixels(panel: Panel, cell: int) -> Pixels:
    """(T, T) weights to (T * cell, T * cell, 3) colors, with the edge of the mask."""
    values, mask = panel.values, panel.mask
    finite = np.isfinite(values)
    shade = np.sqrt(np.where(finite, values, 0).clip(0, 1)) * 255
    colors = _colors("magma_r")[shade.astype(np.uint8)]
    colors[~mask & (values == 0)] = BLOCKED
    colors[~finite] = NOT_A_NUMBER
    picture = colors.repeat(cell, axis=0).repeat(cell, axis=1)
    for i, j in np.argwhere(mask[:, 1:] != mask[:, :-1]):
        picture[i * cell : (i + 1) * cell, (j + 1) * cell - 1 : (j + 1) * cell + 1] = EDGE
    for i, j in np.argwhere(mask[1:] != mask[:-1]):
        picture[(i + 1) * cell - 1 : (i + 1) * cell + 1, j * cell : (j + 1) * cell] = EDGE
    return picture


@lru_cache
def _colors(name: str) -> Pixels:
    """A color map of Matplotlib's as (256, 3) bytes."""
    import matplotlib

    table = matplotlib.colormaps[name](np.arange(256), bytes=True)
    return np.asarray(table[:, :3], dtype=np.uint8)


def curve(values: Sequence[float], heading: str) -> Image.Image:
    """A line from left to right over a scale that begins at 0; what is not finite is left out."""
    left, top, width, height = 44, 34, 560, 240
    page = Image.new("RGB", (left + width + 16, top + height + 28), PAPER)
    pen = ImageDraw.Draw(page)
    pen.text((MARGIN, 6), heading, INK, font(14))
    finite = [x for x in values if np.isfinite(x)]
    highest = max(finite, default=1.0) or 1.0
    step = width / max(1, len(values) - 1)
    for tick in np.linspace(0, highest, 5):
        y = top + height - height * tick / highest
        pen.line((left, y, left + width, y), BLOCKED)
        pen.text((left - 4, y), f"{tick:.2f}", INK, font(12), anchor="rm")
    for position in {0, len(values) // 2, len(values) - 1}:
        place = (left + position * step, top + height + 6)
        pen.text(place, str(position), INK, font(12), anchor="mt")
    points = [
        (left + i * step, top + height * (1 - x / highest))
        for i, x in enumerate(values)
        if np.isfinite(x)
    ]
    if len(points) > 1:
        pen.line(points, (0, 90, 170), width=2)
    return page
