"""The rule, by enumeration: stages of 10, 20 and 40 seeds, errors, medians, and contrasts."""

import math
from itertools import product

import pytest
from pydantic import ValidationError

from attnlab.claims.claim import Claim, Prediction
from attnlab.claims.judge import Evidence, judge, verdict_on_sentence

INF, NAN = math.inf, math.nan
ABOVE, BELOW, WITHIN, EXACT = (0.0, INF), (-INF, 0.0), (-1.0, 1.0), (0.0, 0.0, True)
YES, NO = [1.0], [-1.0]


@pytest.mark.parametrize(
    ("values", "bounds", "most", "verdict", "yes", "n", "undecided"),
    [
        (YES * 9, ABOVE, 10, "open", 9, 9, True),
        (YES * 10, ABOVE, 10, "confirmed", 10, 10, False),
        (NO * 10, ABOVE, 10, "refuted", 0, 10, False),
        (YES * 9 + NO, ABOVE, 10, "open", 9, 10, False),
        (YES * 7 + NO * 3, ABOVE, 20, "open", 7, 10, True),
        (YES * 6 + NO * 4, ABOVE, 20, "open", 6, 10, False),  # 16 of 20 would be too few
        (YES * 6 + NO * 4, ABOVE, 40, "open", 6, 10, True),
        (YES * 7 + NO * 3 + YES * 9, ABOVE, 20, "open", 7, 10, True),  # 19: not yet read
        (YES * 7 + NO * 3 + YES * 10, ABOVE, 20, "confirmed", 17, 20, False),
        (NO * 7 + YES * 3 + NO * 10, ABOVE, 20, "refuted", 3, 20, False),
        (YES * 16 + NO * 4, ABOVE, 20, "confirmed", 10, 10, False),  # decided by the first ten
        (NO * 4 + YES * 16, ABOVE, 20, "open", 16, 20, False),
        (NO * 9 + YES * 31, ABOVE, 40, "confirmed", 31, 40, False),
        (NO * 10 + YES * 30, ABOVE, 40, "refuted", 0, 10, False),
        (YES + NO * 9 + YES * 29, ABOVE, 40, "open", 11, 20, True),
        (YES + NO * 9 + YES * 29 + NO, ABOVE, 40, "open", 30, 40, False),
        ([0.0] * 10, ABOVE, 40, "open", 0, 10, False),  # on the bound: neither
        ([NAN] * 10, ABOVE, 10, "open", 0, 10, False),
        (YES * 9 + [NAN], ABOVE, 10, "open", 9, 10, False),
        ([INF] * 10, ABOVE, 10, "confirmed", 10, 10, False),  # a diverged run is worse
        ([-INF] * 10, ABOVE, 10, "refuted", 0, 10, False),
        ([-INF] * 10, BELOW, 10, "confirmed", 10, 10, False),
        ([INF] * 10, WITHIN, 10, "refuted", 0, 10, False),
        ([0.0] * 10, WITHIN, 10, "confirmed", 10, 10, False),
        ([-2.0] * 10, WITHIN, 10, "refuted", 0, 10, False),
        ([-2.0, 2.0] * 5, WITHIN, 10, "open", 0, 10, False),  # misses on different sides
        ([0.0] * 10, EXACT, 10, "confirmed", 10, 10, False),
        ([0.0] * 9, EXACT, 10, "open", 9, 9, False),
        ([0.0] * 2 + [1e-30], EXACT, 10, "refuted", 2, 3, False),
        ([0.0] * 19 + [NAN], EXACT, 20, "refuted", 19, 20, False),
    ],
)
def test_a_prediction_is_judged(values, bounds, most, verdict, yes, n, undecided):
    tally = judge(values, *bounds, most_seeds=most)
    assert (tally.verdict, tally.may_change) == (verdict, undecided)
    assert (tally.agree, tally.n) == (yes, n)


@pytest.mark.parametrize(
    ("most", "share", "expected"),  # at 1/2: how often chance confirms, as docs/claims.md says
    [(10, 0.5, 0.000977), (20, 0.5, 0.002097), (40, 0.5, 0.002339), (40, 0.8, 0.757912)],
)
def test_the_probability_of_a_verdict_is_that_of_all_sequences(most, share, expected):
    sizes = [10, 10, 20][: {10: 1, 20: 2, 40: 3}[most]]  # the order within a stage is irrelevant
    p = dict.fromkeys(["confirmed", "refuted", "open"], 0.0)
    for counts in product(*(range(size + 1) for size in sizes)):
        stages = list(zip(counts, sizes, strict=True))
        values = [x for k, size in stages for x in YES * k + NO * (size - k)]
        ways = math.prod(math.comb(size, k) for k, size in stages)
        weight = ways * share ** sum(counts) * (1 - share) ** (most - sum(counts))
        p[judge(values, *ABOVE, most_seeds=most).verdict] += weight
    assert p["confirmed"] == pytest.approx(expected, abs=1e-6)
    assert p["refuted"] == pytest.approx(expected, abs=1e-6) or share > 0.5


