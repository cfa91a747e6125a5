"""Draw the figure of the three experiments, docs/img/three*.svg: wide or narrow, light or dark.

    python experiments/draw_three.py

The figure is drawn from the committed rows of three claims, without training.
"""

import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnlab.claims.configs import hydra_conf
from attnlab.claims.evaluate import evaluate
from attnlab.claims.loading import load_claims
from attnlab.claims.paths import Paths
from attnlab.claims.plan import ClaimSet
from attnlab.claims.results import Evidence, PredictionResult
from attnlab.errors import BadInput
from attnlab.files import write_atomically
from attnlab.plotting.drawing import color_of, styled, svg

ROOT = Path(__file__).parents[1]
NAMES = ("unscaled", "flipped_mask", "identical_heads")
INKS = {"": "#1f2328", "-dark": "#e6edf3"}  # of text and of the baseline
UNSCALED, FLIPPED = color_of("unscaled"), color_of("flipped")
IDENTICAL = color_of("identical_heads")


def read_evidence(root: Path = ROOT) -> dict[str, Evidence]:
    """Evaluate the three claims on the existing rows.

    Raises:
        BadInput: a claim or its rows are damaged.
    """
    paths = Paths(root / "experiments", root / "conf", root / "outputs" / "reproduce", "full")
    claims = load_claims(paths.experiments, NAMES)
    with hydra_conf(paths.conf):
        family = evaluate(ClaimSet(paths, claims), {})
    return {evidence.claim.name: evidence for evidence in family}


def found(evidence: Evidence, name: str) -> PredictionResult:
    """A prediction with its rows.

    Raises:
        BadInput: it has none.
    """
    result = evidence.shown(name)
    if result is None:
        claim = evidence.claim.name
        raise BadInput(
            f"{claim} has no rows of {name}; run: attnlab reproduce {claim} --budget full"
        )
    return result


def draw(evidence: Mapping[str, Evidence], ink: str, *, narrow: bool = False) -> Figure:
    """Draw the three experiments, with the finding as the title of each.

    Args:
        evidence: of the three claims, by name.
        ink: the color of text, axes and the baseline.
        narrow: one below the other, for a phone.

    Raises:
        BadInput: rows are missing.
    """
    figure = Figure(figsize=(3.6, 7.2) if narrow else (7.0, 2.7))
    axes = figure.subplots(3, 1) if narrow else figure.subplots(1, 3)
    titles = (
        price(axes[0], evidence["unscaled"], ink),
        by_position(axes[1], evidence["flipped_mask"], ink),
        distance(axes[2], evidence["identical_heads"]),
    )
    for place, title in zip(axes, titles, strict=True):
        place.set_title(title, fontsize=9, fontweight="bold", loc="left")
    return figure


def price(place: Axes, unscaled: Evidence, ink: str) -> str:
    """The loss with and without the scale: the pilots' mean at each learning rate, and every seed
    at the best rate."""
    result, medians = found(unscaled, "unit_variance_300"), []
    for kind, color, label in (("scaled", ink, "with"), ("unscaled", UNSCALED, "without")):
        arm = f"{kind}, unit, 300 steps"
        choice, losses = result.prediction.chosen[arm], result.scores[arm]
        rates, means = zip(*choice.losses.items(), strict=True)
        place.plot(rates, means, color=color)
        place.plot([choice.rate] * len(losses), losses, "o", color=color, ms=3, alpha=0.5, mew=0)
        place.text(rates[-1], means[-1], f"{label} ", color=color, ha="right", va="bottom")
        medians.append(float(np.median(losses)))
    place.set_xscale("log")
    place.set(xlabel="learning rate", ylabel="loss (nats)")
    return f"Without the scale, tuned:\n{medians[1] - medians[0]:.2f} nats worse at D = 128"


def by_position(place: Axes, flipped: Evidence, ink: str) -> str:
    """Validation loss at each position of the window: every seed, and the mean."""
    read, loss = found(flipped, "last_position"), found(flipped, "loss")
    for arm, color in (("causal", ink), ("flipped", FLIPPED)):
        curves = np.array(read.each("by position", arm))
        place.plot(curves.T, color=color, alpha=0.25, lw=0.6)
        place.plot(curves.mean(0), color=color)
    place.text(4, 1.85, "causal mask", color=ink)
    place.text(4, 0.18, "flipped mask", color=FLIPPED)
    place.set(xlabel="position in the window", ylabel="loss (nats)", ylim=(-0.05, None))
    causal, leaky = (np.median(loss.scores[arm]) for arm in ("causal", "flipped"))
    return f"A flipped mask reads the\nanswer: loss {leaky:.2f}, not {causal:.2f}"


def distance(place: Axes, identical: Evidence) -> str:
    """The largest difference between the patterns of two heads during training."""
    kinds = {
        "free_output": ("free output", "--", "outputs\ndiffer"),
        "dropout": ("tied, dropout", ":", "with dropout"),
        "collapse": ("tied output", "-", "outputs equal: exactly 0"),
    }
    for name, (arm, dash, label) in kinds.items():
        curves = [np.array(curve) for curve in found(identical, name).each("by step", arm)]
        steps, mean = curves[0][:, 0], np.mean([curve[:, 1] for curve in curves], axis=0)
        for curve in curves:
            place.plot(curve[:, 0], curve[:, 1], color=IDENTICAL, alpha=0.2, lw=0.6)
        place.plot(steps, mean, dash, color=IDENTICAL)
        if name == "collapse":
            place.text(steps[-1], 0.05, label, color=IDENTICAL, ha="right")
            continue
        side, at, shift = ("right", 0.75, -14) if name == "free_output" else ("left", 0.4, 12)
        middle = steps[np.argmax(mean > at)]  # beside the curve, where it rises
        place.text(middle + shift, at, label, color=IDENTICAL, ha=side)
    place.set(xlabel="training step", ylabel="distance of two heads", ylim=(-0.05, 1.08))
    return "Identical heads stay equal\nif nothing separates them"


def style(ink: str) -> dict[str, Any]:
    """Use small text, a transparent background, and one color for text and axes."""
    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    own: dict[str, Any] = {
        "font.size": 8,
        "lines.linewidth": 1.6,
        "axes.linewidth": 0.8,
        "axes.labelsize": 8,
    }
    own |= {"xtick.labelsize": 7.5, "ytick.labelsize": 7.5, "axes.facecolor": "none"}
    own |= {"figure.facecolor": "none", "grid.color": "0.5", "grid.alpha": 0.25}
    return own | dict.fromkeys(inked, ink)


def main() -> None:
    """Write the pictures for light and dark pages."""
    try:
        evidence = read_evidence()
        for (dark, ink), shape in product(INKS.items(), ("", "-narrow")):
            name = f"three{shape}{dark}"
            with styled(), matplotlib.rc_context(style(ink)):
                text = svg(draw(evidence, ink, narrow=bool(shape)), name)
            file = ROOT / "docs" / "img" / f"{name}.svg"
            write_atomically(file, text.encode())
            print(file.relative_to(ROOT))
    except BadInput as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
