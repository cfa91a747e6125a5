"""Small-sample statistics: intervals, exact tests, equivalence, families of claims.

With the handful of seeds that training allows, t-intervals keep their coverage and the bootstrap
does not; the exact sign-flip test stands beside them because it assumes symmetry only.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special

MOST_FLIPS = 16  # seeds up to which all 2^n sign flips are counted


@dataclass(frozen=True)
class Summary:
    """Mean of n values with its spread.

    Args:
        n: how many values.
        mean: their mean.
        sd: standard deviation with n - 1 below; NaN for one value.
        se: sd / sqrt(n).
        low, high: two-sided 95 % t-interval of the mean; NaN for one value.
    """

    n: int
    mean: float
    sd: float
    se: float
    low: float
    high: float


def summarize(values: Sequence[float], confidence: float = 0.95) -> Summary:
    """Mean, standard deviation, standard error and Student's t-interval (Student 1908).

    Raises:
        ValueError: no values, or one that is not finite: diverged runs are scored before.
    """
    x = _finite(values)
    mean = float(x.mean())
    if len(x) == 1:
        return Summary(1, mean, math.nan, math.nan, math.nan, math.nan)
    sd = float(x.std(ddof=1))
    se = sd / math.sqrt(len(x))
    half = se * float(special.stdtrit(len(x) - 1, (1 + confidence) / 2))
    return Summary(len(x), mean, sd, se, mean - half, mean + half)


def p_greater(values: Sequence[float], threshold: float) -> float:
    """One-sided p of Student's t-test: how easily a true mean <= threshold gives such values.

    Values without any spread give 0, 1/2 or 1, by the side of the threshold on which they lie.
    """
    x = _finite(values)
    if len(x) < 2:
        return 1.0
    excess = float(x.mean()) - threshold
    se = float(x.std(ddof=1)) / math.sqrt(len(x))
    if se == 0:
        return 0.5 * (1 - float(np.sign(excess)))
    return float(special.stdtr(len(x) - 1, -excess / se))


def p_less(values: Sequence[float], threshold: float) -> float:
    """The same for the other side: a true mean >= threshold."""
    return p_greater([-value for value in values], -threshold)


def sign_flip(values: Sequence[float], threshold: float = 0.0) -> float:
    """Exact two-sided p of the sign-flip test (Fisher 1935) of values symmetric about a threshold.

    All 2^n assignments of signs are counted, so p is 2/2^n at least: 0.031 for six seeds. Above
    16 values 65,536 assignments are drawn from a fixed stream instead, the observed one included.
    """
    x = _finite(values) - threshold
    observed = abs(float(x.sum()))
    # Rounding must not make the observed assignment less extreme than itself.
    extreme = np.abs(_signs(len(x)) @ x) >= observed * (1 - 1e-12)
    return float(extreme.mean())


def tost(values: Sequence[float], margin: float) -> float:
    """p of two one-sided tests (Schuirmann 1987) that the true mean lies outside +-margin."""
    return max(p_greater(values, -margin), p_less(values, margin))


def clopper_pearson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact two-sided interval of a proportion (Clopper and Pearson 1934).

    Raises:
        ValueError: not 0 <= successes <= n with n >= 1.
    """
    if not (n >= 1 and 0 <= successes <= n):
        raise ValueError(f"{successes} of {n} is no proportion")
    tail = (1 - confidence) / 2
    low = float(special.betaincinv(successes, n - successes + 1, tail)) if successes else 0.0
    high = (
        float(special.betaincinv(successes + 1, n - successes, 1 - tail)) if successes < n else 1.0
    )
    return low, high


def binomial_p(successes: int, n: int, share: float) -> float:
    """Two-sided p for a true share of at most `share`, as the Clopper-Pearson interval has it."""
    return (
        min(1.0, 2 * float(special.betainc(successes, n - successes + 1, share)))
        if successes
        else 1.0
    )


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """Holm's (1979) adjusted p-values of a family: compare each with the family's alpha."""
    adjusted: dict[str, float] = {}
    highest = 0.0
    for rank, name in enumerate(sorted(p, key=lambda key: (p[key], key))):
        highest = max(highest, min(1.0, (len(p) - rank) * p[name]))
        adjusted[name] = highest
    return adjusted


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Exponent of a power law y = a x^b by least squares of the logarithms."""
    return float(np.polyfit(np.log(_finite(x)), np.log(_finite(y)), 1)[0])


@lru_cache(maxsize=8)
def _signs(n: int) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    if n <= MOST_FLIPS:
        return np.array(list(itertools.product((1.0, -1.0), repeat=n)))
    signs = np.random.default_rng(0).choice((1.0, -1.0), size=(2**MOST_FLIPS, n))
    signs[0] = 1.0
    return signs


def _finite(values: Sequence[float]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or not len(x):
        raise ValueError("there are no values")
    if not np.isfinite(x).all():
        raise ValueError(f"{[float(v) for v in x]} are not all finite")
    return x
