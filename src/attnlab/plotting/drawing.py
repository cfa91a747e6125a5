"""The style of all figures: one palette, in which a variant has the same color everywhere."""

import io
import math
import textwrap
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import matplotlib
import matplotlib.colors
import matplotlib.image
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, LogFormatterMathtext, StrMethodFormatter

Pixels = npt.NDArray[np.uint8]  # (height, width, 3)

# Okabe and Ito (2008), "Color universal design", with brown for yellow.
BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK, BROWN = "#E69F00", "#56B4E9", "#000000", "#6B4C2A"
COLORS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK, BROWN)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)))

# One color for each aspect that variants change, and one dash for each way to change it. The first
# variants differ in color. Black is the baseline, under all names that it has in comparisons.
FAMILIES: dict[str, tuple[str, ...]] = {
    BLACK: ("sdpa|scaled|causal|independent|baseline", "manual", "torch_mha", "flex"),
    VERMILION: (
        "unscaled", "inverse_scale", "cosine", "softcap", "log_length", "scalable_softmax"
    ),
    BLUE: (
        "flipped", "bidirectional", "peek_one", "strict_flip", "sliding_window", "top_k",
        "stick_breaking", "forgetting"
    ),
    GREEN: ("identical_heads|identical", "identical_qkv", "single_head"),
    PURPLE: (
        "gqa", "mqa", "shared_qk", "shared_qkv", "latent", "value_residual", "value_embeddings",
        "exclusive", "gate_head", "gate_channel"
    ),
    ORANGE: (
        "zero_fill", "finite_fill", "post_softmax_mask", "softmax_over_queries", "unmerged_heads"
    ),
    SKY: ("rotary", "additive", "general", "alibi", "partial_rotary", "short_conv"),
    BROWN: (
        "linear", "sigmoid", "softmax1", "differential", "differential_v2", "sink", "softpick",
        "sparsemax", "entmax", "delta_net", "delta_net_negative", "gated_delta_net", "kda",
        "gated_linear", "decay", "retention"
    ),
}  # fmt: skip
# Sizes for a printed column of about 3.3 inches.
SMALL: dict[Any, Any] = {
    "figure.dpi": 300, "font.size": 8, "lines.linewidth": 1.1, "lines.markersize": 3,
    "axes.linewidth": 0.6, "grid.linewidth": 0.4,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6,
}  # fmt: skip
LineStyle = tuple[str, int]  # color, and the index of dash and marker
KNOWN: dict[str, LineStyle] = {
    name: (color, index)
    for color, ways in FAMILIES.items()
    for index, names in enumerate(ways)
    for name in names.split("|")
}
SHADES = 8  # of a color, for the settings of one variant
MOST = SHADES * len(DASHES)  # lines of one color that can be distinguished


@contextmanager
def styled(*, small: bool = False) -> Iterator[None]:
    """Draw in the style of the lab instead of the caller's; with `small`, for a printed column."""
    with matplotlib.rc_context(fname=Path(__file__).with_name("lab.mplstyle")):
        if small:
            matplotlib.rcParams.update(SMALL)
        yield


