"""From the values of seeds to a verdict on a prediction, and from those to one on a sentence.

docs/claims.md states the rule, and `attnlab.runs.seed_statistics` counts. Claims and the ranking
are both judged here.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from attnlab.runs.seed_statistics import (
    FIRST_LOOK,
    LOOKS,
    UNDEFINED,
    Answer,
    CountedSeeds,
    Verdict,
    answer_of,
    median_interval,
    most_against,
    verdict_chances,
    verdict_of,
)

FEWEST_JUDGED = FIRST_LOOK  # with fewer, values are shown and not judged
# What a prediction is for its sentence. "against": if confirmed, the sentence is false there.
RoleOfPrediction = Literal["for", "against", "control", "secondary", "shown"]
DECIDE = ("for", "against")


def answer_with(value: float, low: float, high: float, always: bool = False) -> Answer:
    """Whether a value agrees, as it lies between two bounds, or on which side it misses. `always`:
    the bounds are in the range, and NaN is a miss, so that each seed answers."""
    answer = answer_of(value, low, high)
    if always and answer == "neither":
        return "above" if math.isnan(value) else "yes"
    return answer


@dataclass(frozen=True)
class Tally:
    """The seeds for and against a prediction, the verdict by counting them, and their median."""

    verdict: Verdict
    agree: int  # seeds that agree, of the first n
    missed: int  # seeds that contradict it on the same side
    n: int  # counted seeds: up to the last complete stage, or all if there are fewer than 10
    may_change: bool  # a later stage could still decide
    median: float
    low: float  # exact interval of the median; NaN with fewer than 6 seeds
    high: float


def judge(
    values: Sequence[float], low: float, high: float, always: bool = False, most: int = 10
) -> Tally:
    """Judge a prediction by one value a seed, in order: it agrees between two bounds. `most` seeds
    may be used. `always`: a single miss refutes, and ten seeds without a miss confirm."""
    answers = [answer_with(value, low, high, always) for value in values]
    if always:
        counted = CountedSeeds(verdict_of_all(answers), len(answers), may_change=False)
    elif most >= FEWEST_JUDGED:
        counted = verdict_of(answers, last_look(most))
    else:
        counted = CountedSeeds("open", 0, may_change=False)
    n = counted.seeds or len(answers)  # with fewer than ten seeds: all
    numbers = [value for value in values[:n] if not math.isnan(value)]
    return Tally(
        counted.verdict,
        answers[:n].count("yes"),
        most_against(answers[:n]),
        n,
        counted.may_change,
        *(median_interval(numbers) if numbers else UNDEFINED),
    )


def verdict_of_all(answers: Sequence[Answer]) -> Verdict:
    """The verdict if a single miss refutes, and ten seeds without a miss confirm."""
    if any(answer != "yes" for answer in answers):
        return "refuted"
    return "confirmed" if len(answers) >= FEWEST_JUDGED else "open"


def last_look(most: int) -> int:
    """The largest number of seeds, up to `most`, at which the rule decides."""
    return max(seeds for seeds in LOOKS if seeds <= most)


def power(most: int, share: float) -> float:
    """How often the rule confirms a prediction that is true for a share of all seeds, with at most
    10, 20 or 40 of them."""
    chances: dict[Answer, float] = {"yes": share, "below": 1 - share}
    return verdict_chances([], chances)[last_look(most)]["confirmed"]


def chance_of_error(most: int) -> float:
    """How often the rule decides, either way, where a seed is as likely to agree as not."""
    return 2 * power(most, 0.5)


def common_verdict(verdicts: Collection[str]) -> str:
    """The verdict if all say the same, as on two lengths or two instruction sets; or else open."""
    first, *others = verdicts
    return first if all(verdict == first for verdict in others) else "open"


class Evidence(NamedTuple):
    """What a prediction says of its sentence."""

    role: RoleOfPrediction
    verdict: str  # on the prediction: confirmed, refuted or open; shown, if it is not judged

    @property
    def is_for(self) -> bool:
        """Whether it says that the sentence is true."""
        return (self.role, self.verdict) in (("for", "confirmed"), ("against", "refuted"))

    @property
    def is_against(self) -> bool:
        """Whether it says that the sentence is false."""
        return (self.role, self.verdict) in (("for", "refuted"), ("against", "confirmed"))

    @property
    def is_undecided(self) -> bool:
        """Whether it should say either, and does not."""
        return self.role in DECIDE and not (self.is_for or self.is_against)


def verdict_on_sentence(evidence: Collection[Evidence]) -> str:
    """The verdict on a sentence from what its predictions say."""
    if any(each.role == "control" and each.verdict != "confirmed" for each in evidence):
        return "undecided"
    is_true_somewhere = any(each.is_for for each in evidence)
    if any(each.is_against for each in evidence):
        return "holds in part" if is_true_somewhere else "does not hold"
    is_open_somewhere = any(each.is_undecided for each in evidence)
    return "holds" if is_true_somewhere and not is_open_somewhere else "undecided"
