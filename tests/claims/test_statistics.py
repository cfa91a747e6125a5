"""The noise of a pilot and the exponents of power laws, compared with known answers."""

import pytest
from scipy import stats

from attnlab.claims import statistics


def test_normal_cdf_is_a_step_without_noise():
    assert statistics.normal_cdf(1.0, 0.5) == pytest.approx(stats.norm.cdf(2))
    assert [statistics.normal_cdf(x, 0.0) for x in (-1.0, 0.0, 1.0)] == [0.0, 0.5, 1.0]


def test_the_exponent_of_a_power_law():
    assert statistics.slope([1, 2, 4], [3, 12, 48]) == pytest.approx(2)
