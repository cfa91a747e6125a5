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
    answer_of,
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


def forecast(
    differences: Sequence[float], low: float = 0.0, high: float = math.inf
) -> Forecast | None:
    """When it is probably decided whether differences lie between two bounds, which is still open.
    None where `why_no_forecast` says why."""
    if why_no_forecast(differences):
        return None
    chances = answer_chances(differences, low, high)
    answers = [answer_of(x, low, high) for x in differences]
    chance = 0.0
    for look, of in verdict_chances(answers, chances).items():
        chance = of["confirmed"] + of["refuted"]
        if chance >= PROBABLE:
            return Forecast(look, chance)
    return Forecast(None, chance)


def why_no_forecast(differences: Sequence[float]) -> str:
    """Why differences do not say how many seeds would decide; empty if they do."""
    finite = [x for x in differences if math.isfinite(x)]
    last, _ = LOOKS[-1]
    if len(differences) >= last:
        return f"{last} seeds are the last at which the rule decides"
    if len(finite) < FEWEST_FINITE:
        return (
            f"{FEWEST_FINITE} seeds that did not diverge are the fewest; there are {len(finite)}"
        )
    if stdev(finite) == 0:
        return "all seeds differ by the same, so nothing is known of their spread"
    return ""


def answer_chances(
    differences: Sequence[float], low: float = 0.0, high: float = math.inf
) -> Mapping[Answer, float]:
    """How likely each answer of one more seed is; at least two differences are finite."""
    finite = [x for x in differences if math.isfinite(x)]
    law = NormalDist(mean(finite), stdev(finite))
    share = len(finite) / len(differences)  # that does not diverge
    chances: dict[Answer, float] = {
        "yes": share * (law.cdf(high) - law.cdf(low)),
        "below": share * law.cdf(low),
        "above": share * (1 - law.cdf(high)),
        "neither": 0.0,
    }
    for x in differences:
        if not math.isfinite(x):
            chances[answer_of(x, low, high)] += 1 / len(differences)
    return chances


def smallest_difference(differences: Sequence[float]) -> float | None:
    """The mean difference that ten seeds show in four of five cases, in nats, at the spread of
    these: all ten must have one sign. None where fewer than three differences are finite."""
    finite = [x for x in differences if math.isfinite(x)]
    if len(finite) < FEWEST_FINITE:
        return None
    seeds, bar = LOOKS[0]
    assert seeds == bar, "the first look asks for all seeds"
    return NormalDist().inv_cdf(POWER ** (1 / seeds)) * stdev(finite)
