"""The error of repeated looks at a count, and the noise of a pilot."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import special


def reach_probability(share: float, looks: Sequence[tuple[int, int]]) -> float:
    """Probability that enough seeds say yes at some look, if each does with probability `share`.

    Exact, by recursion over the binomial distribution of the count between two looks. A look is
    (n, a): of the first n seeds, at least a must say yes.
    """
    reached, seen = 0.0, 0
    alive = {0: 1.0}  # count of yes -> probability, of sequences that reached no bar so far
    for n, bar in looks:
        after: dict[int, float] = {}
        for count, p in alive.items():
            for more in range(n - seen + 1):
                q = p * math.comb(n - seen, more) * share**more * (1 - share) ** (n - seen - more)
                after[count + more] = after.get(count + more, 0.0) + q
        reached += sum(p for count, p in after.items() if count >= bar)
        alive = {count: p for count, p in after.items() if count < bar}
        seen = n
    return reached


def normal_cdf(distance: float, sd: float) -> float:
    """P(noise < distance) for normal noise; a step where sd is 0."""
    if sd == 0:
        return 0.5 if distance == 0 else float(distance > 0)
    return float(special.ndtr(distance / sd))


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Exponent of a power law y = a x^b, by least squares of the logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
