"""Criteria: whether the value of one seed agrees with a prediction.

NaN only contradicts exact criteria. `share` is the share of seeds that agree by the pilot.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from attnlab.claims.statistics import normal_cdf
from attnlab.runs.seed_statistics import Answer


@dataclass(frozen=True)
class AtLeast:
    """The value lies above `threshold`, in most seeds."""

    threshold: float
    unit: str = "nats"

    def answer(self, value: float) -> Answer:
        if value > self.threshold:
            return "yes"
        return "below" if value < self.threshold else "neither"

    def share(self, effect: float, sd: float) -> float:
        return normal_cdf(effect - self.threshold, sd)

    @property
    def wording(self) -> str:
        return f"at least {self.threshold:g} {self.unit}".strip()


@dataclass(frozen=True)
class AtMost:
    """The value lies below `threshold`, in most seeds."""

    threshold: float
    unit: str = "nats"

    def answer(self, value: float) -> Answer:
        if value < self.threshold:
            return "yes"
        return "above" if value > self.threshold else "neither"

    def share(self, effect: float, sd: float) -> float:
        return normal_cdf(self.threshold - effect, sd)

    @property
    def wording(self) -> str:
        return f"at most {self.threshold:g} {self.unit}".strip()


@dataclass(frozen=True)
class Within:
    """The value lies within `center` +- `margin`, in most seeds.

    Refuted only if enough seeds lie beyond the same edge.
    """

    margin: float
    center: float = 0.0
    unit: str = "nats"

    def answer(self, value: float) -> Answer:
        low, high = self.center - self.margin, self.center + self.margin
        if low < value < high:
            return "yes"
        if value < low:
            return "below"
        return "above" if value > high else "neither"

    def share(self, effect: float, sd: float) -> float:
        low, high = self.center - self.margin, self.center + self.margin
        return normal_cdf(high - effect, sd) - normal_cdf(low - effect, sd)

    @property
    def wording(self) -> str:
        return f"within {self.center:g} ± {self.margin:g} {self.unit}".strip()


@dataclass(frozen=True)
class Happens:
    """Something happens (value 1; otherwise 0), in most seeds."""

    event: str
    unit: ClassVar[str] = ""

    def answer(self, value: float) -> Answer:
        if value == 1:
            return "yes"
        return "below" if value == 0 else "neither"

    def share(self, effect: float, sd: float) -> float:
        return effect

    @property
    def wording(self) -> str:
        return self.event


@dataclass(frozen=True)
class Proof:
    """The value is the logarithm of an e-value of at least 1/alpha (Ville 1939), in most seeds.

    A seed without a proof is neither yes nor no, so this is confirmed or open, but never refuted.
    """

    alpha: float = 1e-9
    unit: ClassVar[str] = "nats of evidence"

    def answer(self, value: float) -> Answer:
        return "yes" if value >= math.log(1 / self.alpha) else "neither"

    def share(self, effect: float, sd: float) -> float:
        return effect

    @property
    def wording(self) -> str:
        return f"a proof with error probability below {self.alpha:g}"


@dataclass(frozen=True)
class Exactly:
    """Every value is exactly `value`; a single other value refutes."""

    value: float = 0.0
    unit: str = ""

    def answer(self, value: float) -> Answer:
        if value == self.value:
            return "yes"
        return "below" if value < self.value else "above"

    def share(self, effect: float, sd: float) -> float:
        return 1.0

    @property
    def wording(self) -> str:
        return f"exactly {self.value:g} {self.unit}".strip()


@dataclass(frozen=True)
class Bound:
    """Every value is at most `most`; a single larger value refutes."""

    most: float
    unit: str = ""

    def answer(self, value: float) -> Answer:
        return "yes" if value <= self.most else "above"

    def share(self, effect: float, sd: float) -> float:
        return 1.0

    @property
    def wording(self) -> str:
        return f"never above {self.most:g} {self.unit}".strip()


Criterion = AtLeast | AtMost | Within | Happens | Proof | Exactly | Bound
EXACT = (Exactly, Bound)


def difference(first: float, second: float) -> float:
    """The first arm minus the second, paired by seed: same initial weights, same batches."""
    return first - second


def level(first: float) -> float:
    """The score of the first arm."""
    return first
