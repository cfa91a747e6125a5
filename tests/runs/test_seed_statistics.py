"""Exact statistics, compared with known answers and published tables."""

import math

import pytest
from scipy import stats

from attnlab.runs.seed_statistics import median_interval


@pytest.mark.parametrize(("n", "low", "high"), [(10, 2, 9), (20, 6, 15), (40, 14, 27)])
def test_the_interval_of_the_median_lies_between_order_statistics(n, low, high):
    values = [float(x) for x in range(1, n + 1)]
    assert median_interval(values[::-1]) == ((n + 1) / 2, low, high)
    coverage = 1 - 2 * stats.binom.cdf(low - 1, n, 0.5)
    assert coverage >= 0.95 > 1 - 2 * stats.binom.cdf(low, n, 0.5)


def test_few_values_have_a_median_and_no_interval():
    median, low, high = median_interval([3.0, 1.0, 2.0])
    assert median == 2.0 and math.isnan(low) and math.isnan(high)
    assert median_interval([math.inf] * 6 + [0.0] * 4)[0] == math.inf


@pytest.mark.parametrize("values", [[], [1.0, math.nan]])
def test_a_median_needs_values_without_nan(values):
    with pytest.raises(ValueError, match="values"):
        median_interval(values)
