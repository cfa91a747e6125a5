"""From the values of seeds to a verdict on a prediction, and from those to one on a sentence.

docs/claims.md states the rule, and `attnlab.runs.seed_statistics` counts. Claims and the ranking
are both judged here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from attnlab.runs.seed_statistics import (
    FIRST_LOOK,
    LOOKS,
    UNDEFINED,
    Answer,
    Verdict,
    answer_of,
    median_interval,
    most_against,
    verdict_chances,
    verdict_of,
)

FEWEST_JUDGED = FIRST_LOOK  # with fewer seeds, values are shown and not judged
# How a prediction bears on its sentence. "against": if confirmed, the sentence is false there.
Bearing = Literal["for", "against", "control", "secondary", "shown"]


def answer_with(value: float, low: float, high: float, always: bool = False) -> Answer:
    """Whether a value agrees, as it lies between two bounds, or on which side it misses.

    With `always`, no statistics are needed: the bounds belong to the range, one miss refutes, and
    ten seeds without a miss confirm.
    """
    answer = answer_of(value, low, high)
    if always and answer == "neither":
        return "above" if math.isnan(value) else "yes"
    return answer


@dataclass(frozen=True)
class Outcome:
    """The verdict on one prediction at one length of training, with its numbers."""

    verdict: str  # confirmed, refuted or open
    yes: int  # seeds that agree, of the first n
    missed: int  # seeds that contradict it on the same side
    n: int  # judged seeds: up to the last complete stage, or all if there are fewer than 10
    undecided: bool  # a later stage could still decide
    median: float
    low: float  # exact interval of the median; NaN with fewer than 6 seeds
    high: float


def judge(
    values: Sequence[float], low: float, high: float, always: bool = False, most: int = 10
) -> Outcome:
    """Judge a prediction by one value a seed, in order; `most` seeds may be used. `always` is that
    of `answer_with`."""
    answers = [answer_with(value, low, high, always) for value in values]
    verdict: Verdict = "open"
    n = 0
    undecided = False
    if always and any(answer != "yes" for answer in answers):
        verdict = "refuted"
    elif always and len(answers) >= FEWEST_JUDGED:
        verdict = "confirmed"
    elif not always and most >= FEWEST_JUDGED:
        last_look = max(seeds for seeds in LOOKS if seeds <= most)
        verdict, n, undecided = verdict_of(answers, last_look)
    n = n or len(answers)  # with `always`, or with fewer than ten seeds: all
    numbers = [value for value in values[:n] if not math.isnan(value)]
    interval = median_interval(numbers) if numbers else UNDEFINED
    yes = answers[:n].count("yes")
    missed = most_against(answers[:n])
    return Outcome(verdict, yes, missed, n, undecided, *interval)


def power(most: int, share: float) -> float:
    """How often the rule confirms a prediction that is true for a share of all seeds, with at most
    10, 20 or 40 of them."""
    chances: dict[Answer, float] = {"yes": share, "below": 1 - share}
    last_look = max(seeds for seeds in LOOKS if seeds <= most)
    return verdict_chances([], chances)[last_look]["confirmed"]


def chance_of_error(most: int) -> float:
    """How often the rule decides, either way, where a seed is as likely to agree as not."""
    return 2 * power(most, 0.5)


def supports(bearing: str, verdict: str) -> bool:
    """Whether a decided prediction says that its sentence is true."""
    return verdict == ("confirmed" if bearing == "for" else "refuted")


def verdict_on_sentence(verdicts: Sequence[tuple[str, str]]) -> str:
    """The verdict on a sentence from (bearing, verdict) of its predictions.

    "for" and "against" decide; a "control" must be confirmed; others do not count.
    """
    true = false = undecided = 0
    for bearing, verdict in verdicts:
        if bearing == "control" and verdict != "confirmed":
            return "undecided"
        if bearing not in ("for", "against"):
            continue
        if verdict == "open":
            undecided += 1
        elif supports(bearing, verdict):
            true += 1
        else:
            false += 1
    if false:
        return "holds in part" if true else "does not hold"
    return "holds" if true and not undecided else "undecided"
