"""The figure of `scale_by_width`: what no scale costs by width, and the loss by rate."""

from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnlab.claims.finding import Finding
from attnlab.claims.judged_claim import JudgedClaim
from attnlab.claims.rows import COMMITTED, Rows
from attnlab.plotting.drawing import BLACK, BLUE, VERMILION

# Prediction -> width C, and how the lines of its losses are drawn.
WIDTHS = {"narrow": (128, ":"), "between": (256, "--"), "wide": (512, "-")}
SPREAD = 8 * 0.02**2  # of untrained scores without the scale, in heads of 64, a channel
COLORS = {"unscaled": VERMILION, "softmax": BLUE}
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)


def draw(judged: JudgedClaim) -> Figure:
    """Draw the cost of each seed by width, and the loss of the pilots by learning rate."""
    by_key = {finding.key: finding for finding in judged.findings}
    found = {key: by_key[key] for key in WIDTHS}
    figure = Figure(figsize=(7, 8), layout="constrained")
    by_width, by_rate = figure.subplots(2)
    draw_cost(by_width, found)
    draw_rates(by_rate, found, Rows(judged.claim.folder / COMMITTED))
    return figure


def draw_cost(axes: Axes, found: dict[str, Finding]) -> None:
    """The loss without the scale minus the loss with it, each at its best rate."""
    costs = {}
    for key, finding in found.items():
        width, _ = WIDTHS[key]
        costs[width] = finding.values
        axes.plot([width] * len(finding.values), finding.values, "o", color=BLUE, alpha=0.6, ms=6)
    axes.plot([*costs], [fmean(values) for values in costs.values()], color=BLUE)
    axes.axhline(0, color=BLACK, lw=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks([*costs], [f"{width}\n{SPREAD * width:.2f}" for width in costs])
    axes.minorticks_off()
    axes.set(
        xlabel="width C; below: spread of scores without the scale",
        ylabel="nats",
        title="Cost of no scale at the best rates (dots: seeds)",
    )


def draw_rates(axes: Axes, found: dict[str, Finding], rows: Rows) -> None:
    """The loss of the pilots by learning rate, a line for each side at each width."""
    for key, finding in found.items():
        _, style = WIDTHS[key]
        for name, arm in finding.arms.items():
            scores = arm.choose(rows).scores
            color = COLORS[name.partition(",")[0]]
            axes.plot([*scores], [*scores.values()], style, color=color, marker="o", label=name)
    axes.set_xscale("log")
    axes.set_xticks(RATES, [f"{rate:g}" for rate in RATES])
    axes.minorticks_off()
    axes.legend(fontsize=9)
    axes.set(xlabel="learning rate", ylabel="loss in nats", title="One pilot a point")
