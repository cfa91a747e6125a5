"""What attention gives, and how much of it a setting keeps.

The share has two ends: attn=none, in which each position sees only itself, and attn=sdpa, softmax
attention with 1/sqrt(D). With their losses, a setting X keeps (none - X) / (none - sdpa):
0 % is as good as no attention, 100 % as good as softmax attention.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, stdev

from attnlab.runs.compare import Comparison
from attnlab.runs.seed_statistics import median_interval

FEWEST_FOR_SHARE = 3  # seeds; with fewer there is no share
CLEAR = 5  # what attention gives must be so many standard deviations over the seeds
INTERVAL = 6  # seeds from which on the median has an exact interval


@dataclass(frozen=True)
class Share:
    """How much of what attention gives a setting keeps; 1 is all of it."""

    by_seed: tuple[float, ...] = ()
    median: float = math.nan
    low: float = math.nan  # of the exact 95 % interval of the median; with fewer than six seeds,
    high: float = math.nan  # the smallest and the largest share
    why: str = ""  # why there is none


def share_of(loss: Sequence[float], none: Sequence[float], sdpa: Sequence[float]) -> Share:
    """The share that a setting keeps, from its losses and those of both ends, one for each seed.

    There is no number where a run diverged, there are fewer than three seeds, or what attention
    gives is not clearly above the noise. Raises ValueError if the numbers of losses differ.
    """
    arms = {"it": loss, "none": none, "sdpa": sdpa}
    lost = [arm for arm, losses in arms.items() if not all(map(math.isfinite, losses))]
    gains = [a - b for a, b in zip(none, sdpa, strict=True)]  # what attention gives each seed
    if lost:
        return Share(why=f"{' and '.join(lost)} diverged")
    if len(gains) < FEWEST_FOR_SHARE:
        seeds = ("no seed", "one seed", "two seeds")[len(gains)] + " in common"
        return Share(why=f"three seeds per variant are needed; it, none and sdpa have {seeds}")
    gain = median(gains)
    spread = stdev(gains)
    if min(gains) <= 0 or gain < CLEAR * spread:
        seeds = f"{len(gains)} seeds with a standard deviation of {spread:.4f}"
        return Share(
            why=f"attention gives nothing measurable here ({gain:.4f} nats, median of {seeds})"
        )
    # Each seed has its own ends, so that what a seed does to all three cancels.
    shares = [(a - x) / gain_of_seed for a, x, gain_of_seed in zip(none, loss, gains, strict=True)]
    if len(shares) < INTERVAL:
        return Share(tuple(shares), median(shares), min(shares), max(shares))
    return Share(tuple(shares), *median_interval(shares))


def shares_of(comparisons: Sequence[Comparison]) -> dict[str, Share]:
    """Label -> share, of each setting that was compared with the same unchanged softmax attention
    as attn=none; undefined, with a reason, where there is no number."""
    found: dict[str, Share] = {}
    for none in comparisons:
        sdpa = none.baseline
        if sdpa is None or "sdpa" not in sdpa.unchanged_variants:
            continue
        if "none" in none.group.unchanged_variants:
            with_this_sdpa = [c for c in comparisons if len(c.pairs) and c.baseline is sdpa]
            found |= {c.label: share_between(c, none) for c in with_this_sdpa}
    return found


def share_between(c: Comparison, none: Comparison) -> Share:
    """The share of a setting, by the seeds that it, its baseline and attn=none have in common."""
    if c.reads_ahead or none.reads_ahead:
        return Share(why="the loss of a model that reads the future does not measure prediction")
    of_none = dict(zip(none.pairs["seed"], none.pairs["loss"], strict=True))
    mine = c.pairs[c.pairs["seed"].isin(of_none)]
    losses_of_none = [of_none[seed] for seed in mine["seed"]]
    return share_of(mine["loss"].tolist(), losses_of_none, mine["loss_base"].tolist())


def share_sentence(name: str, share: Share, rates: str = "at this learning rate") -> str:
    """What the setting `name` keeps of what attention gives, in a sentence; `rates` says at which
    learning rates, in words. Where there is no number, the sentence says why."""
    if share.why:
        return f"No share of what attention gives for {name}: {share.why}."
    n = len(share.by_seed)
    size = percent(share.median)
    way = "95 % interval" if n >= INTERVAL else "from"
    seeds = f"median of {n} seeds, {way} {percent(share.low)} to {percent(share.high)}"
    if share.median < 0:
        less = f"{size} of what attention gives"
        return f"{name} is worse than no attention {rates} ({less}, {seeds})."
    if share.median <= 1:
        return f"{name} keeps {size} of what attention gives {rates} ({seeds})."
    more = f"{share.median:.2f} times as much as softmax attention"
    return f"{name} gives {more} {rates} ({seeds})."


def percent(share: float) -> str:
    """A share as a percentage, such as 5 % or 0.4 %."""
    digits = 0 if abs(share) >= 0.0095 else 1  # from 0.95 % on, one digit would show 1.0 %
    rounded = round(100 * share, digits) + 0.0  # -0.0 + 0.0 is 0.0: no minus before 0
    return f"{rounded:.{digits}f} %"
