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


def answer_of_seed(value: float, low: float, high: float, always: bool = False) -> Answer:
    """Whether a seed agrees, as its value lies between two bounds, or on which side it misses; on
    a bound, and for NaN, neither. With `always`, a value on a bound agrees and NaN misses, so that
    each seed says one or the other."""
    answer = answer_of(value, low, high)
    if always and answer == "neither":
        # Where a single miss refutes, its side makes no difference.
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

    @property
    def largest_share(self) -> float:
        """The share of the seeds that say what most of them do; 1 without seeds."""
        return max(self.agree, self.missed) / self.n if self.n else 1.0


def judge(
    values: Sequence[float], low: float, high: float, always: bool = False, most_seeds: int = 10
) -> Tally:
    """Judge a prediction by the values of its seeds, in order; a seed agrees if its value lies
    between two bounds. The test has `most_seeds` at most; with fewer than ten, it stays open.
    `always`: a single miss refutes, and ten seeds without a miss confirm."""
    answers = [answer_of_seed(value, low, high, always) for value in values]
    if always:
        counted = CountedSeeds(verdict_if_all_must_agree(answers), len(answers), may_change=False)
    elif most_seeds >= FEWEST_JUDGED:
        counted = verdict_of(answers, last_look(most_seeds))
    else:
        counted = CountedSeeds("open", 0, may_change=False)
    n = counted.seeds or len(answers)  # 0 where there are fewer than ten: then all are counted
    numbers = [value for value in values[:n] if not math.isnan(value)]
    middle = median_interval(numbers) if numbers else UNDEFINED
    return Tally(
        verdict=counted.verdict,
        agree=answers[:n].count("yes"),
        missed=most_against(answers[:n]),
        n=n,
        may_change=counted.may_change,
        median=middle.median,
        low=middle.low,
        high=middle.high,
    )


def verdict_if_all_must_agree(answers: Sequence[Answer]) -> Verdict:
    """The verdict where a single miss refutes: confirmed by ten seeds without one, else open."""
    if any(answer != "yes" for answer in answers):
        return "refuted"
    return "confirmed" if len(answers) >= FEWEST_JUDGED else "open"


def last_look(most_seeds: int) -> int:
    """Of the numbers of seeds at which the rule decides (10, 20 and 40), the largest that a test
    of at most `most_seeds` comes to."""
    return max(seeds for seeds in LOOKS if seeds <= most_seeds)


def power(most_seeds: int, share: float) -> float:
    """The probability that the rule confirms a prediction, in a test of at most 10, 20 or 40
    seeds, if that share of all seeds agrees with it."""
    chances: dict[Answer, float] = {"yes": share, "below": 1 - share}
    return verdict_chances([], chances)[last_look(most_seeds)]["confirmed"]


def common_verdict(verdicts: Collection[str]) -> str:
    """The verdict that all have, as at two lengths or on two processors; open if they differ."""
    first, *others = verdicts
    return first if all(verdict == first for verdict in others) else "open"


class Evidence(NamedTuple):
    """What a prediction says of its sentence."""

    role: RoleOfPrediction
    verdict: str  # on the prediction: confirmed, refuted or open; shown, if it is not judged

    @property
    def is_for(self) -> bool:
        """Whether it says that the sentence is true: as it says so itself and is confirmed, or as
        it says the opposite and is refuted."""
        return (self.role, self.verdict) in (("for", "confirmed"), ("against", "refuted"))

    @property
    def is_against(self) -> bool:
        """Whether it says that the sentence is false: as it says so itself and is confirmed, or as
        it says the opposite and is refuted."""
        return (self.role, self.verdict) in (("for", "refuted"), ("against", "confirmed"))

    @property
    def is_undecided(self) -> bool:
        """Whether it is there to say that the sentence is true or false, and says neither."""
        return self.role in DECIDE and not (self.is_for or self.is_against)


def verdict_on_sentence(evidence: Collection[Evidence]) -> str:
    """The verdict on a sentence from what its predictions say: it holds, holds in part (true for
    some, false for others), does not hold, or is undecided. A control that is not confirmed leaves
    it undecided. A prediction that is open keeps it from "holds", not from "does not hold"."""
    if any(each.role == "control" and each.verdict != "confirmed" for each in evidence):
        return "undecided"
    is_true_somewhere = any(each.is_for for each in evidence)
    if any(each.is_against for each in evidence):
        return "holds in part" if is_true_somewhere else "does not hold"
    is_open_somewhere = any(each.is_undecided for each in evidence)
    return "holds" if is_true_somewhere and not is_open_somewhere else "undecided"
