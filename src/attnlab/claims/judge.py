"""The rule: from the values of seeds to a verdict on a prediction, and from those to a sentence.

docs/claims.md states the rule. Claims and the ranking are both judged here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["confirmed", "refuted", "open"]
Sentence = Literal["holds", "holds only if", "does not hold", "open"]
STAGES = ((10, 10), (20, 17), (40, 31))  # after so many seeds, so many must agree
FEWEST = STAGES[0][0]  # with fewer seeds, values are shown and not judged


@dataclass(frozen=True)
class Criterion:
    """A seed agrees if its value lies between `low` and `high`.

    A value on a bound neither agrees nor contradicts. With `always`, no statistics are needed: the
    bounds belong to the range, one miss refutes, and ten seeds without a miss confirm.
    """

    low: float = -math.inf
    high: float = math.inf
    unit: str = "nats"
    always: bool = False

    def answer(self, value: float) -> str:
        """yes, below, above, or "" for neither; a NaN contradicts only with `always`."""
        if value < self.low:
            return "below"
        if value > self.high or (self.always and math.isnan(value)):
            return "above"
        on_bound = math.isfinite(value) and value in (self.low, self.high)  # inf is no bound
        return "" if math.isnan(value) or (on_bound and not self.always) else "yes"

    def __str__(self) -> str:
        low, high, word = self.low, self.high, "always " if self.always else ""
        if low == high:
            said = f"exactly {low:g}"
        elif math.isinf(high):
            said = f"above {low:g}"
        else:
            said = f"below {high:g}" if math.isinf(low) else f"from {low:g} to {high:g}"
        return f"{word}{said} {self.unit}".strip()


@dataclass(frozen=True)
class Outcome:
    """The verdict on one prediction at one length of training, with its numbers."""

    verdict: Verdict
    yes: int  # seeds that agree, of the first n
    no: int  # seeds that contradict on one side, the one with more of them
    n: int  # judged seeds: up to the last complete stage, or all if there are fewer than 10
    undecided: bool  # a later stage could still decide
    median: float
    low: float  # exact interval of the median; NaN with fewer than 6 seeds
    high: float


def judge(values: Sequence[float], criterion: Criterion, most: int = 10) -> Outcome:
    """Judge a prediction by one value a seed, in order; `most` seeds (10, 20, 40) may be used."""
    answers = [criterion.answer(value) for value in values]
    verdict, n, undecided = _decide(answers, criterion.always, most)
    n = n or len(answers)
    numbers = [value for value in values[:n] if not math.isnan(value)]
    interval = median_interval(numbers) if numbers else (math.nan,) * 3
    yes, no = answers[:n].count("yes"), _against(answers[:n])
    return Outcome(verdict, yes, no, n, undecided, *interval)


def _decide(answers: list[str], always: bool, most: int) -> tuple[Verdict, int, bool]:
    """The verdict, on how many seeds it rests, and whether a later stage could decide."""
    if always:
        missed = any(answer != "yes" for answer in answers)
        enough: Verdict = "confirmed" if len(answers) >= FEWEST else "open"
        return "refuted" if missed else enough, len(answers), False
    judged, stages = 0, [stage for stage in STAGES if stage[0] <= most]
    for n, bar in stages:
        if len(answers) < n:
            break
        judged = n
        if answers[:n].count("yes") >= bar:
            return "confirmed", n, False
        if _against(answers[:n]) >= bar:
            return "refuted", n, False
    best = max(answers[:judged].count("yes"), _against(answers[:judged]))
    return "open", judged, any(best + n - judged >= bar for n, bar in stages if n > judged)


def _against(answers: Sequence[str]) -> int:
    return max(answers.count("below"), answers.count("above"))


def at_all_lengths(verdicts: Sequence[str]) -> str:
    """A prediction at several lengths of training is decided if all lengths say the same."""
    return verdicts[0] if len(set(verdicts)) == 1 else "open"


def sentence(verdicts: Sequence[tuple[str, str]]) -> Sentence:
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


def median_interval(
    values: Sequence[float], confidence: float = 0.95
) -> tuple[float, float, float]:
    """The median, and an exact interval for it between two order statistics, for any noise.

    The r-th smallest and r-th largest of n values enclose it with probability
    1 - 2 P(Binomial(n, 1/2) < r).
    """
    x, n = sorted(values), len(values)
    middle = (x[(n - 1) // 2], x[n // 2])
    median = middle[0] if middle[0] == middle[1] else sum(middle) / 2
    r, outside = 0, 2 / 2**n
    while 1 - outside >= confidence:
        r += 1
        outside += 2 * math.comb(n, r) / 2**n
    return (median, x[r - 1], x[n - r]) if r else (median, math.nan, math.nan)


def chance(share: float, most: int) -> float:
    """P(confirmed) if each seed agrees with probability `share`: at 1/2, the error."""
    confirmed, seen, alive = 0.0, 0, {0: 1.0}  # count of yes -> probability, not yet confirmed
    for n, bar in [stage for stage in STAGES if stage[0] <= most]:
        after: dict[int, float] = {}
        for count, p in alive.items():
            for more in range(n - seen + 1):
                q = p * math.comb(n - seen, more) * share**more * (1 - share) ** (n - seen - more)
                after[count + more] = after.get(count + more, 0.0) + q
        confirmed += sum(p for count, p in after.items() if count >= bar)
        alive, seen = {count: p for count, p in after.items() if count < bar}, n
    return confirmed