def looks(names: Iterable[str]) -> dict[str, LineStyle]:
    """Give each name the color of its variant and, among names of one color, a shade or dash of
    its own.

    The variant is the first word of the name ("unscaled" in "lab/unscaled n_head=4"); its color
    depends on nothing else. Raises ValueError if more than `MOST` names have one color.
    """
    variants = {
        name: name if name in KNOWN else name.split(" ")[0].rpartition("/")[2] for name in names
    }

    def rank(name: str) -> tuple[bool, bool, int, str]:
        """Variants before their settings, and known names first, in the order of their dashes."""
        return name != variants[name], name not in KNOWN, KNOWN.get(name, ("", 0))[1], name

    for color, count in Counter(map(color_of, variants.values())).items():
        if count > MOST:
            raise ValueError(f"{count} lines of {color}, but only {MOST} can be distinguished")
    styles: dict[str, LineStyle] = {}
    for name in sorted(variants, key=rank):
        color, dash = color_of(variants[name]), KNOWN.get(variants[name], ("", 0))[1]
        each = len(DASHES) if name == variants[name] else 1  # a variant keeps its very color
        ways = (
            (_lighter(color, n // each % SHADES), (dash + n) % len(DASHES)) for n in range(MOST)
        )
        styles[name] = next(way for way in ways if way not in styles.values())
    return styles


def color_of(variant: str) -> str:
    """The color of a variant in every figure; that of an unknown one follows from its name."""
    others = [color for color in COLORS if color != BLACK]
    unknown = others[zlib.crc32(variant.encode()) % len(others)]
    return KNOWN.get(variant, (unknown, 0))[0]


def _lighter(color: str, shade: int) -> str:
    """The color itself for shade 0, and mixed with up to 56 % of white for the others."""
    red, green, blue = (x + 0.08 * shade * (1 - x) for x in matplotlib.colors.to_rgb(color))
    return matplotlib.colors.to_hex((red, green, blue)).upper()


def panels(
    count: int,
    *,
    width: float = 5.2,
    height: float = 4.4,
    columns: int | None = None,
    share: bool = False,
) -> tuple[Figure, list[Axes]]:
    """Make a figure, which opens no window, and its panels in reading order.

    Width and height are those of a panel, in inches. There are `columns` panels per row; None puts
    all panels in one row. With `share`, all panels have the same axes.
    """
    across = min(count, columns or count)
    rows = math.ceil(count / across)
    figure = Figure(figsize=(width * across, height * rows))
    axes = list(figure.subplots(rows, across, squeeze=False, sharex=share, sharey=share).flat)
    for spare in axes[count:]:
        spare.set_axis_off()
    return figure, axes[:count]


def label_lines(axes: Axes) -> None:
    """Write the name of each line beside its right end, connected with it, without overlaps."""
    right = axes.get_xlim()[1]
    to_axes = axes.transData + axes.transAxes.inverted()  # also where an axis is logarithmic
    ends = []
    for line in axes.get_lines():
        x, y = (np.asarray(data, dtype=float) for data in line.get_data())
        finite = np.flatnonzero(np.isfinite(y))
        if len(finite) and not str(line.get_label()).startswith("_"):
            last = x[finite[-1]], y[finite[-1]]
            ends.append((float(np.clip(to_axes.transform(last)[1], 0, 1)), *last, line))
    ends.sort(key=lambda end: end[:2])
    size = 0.8 * matplotlib.rcParams["font.size"]  # points
    box = axes.get_window_extent()
    width, height = (72 * x / axes.figure.dpi for x in (box.width, box.height))
    room = max(14, min(34, int(width / size)))  # characters
    names = [textwrap.wrap(str(end[3].get_label()), room, break_long_words=False) for end in ends]
    heights = [1.2 * size * len(rows) / height for rows in names]
    arrow = {"arrowstyle": "-", "relpos": (0, 0.5), "shrinkA": 0}
    places = spread_apart([end[0] for end in ends], heights)
    for (_, x, y, line), rows, place in zip(ends, names, places, strict=True):
        axes.annotate(
            "\n".join(rows),
            (x, y),
            (1.03, place),
            textcoords="axes fraction",
            color=line.get_color(),
            va="center",
            fontsize=size,
            arrowprops=arrow | {"color": line.get_color(), "linestyle": line.get_linestyle()},
            annotation_clip=False,
        )
    axes.set_xlim(right=right)


def spread_apart(places: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Move sorted places apart, only as far as needed, so that labels of these heights fit."""
    moved = list(places)
    for _ in range(200):
        for n in range(1, len(moved)):
            overlap = (heights[n - 1] + heights[n]) / 2 - (moved[n] - moved[n - 1])
            if overlap > 1e-4:
                moved[n - 1] -= overlap / 2
                moved[n] += overlap / 2
        if moved and moved[0] < 0:  # the labels of the axis are below the panel
            moved[0] = 0.0
    return moved


def dots(
    axes: Axes, groups: Sequence[tuple[str, Sequence[float]]], variants: Sequence[str] = ()
) -> None:
    """Draw every value of every named group, and each group's mean as a horizontal bar.

    A group has the color and marker of its variant or, without variants, of its name.
    """
    style = looks(name for name, _ in groups)
    for x, (name, values) in enumerate(groups):
        color, kind = looks([variants[x]])[variants[x]] if variants else style[name]
        spread = np.linspace(-0.12, 0.12, len(values)) if len(values) > 1 else [0.0]
        if len(values):  # empty if all runs of an arm diverged
            axes.plot(x + np.asarray(spread), values, MARKERS[kind], color=color, alpha=0.75)
            axes.hlines(float(np.mean(values)), x - 0.28, x + 0.28, color=color)
    names = [name.replace(" ", "\n") for name, _ in groups]
    longest = max((len(line) for name in names for line in name.split("\n")), default=1)
    room = 72 * axes.get_window_extent().width / axes.figure.dpi / (len(names) + 0.2)  # points
    axes.set_xticks(range(len(names)), names, fontsize=min(14, room / (0.55 * longest)))
    axes.set_xlim(-0.6, len(groups) - 0.4)


def _plain_ticks(figure: Figure) -> None:
    """Number logarithmic axes without mathtext, which is off because a name may contain a $."""
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if isinstance(axis.get_major_formatter(), LogFormatterMathtext):
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.set_minor_formatter(LogFormatter())  # only where there are few major ticks


def svg(figure: Figure, name: str, *, text_as: Literal["path", "none"] = "path") -> str:
    """Draw a figure as SVG text, reproducibly; the name makes its ids unique on a page.

    Text becomes paths, which look alike everywhere, or with "none" remains text.
    """
    _plain_ticks(figure)
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": text_as}):
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]  # no XML prologue: it goes into a page


def encoded(figure: Figure, name: str, suffix: str) -> bytes:
    """Draw a figure as the content of a file: "png", "svg" or "pdf", in which text is text."""
    if suffix == "svg":
        return svg(figure, name, text_as="none").encode()
    if suffix == "png":
        return png(pixels(figure))
    _plain_ticks(figure)
    with matplotlib.rc_context({"pdf.fonttype": 42}):  # TrueType, which publishers ask for
        stream = io.BytesIO()
        figure.savefig(stream, format="pdf", metadata={"CreationDate": None})
    return stream.getvalue()


def pixels(figure: Figure) -> Pixels:
    """Draw a figure as (height, width, 3) bytes."""
    _plain_ticks(figure)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.array(canvas.buffer_rgba())[..., :3]


def png(picture: Pixels) -> bytes:
    """Encode a picture as a PNG file."""
    stream = io.BytesIO()
    matplotlib.image.imsave(stream, picture, format="png", pil_kwargs={"compress_level": 1})
    return stream.getvalue()
