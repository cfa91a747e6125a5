"""From the values of seeds to a verdict on a prediction, and from those to one on a sentence.

docs/claims.md states the rule, and `attnlab.runs.seed_statistics` counts. Claims and the ranking
are both judged here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from attnlab.runs.seed_statistics import LOOKS, Answer, median_interval, verdict_of

FEWEST = LOOKS[0][0]  # with fewer seeds, values are shown and not judged


def answer(value: float, low: float, high: float, always: bool = False) -> Answer:
    """Whether a value agrees, as it lies between two bounds, or on which side it misses.

    A value on a bound neither agrees nor contradicts. With `always`, no statistics are needed: the
    bounds belong to the range, one miss refutes, and ten seeds without a miss confirm.
    """
    if value < low:
        return "below"
    if value > high or (always and math.isnan(value)):
        return "above"
    on_bound = math.isfinite(value) and value in (low, high)  # inf is no bound
    return "neither" if math.isnan(value) or (on_bound and not always) else "yes"


@dataclass(frozen=True)
class Outcome:
    """The verdict on one prediction at one length of training, with its numbers."""

    verdict: str  # confirmed, refuted or open
    yes: int  # seeds that agree, of the first n
    n: int  # judged seeds: up to the last complete stage, or all if there are fewer than 10
    undecided: bool  # a later stage could still decide
    median: float
    low: float  # exact interval of the median; NaN with fewer than 6 seeds
    high: float


def judge(
    values: Sequence[float], low: float, high: float, always: bool = False, most: int = 10
) -> Outcome:
    """Judge a prediction by one value a seed, in order; `most` seeds may be used."""
    answers = [answer(value, low, high, always) for value in values]
    verdict, n, undecided = "open", 0, False
    if always:
        missed = any(x != "yes" for x in answers)
        verdict = "refuted" if missed else "confirmed" if len(answers) >= FEWEST else "open"
    elif most >= FEWEST:
        verdict, n, undecided = verdict_of(answers, max(n for n, _ in LOOKS if n <= most))
    n = n or len(answers)
    numbers = [value for value in values[:n] if not math.isnan(value)]
    interval = median_interval(numbers) if numbers else (math.nan,) * 3
    return Outcome(verdict, answers[:n].count("yes"), n, undecided, *interval)


def sentence(verdicts: Sequence[tuple[str, str]]) -> str:
    """The verdict on a sentence from (role, verdict) of its predictions.

    Roles: "for" and "against" decide; a "control" must be confirmed; others do not count.
    """
    if any(role == "control" and verdict != "confirmed" for role, verdict in verdicts):
        return "open"
    deciding = [(role, verdict) for role, verdict in verdicts if role in ("for", "against")]
    true = sum((role == "for") == (v == "confirmed") for role, v in deciding if v != "open")
    undecided = sum(verdict == "open" for _, verdict in deciding)
    if true + undecided < len(deciding):
        return "holds only if" if true else "does not hold"
    return "holds" if true and not undecided else "open"
