"""What a claim may predict of its values, and how that is judged: each can lose.

A prediction takes one value a seed (a paired difference where two arms are compared) and gives an
`Outcome`. Thresholds are inside it, fixed beforehand, and go into the claim's hash.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from attnlab.claims import statistics

Verdict = Literal["supported", "refuted", "inconclusive"]

ALPHA = 0.05  # of a two-sided test; each side gets half


@dataclass(frozen=True)
class Outcome:
    """A prediction held against values.

    Args:
        verdict: supported, refuted or inconclusive.
        line: why, in plain English.
        p: two-sided p for "supported"; None where nothing random was tested.
        summary: n, mean, sd and 95 % interval of the values.
        sign_flip_p: exact, beside the t-test's p; None where it does not apply.
    """

    verdict: Verdict
    line: str
    p: float | None = None
    summary: statistics.Summary | None = None
    sign_flip_p: float | None = None


@dataclass(frozen=True)
class AtLeast:
    """The true mean is above `threshold`.

    Supported if the 95 % interval lies wholly above it, refuted if wholly below.

    Args:
        threshold: the smallest effect that counts.
        expected: the declared effect, for which the number of seeds suffices.
        unit: for the sentence.
    """

    threshold: float
    expected: float | None = None
    unit: str = "nats"

    def judge(self, values: Sequence[float]) -> Outcome:
        above = statistics.p_greater(values, self.threshold)
        below = statistics.p_less(values, self.threshold)
        return _one_sided(values, above, below, self.threshold, self.wording, self.unit)

    @property
    def wording(self) -> str:
        return f"at least {self.threshold:g} {self.unit}".strip()


@dataclass(frozen=True)
class AtMost:
    """The true mean is below `threshold`; arguments as those of `AtLeast`."""

    threshold: float
    expected: float | None = None
    unit: str = "nats"

    def judge(self, values: Sequence[float]) -> Outcome:
        above = statistics.p_greater(values, self.threshold)
        below = statistics.p_less(values, self.threshold)
        return _one_sided(values, below, above, self.threshold, self.wording, self.unit)

    @property
    def wording(self) -> str:
        return f"at most {self.threshold:g} {self.unit}".strip()


@dataclass(frozen=True)
class Within:
    """The true mean lies within `center` +- `margin` (equivalence, by two one-sided tests).

    Supported if the 90 % interval lies inside (Schuirmann 1987), refuted if the 95 % interval
    lies wholly outside. A difference that is merely not significant supports nothing.
    """

    margin: float
    center: float = 0.0
    expected: float | None = None
    unit: str = "nats"

    def judge(self, values: Sequence[float]) -> Outcome:
        shifted = [value - self.center for value in values]
        summary = statistics.summarize(values)
        inside = statistics.tost(shifted, self.margin)
        outside = min(
            statistics.p_greater(shifted, self.margin), statistics.p_less(shifted, -self.margin)
        )
        verdict = _verdict(inside < ALPHA, outside < ALPHA / 2)
        line = f"predicted {self.wording}; measured {_measured(summary, self.unit)}"
        return Outcome(verdict, line, inside, summary)

    @property
    def wording(self) -> str:
        return f"within {self.center:g} ± {self.margin:g} {self.unit}".strip()


@dataclass(frozen=True)
class Exactly:
    """Every single value is `value`, to the last bit."""

    value: float = 0.0
    expected: float | None = None
    unit: str = ""

    def judge(self, values: Sequence[float]) -> Outcome:
        misses = sum(value != self.value for value in values)
        verdict: Verdict = "refuted" if misses else "supported"
        line = f"predicted {self.wording}; {len(values) - misses} of {len(values)} are"
        return Outcome(verdict, line, summary=statistics.summarize(values))

    @property
    def wording(self) -> str:
        return f"exactly {self.value:g} {self.unit}".strip()


@dataclass(frozen=True)
class Proved:
    """Every value is the logarithm of an e-value of at least 1/alpha (Ville 1939).

    Under the null hypothesis such a value has probability alpha at most, whatever the stopping.
    A martingale that did not rise is no proof of the opposite, but it does lose the prediction.
    """

    alpha: float = 1e-9
    expected: float | None = None
    unit: str = "nats of evidence"

    def judge(self, values: Sequence[float]) -> Outcome:
        bound = math.log(1 / self.alpha)
        proven = sum(value >= bound for value in values)
        verdict = _verdict(proven == len(values), proven == 0)
        weakest = min(values)
        line = (
            f"predicted {self.wording}; {proven} of {len(values)} proven, "
            f"the weakest with p <= {_power_of_ten(-weakest / math.log(10))}"
        )
        p = min(1.0, math.exp(-max(weakest, 0.0)))
        return Outcome(verdict, line, p, statistics.summarize(values))

    @property
    def wording(self) -> str:
        return f"a proof with error probability below {self.alpha:g} for every seed"


@dataclass(frozen=True)
class ShareAtLeast:
    """The share of seeds at which something happens (value 1, otherwise 0) is above `threshold`.

    By the exact interval of Clopper and Pearson.
    """

    threshold: float = 0.5
    expected: float | None = None
    unit: str = "of the seeds"

    def judge(self, values: Sequence[float]) -> Outcome:
        hits = sum(value == 1 for value in values)
        low, high = statistics.clopper_pearson(hits, len(values))
        verdict = _verdict(low > self.threshold, high < self.threshold)
        line = (
            f"predicted {self.wording}; {hits} of {len(values)} "
            f"(95 % interval {low:.0%} to {high:.0%})"
        )
        p = statistics.binomial_p(hits, len(values), self.threshold)
        return Outcome(verdict, line, p, statistics.summarize(values))

    @property
    def wording(self) -> str:
        return f"more than {self.threshold:.0%} {self.unit}".strip()


Prediction = AtLeast | AtMost | Within | Exactly | Proved | ShareAtLeast


def _one_sided(
    values: Sequence[float],
    p_for: float,
    p_against: float,
    threshold: float,
    wording: str,
    unit: str,
) -> Outcome:
    summary = statistics.summarize(values)
    verdict = _verdict(p_for < ALPHA / 2, p_against < ALPHA / 2)
    line = f"predicted {wording}; measured {_measured(summary, unit)}"
    flip = statistics.sign_flip(values, threshold) if len(values) > 1 else None
    return Outcome(verdict, line, min(1.0, 2 * p_for), summary, flip)


def _verdict(supported: bool, refuted: bool) -> Verdict:
    if supported:
        return "supported"
    return "refuted" if refuted else "inconclusive"


def _measured(summary: statistics.Summary, unit: str) -> str:
    if summary.n == 1:
        return f"{summary.mean:.4g} {unit} at one seed, which has no spread to judge by"
    interval = f"95 % interval {summary.low:.4g} to {summary.high:.4g}, {summary.n} seeds"
    return f"{summary.mean:.4g} {unit} ({interval})"


def _power_of_ten(exponent: float) -> str:
    return f"1e{math.ceil(min(exponent, 0.0)):d}"