@pytest.mark.parametrize("n", range(1, 13))
def test_the_interval_of_a_median_is_exact_and_leaves_out_nan(n):
    values = [float(5 * i % 13) or INF for i in range(n)]
    tally, ordered = judge([NAN, *values], *ABOVE, most_seeds=9), sorted(values)
    assert tally.median == (ordered[(n - 1) // 2] + ordered[n // 2]) / 2

    def encloses(r):  # the share of all 2^n sides of the true median on which values may lie
        return sum(r <= sum(sides) <= n - r for sides in product((0, 1), repeat=n)) / 2**n

    ranks = [r for r in range(1, n // 2 + 1) if encloses(r) >= 0.95]
    if ranks:
        assert (tally.low, tally.high) == (ordered[max(ranks) - 1], ordered[n - max(ranks)])
    else:
        assert n < 6 and math.isnan(tally.low) and math.isnan(tally.high)


@pytest.mark.parametrize(
    ("settings", "scores", "value"),
    [
        ({}, [3.0], 3.0),
        ({}, [3.0, 5.0], -2.0),
        ({"contrast": "level"}, [3.0, 5.0], 3.0),
        ({"contrast": "min"}, [3.0, 5.0, 2.0], 2.0),
        ({"contrast": "max"}, [3.0, 5.0, 2.0], 5.0),
        ({"contrast": "interaction"}, [9.0, 5.0, 3.0, 2.0], 3.0),
        ({"weights": [0.5, 0.5, -1.0]}, [3.0, 5.0, 2.0], 2.0),
        ({}, [math.inf, 5.0], math.inf),
        ({}, [math.inf, math.inf], NAN),
    ],
)
def test_the_value_of_a_seed(settings, scores, value):
    prediction = Prediction(says="", arms=["a"] * len(scores), above=0.0, **settings)
    assert prediction.value(scores) == pytest.approx(value, nan_ok=True)


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        ([("for", "confirmed")], "holds"),
        ([("for", "refuted")], "does not hold"),
        ([("against", "confirmed")], "does not hold"),
        ([("against", "refuted")], "holds"),
        ([("for", "confirmed"), ("against", "confirmed")], "holds in part"),
        ([("for", "confirmed"), ("for", "open")], "undecided"),
        ([("for", "refuted"), ("for", "open")], "does not hold"),
        ([("for", "confirmed"), ("secondary", "refuted"), ("shown", "shown")], "holds"),
        ([("for", "confirmed"), ("control", "confirmed")], "holds"),
        ([("for", "confirmed"), ("control", "open")], "undecided"),
        ([("for", "refuted"), ("control", "refuted")], "undecided"),
        ([("for", "shown"), ("against", "shown")], "undecided"),  # by pilots alone
    ],
)
def test_the_verdict_on_a_sentence(verdicts, said):
    evidence = [Evidence(*each) for each in verdicts]
    assert verdict_on_sentence(evidence) == said
    assert verdict_on_sentence(evidence[::-1]) == said


@pytest.mark.parametrize(
    ("prediction", "claim"),
    [({}, {}), ({"above": 0, "seeds": 3}, {}), ({"above": 0, "treshold": 1}, {}),
     ({"above": 0, "arms": ["a", "c"]}, {}), ({"above": 0, "weights": [1, -1, 1]}, {}),
     ({"above": 0, "weights": [1, -1], "contrast": "min"}, {}),
     ({"above": 0, "rates": [0.001, 0.01]}, {}), ({"above": 0, "rates": [0.01, 0.001]}, {}),
     ({"above": 0, "rates": [0.01]}, {}),  # nothing to choose, and nothing to extend
     ({"above": 0}, {"first_seed": 995}),  # the seeds of pilots
     ({"above": 0}, {"most_seeds": 30})],
)  # fmt: skip
def test_a_claim_that_cannot_be_judged_is_not_read(prediction, claim):
    good = {"says": "", "arms": ["a", "b"], "above": 0}
    content = {"says": "", "base": [], "first_seed": 0, "arms": {"a": ["x=1"], "b": ["x=2"]}}
    assert Claim(**content, predictions={"p": good}).predictions
    with pytest.raises(ValidationError):
        bad = {k: v for k, v in good.items() if k != "above"} | prediction
        Claim(**content | claim, predictions={"p": bad})
