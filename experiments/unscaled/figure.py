"""The figure of `unscaled`: what is kept of what attention gives, by the spread of the scores."""

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnlab.claims.finding import Finding
from attnlab.claims.judged_claim import JudgedClaim
from attnlab.plotting.drawing import BLACK, GREEN, VERMILION
from attnlab.runs.share import Share, share_of

# Part -> standard deviation of the scores at the start: with unit variance sqrt(D) times the
# scale, with GPT-2's weights sqrt(D) C 0.02^2.
LINE = {
    "spread_2_300": 2.0,
    "spread_4_300": 4.0,
    "spread_8_300": 8.0,
    "one_head_300": math.sqrt(128),
    "spread_23_300": 2 * math.sqrt(128),
}
MARKS = {  # also the text, how it is aligned, and by how much it is higher
    "gpt2_start_300": (math.sqrt(128) * 128 * 0.02**2, "GPT-2's start", "left", -36),
    "eight_heads_300": (math.sqrt(16), "eight heads of 16", "left", 22),
    "wide_head_share_300": (math.sqrt(256), "one head of 256", "center", 42),
    "wide_start_300": (math.sqrt(128) * 0.0566**2 * 128, "its spread at C = 512", "left", 22),
}
TICKS = (0.5, 1, 2, 4, 8, 16, 32)
SEEDS = 3  # of the line


def draw(judged: JudgedClaim) -> Figure:
    """Draw the share by spread for one head of 128, and for other models without the scale."""
    found = {finding.name: finding for finding in judged.findings}
    figure = Figure(figsize=(7, 4.6), layout="constrained")
    axes = figure.subplots()
    line = {1.0: Share((1.0,), 1.0, 1.0, 1.0)}  # with the scale, softmax attention itself
    line |= {spread: kept(found[name], SEEDS) for name, spread in LINE.items()}
    axes.plot([*line], [100 * of.median for of in line.values()], color=VERMILION)
    for spread, of in line.items():
        dots(axes, spread, of, VERMILION, "o")
    for name, (spread, label, side, up) in MARKS.items():
        if name not in found:
            continue  # the next version of the claim has it
        of = kept(found[name])
        dots(axes, spread, of, GREEN, "D")
        x = 8 if up > 0 and side == "left" else 0
        note(axes, label, (spread, 100 * of.median), (x, up), color=GREEN, ha=side, va="center")
    note(axes, "with the scale 1/sqrt(D)", (1, 100), (6, 6))
    no_scale = (math.sqrt(128), 100 * line[math.sqrt(128)].median)
    note(axes, "no scale", no_scale, (0, 10), color=VERMILION)
    for end, label in ((0, "without attention"), (100, "softmax attention")):
        axes.axhline(end, color=BLACK, lw=1)
        x, side = (0.5, "left") if end == 0 else (32, "right")
        note(axes, label, (x, end), (0, 4), ha=side)
    axes.set_xscale("log", base=2)
    axes.set_xlim(0.45, 34)
    axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axes.set(
        xlabel="standard deviation of the scores at the start",
        ylabel="% of what attention gives",
        title="After 300 steps; each dot is a seed\nred: one head of 128; green: others, no scale",
    )
    return figure


def kept(finding: Finding, seeds: int | None = None) -> Share:
    """What the first of three arms keeps, by the first seeds."""
    return share_of(*(of_arm[:seeds] for of_arm in finding.scores.values()))


def note(
    axes: Axes, text: str, at: tuple[float, float], shift: tuple[int, int], **style: str
) -> None:
    """Write beside a point."""
    axes.annotate(text, at, shift, textcoords="offset points", fontsize=12, **style)


def dots(axes: Axes, spread: float, of: Share, color: str, marker: str) -> None:
    """Draw a dot for each seed."""
    y = [100 * share for share in of.by_seed]
    axes.plot([spread] * len(y), y, marker, color=color, alpha=0.6, ms=6)
