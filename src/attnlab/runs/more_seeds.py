"""Estimates how many seeds would decide, and how small a difference ten seeds can show.

The rule is that of `seed_statistics`. The differences of further seeds are taken to be normal,
with the mean and the standard deviation of those that were seen; a share of them diverges, as in
those that were seen. How likely a verdict then is follows exactly.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, mean, stdev

from attnlab.runs.seed_statistics import (
    LOOKS,
    Answer,
    answers_beyond,
    answers_within,
    verdict_chances,
)

FEWEST_FINITE = 3  # differences, from which a spread is estimated
PROBABLE = 0.5  # of the chance of a verdict: as likely as not
POWER = 0.8  # of the smallest difference that ten seeds show


@dataclass(frozen=True)
class Forecast:
    """How many seeds would probably decide what is open."""

    seeds: int | None  # the first look at which a verdict is as likely as not; None: no look
    chance: float  # of a verdict by then or, without such a look, by the last one


def forecast(differences: Sequence[float], margin: float | None = None) -> Forecast | None:
    """When the verdict, which is still open, would probably fall: on which side of 0 the
    differences lie or, with a margin, whether they are smaller. None where fewer than three
    differences are finite, all are equal, or no look is left."""
    chances = answer_chances(differences, margin)
    if chances is None or len(differences) >= LOOKS[-1][0]:
        return None
    if margin is None:
        answers = answers_beyond(differences)
    else:
        answers = answers_within(differences, margin)
    chance = 0.0
    for look, of in verdict_chances(answers, chances).items():
        chance = of["confirmed"] + of["refuted"]
        if chance >= PROBABLE:
            return Forecast(look, chance)
    return Forecast(None, chance)


def answer_chances(
    differences: Sequence[float], margin: float | None = None
) -> Mapping[Answer, float] | None:
    """How likely each answer of one more seed is; None if the differences do not say it."""
    finite = [x for x in differences if math.isfinite(x)]
    if len(finite) < FEWEST_FINITE:
        return None
    spread = stdev(finite)
    if spread == 0:
        return None
    law = NormalDist(mean(finite), spread)
    share = len(finite) / len(differences)  # that does not diverge
    above = sum(x == math.inf for x in differences) / len(differences)
    below = sum(x == -math.inf for x in differences) / len(differences)
    edge = margin or 0.0
    above += share * (1 - law.cdf(edge))
    below += share * law.cdf(-edge)
    if margin is None:
        return {"yes": above, "below": below, "neither": max(0.0, 1 - above - below)}
    inside = share * (law.cdf(edge) - law.cdf(-edge))
    rest = max(0.0, 1 - inside - above - below)
    return {"yes": inside, "below": below, "above": above, "neither": rest}


def smallest_difference(differences: Sequence[float]) -> float | None:
    """The mean difference that ten seeds show in four of five cases, in nats, at the spread of
    these: all ten must have one sign. None where fewer than three differences are finite."""
    finite = [x for x in differences if math.isfinite(x)]
    if len(finite) < FEWEST_FINITE:
        return None
    seeds, bar = LOOKS[0]
    assert seeds == bar, "the first look asks for all seeds"
    return NormalDist().inv_cdf(POWER ** (1 / seeds)) * stdev(finite)
