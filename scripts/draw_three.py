"""Draw the picture of README.md, docs/img/three.svg, from the committed rows of three claims.

    python -m scripts.draw_three

One picture for light and dark pages: its background is transparent, and its ink a gray that is
legible on both.
"""

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnlab.plotting.drawing import color_of, styled
from scripts.fill_pages import ROOT, finding_of

FILE = ROOT / "docs/img/three.svg"
INK = "#768390"
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "three",
    "font.size": 8, "axes.labelsize": 8, "lines.linewidth": 1.6,
    "axes.linewidth": 0.8, "xtick.labelsize": 7.5, "ytick.labelsize": 7.5,
    "axes.facecolor": "none", "figure.facecolor": "none", "grid.color": "0.5", "grid.alpha": 0.25,
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK
    ),
}  # fmt: skip
# The curves of the first panel: prediction, arm, variant, dash, label, and where it stands.
CURVES = (
    ("curve_none", "curve: none", "none", "-", "no attention", (4800, 2.52)),
    ("curve", "curve: unscaled", "unscaled", "-", "without 1/√D", (4800, 2.1)),
    (
        "curve_gpt2",
        "curve: unscaled, GPT-2's start",
        "unscaled",
        "--",
        "GPT-2's start",
        (4850, 1.895),
    ),
    ("curve", "curve: softmax", "sdpa", "-", "with 1/√D", (2900, 1.67)),
)


def ink(variant: str) -> str:
    """The color of a variant; the baseline has that of the text."""
    return INK if variant in ("sdpa", "causal") else color_of(variant)


def late(place: Axes) -> str:
    """Validation loss during training; without the scale, with both starts."""
    for name, arm, variant, dash, label, where in CURVES:
        rows = finding_of("unscaled", name).rows[arm]
        losses = [row["values"]["curve"]["losses"] for row in rows]
        curves = np.array([list(of_seed.values()) for of_seed in losses])
        over_seeds(place, np.array(list(map(int, losses[0]))), curves, ink(variant), dash)
        place.text(*where, label, color=ink(variant), ha="right")
    place.set(xlabel="training step", ylabel="loss, nats")
    return "Without the scale, a wide\nhead starts late"


def by_position(place: Axes) -> str:
    """Validation loss at each position."""
    part = finding_of("flipped_mask", "last_position")
    for arm, variant in (("causal", "sdpa"), ("flipped", "flipped")):
        curves = np.array([row["values"]["by position"] for row in part.rows[arm]])
        over_seeds(place, np.arange(curves.shape[1]), curves, ink(variant))
    place.text(4, 1.8, "causal mask", color=INK)
    place.text(4, 0.18, "flipped mask", color=ink("flipped"))
    place.set(xlabel="position in the window", ylabel="loss, nats", ylim=(-0.05, None))
    return "A flipped mask\nreads the answer"


def over_seeds(
    place: Axes, x: np.ndarray, curves: np.ndarray, color: str, dash: str = "-"
) -> None:
    """The mean of curves (seeds, x), and their range."""
    place.fill_between(x, curves.min(0), curves.max(0), color=color, alpha=0.25, lw=0)
    place.plot(x, curves.mean(0), dash, color=color)


def distance(place: Axes) -> str:
    """The largest difference between the patterns of two heads during training."""
    color = color_of("identical_heads")
    for name, arm, dash in (
        ("free_output", "free output", "--"),
        ("dropout", "tied, dropout", ":"),
        ("collapse", "tied output", "-"),
    ):
        curves = np.array(
            [row["values"]["by step"] for row in finding_of("identical_heads", name).rows[arm]]
        )
        over_seeds(place, curves[0, :, 0], curves[:, :, 1], color, dash)
    place.text(90, 0.8, "outputs\ndiffer", color=color, ha="right")
    place.text(205, 0.62, "dropout", color=color)
    place.text(300, 0.05, "outputs equal: exactly 0", color=color, ha="right")
    place.set(
        xlabel="training step",
        ylabel="difference of two patterns",
        ylim=(-0.05, 1.08),
    )
    return "Equal heads stay equal\nif nothing separates them"


def draw() -> None:
    """Write the picture, whose content depends on the rows alone."""
    with styled(), matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.0, 2.6))
        panels = (late, by_position, distance)
        for place, panel in zip(figure.subplots(1, 3), panels, strict=True):
            place.set_title(panel(place), fontsize=9, fontweight="bold", loc="left")
        figure.savefig(FILE, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    draw()
    print(FILE.relative_to(ROOT))
