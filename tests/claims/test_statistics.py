"""Intervals and tests against known answers and published tables."""

import math

import numpy as np
import pytest
from scipy import stats

from attnlab.claims import statistics


def test_summary_of_known_values():
    s = statistics.summarize([1.0, 2.0, 3.0, 4.0])
    assert (s.n, s.mean) == (4, 2.5)
    assert s.sd == pytest.approx(1.2909944, abs=1e-7)
    assert s.se == pytest.approx(s.sd / 2)  # sd / sqrt(n), not sd / n
    assert s.high - s.mean == pytest.approx(3.182446 * s.se, abs=1e-5)  # t(0.975, 3)


def test_one_value_has_no_spread():
    s = statistics.summarize([1.5])
    assert s.mean == 1.5
    assert math.isnan(s.sd) and math.isnan(s.low)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_what_is_not_finite_is_refused(values):
    with pytest.raises(ValueError, match=r"values|finite"):
        statistics.summarize(values)


def test_p_agrees_with_scipy():
    x = [0.3, 0.1, 0.4, -0.2, 0.25]
    reference = stats.ttest_1samp(x, 0.05, alternative="greater").pvalue
    assert statistics.p_greater(x, 0.05) == pytest.approx(reference)
    assert statistics.p_less(x, 0.05) == pytest.approx(1 - reference)


@pytest.mark.parametrize(("value", "p"), [(0.2, 0.0), (0.1, 0.5), (0.0, 1.0)])
def test_values_without_spread(value, p):
    assert statistics.p_greater([value] * 4, 0.1) == p


@pytest.mark.parametrize("n", [5, 6, 8, 10])
def test_sign_flip_reaches_its_smallest_p(n):
    assert statistics.sign_flip([1.0 + i for i in range(n)]) == 2 / 2**n


def test_sign_flip_agrees_with_scipy():
    x = np.random.default_rng(3).normal(0.3, 1, 9)
    reference = stats.permutation_test(
        (x, np.zeros(9)), lambda a, b: (a - b).mean(), permutation_type="samples", n_resamples=9999
    )
    assert statistics.sign_flip(x) == pytest.approx(reference.pvalue)


def test_sign_flip_of_many_seeds_is_drawn_and_repeatable():
    x = np.random.default_rng(0).normal(0.5, 1, 24)
    p = statistics.sign_flip(x)
    assert p == statistics.sign_flip(x)
    assert p == pytest.approx(stats.ttest_1samp(x, 0).pvalue, abs=0.02)


def test_tost_wants_the_interval_inside():
    tight = [0.001, -0.001, 0.0005, -0.0005, 0.0, 0.0002]
    assert statistics.tost(tight, 0.005) < 0.001
    assert statistics.tost([v * 100 for v in tight], 0.005) > 0.3


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [(0, 10, 0.0, 0.30850), (10, 10, 0.69150, 1.0), (5, 10, 0.18709, 0.81291)],
)
def test_clopper_pearson_against_its_table(k, n, low, high):
    assert statistics.clopper_pearson(k, n) == pytest.approx((low, high), abs=1e-5)


def test_clopper_pearson_refuses_what_is_no_proportion():
    with pytest.raises(ValueError, match="3 of 2"):
        statistics.clopper_pearson(3, 2)


def test_holm_by_hand():
    adjusted = statistics.holm({"a": 0.01, "b": 0.04, "c": 0.03})
    assert adjusted == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})


def test_slope_of_a_power_law():
    x = [32, 64, 128, 256]
    assert statistics.slope(x, [3e-6 * v**2 for v in x]) == pytest.approx(2)
