"""The rule for verdicts: its error rates and its power, exact and simulated."""

import math

import numpy as np
import pytest

from attnlab.claims import (
    Arm,
    AtLeast,
    AtMost,
    Bound,
    Claim,
    Exactly,
    Happens,
    Pilot,
    Proof,
    RunMetric,
    Trained,
    Within,
)
from attnlab.claims.evaluate import judge_prediction
from attnlab.claims.judge import decide, judge, judge_claim
from attnlab.claims.results import Evidence, PredictionResult
from attnlab.claims.rows import score
from attnlab.claims.statistics import reach_probability
from attnlab.errors import BadInput
from attnlab.runs.seed_statistics import declared_looks

SIMULATIONS = 4000
ERRORS = {10: 0.00098, 20: 0.00210, 40: 0.00234}


@pytest.mark.parametrize(("last_look", "error"), ERRORS.items())
def test_the_error_of_the_looks_is_exact(last_look, error):
    assert reach_probability(0.5, declared_looks(last_look)) == pytest.approx(error, abs=5e-6)


def test_the_recursion_agrees_with_counting_all_sequences():
    looks, n = ((3, 3), (6, 5)), 6
    hits = 0
    for bits in range(2**n):
        yes = [bits >> i & 1 for i in range(n)]
        hits += any(sum(yes[:m]) >= bar for m, bar in looks)
    assert reach_probability(0.5, looks) == pytest.approx(hits / 2**n)


def noise(kind, rng, shape):
    """Noise whose median is 0, in units of about one standard deviation."""
    if kind == "normal":
        return rng.normal(size=shape)
    if kind == "t3":
        return rng.standard_t(3, size=shape) / math.sqrt(3)
    if kind == "Cauchy":
        return rng.standard_cauchy(size=shape) * 0.674
    if kind in ("exponential", "exponential, mirrored"):
        x = rng.exponential(size=shape) - math.log(2)
        return x if kind == "exponential" else -x
    x = rng.normal(size=shape)
    side = np.inf if kind == "diverged for" else -np.inf
    diverged = rng.random(shape) < 0.1
    x = np.where(diverged, side, x)
    # The median of the whole, diverged seeds included, is moved back to 0.
    share = (0.5 - (0.1 if side < 0 else 0.0)) / 0.9
    return x - np.sqrt(2) * _erfinv(2 * share - 1)


def _erfinv(x):
    from scipy import special

    return float(special.erfinv(x))


NOISES = (
    "normal",
    "t3",
    "Cauchy",
    "exponential",
    "exponential, mirrored",
    "diverged for",
    "diverged against",
)


@pytest.mark.parametrize("last_look", [10, 40])
@pytest.mark.parametrize("kind", NOISES)
def test_simulated_errors_stay_below_the_bounds(kind, last_look):
    rng = np.random.default_rng(0)
    values = noise(kind, rng, (SIMULATIONS, 7, last_look))
    criterion = AtLeast(0.0)
    verdicts = np.array(
        [
            [decide([criterion.answer(v) for v in seeds], last_look, False)[0] for seeds in claim]
            for claim in values[: SIMULATIONS // 4]
        ]
    )
    n = len(verdicts)
    for k in (1, 4, 7):
        for verdict, errors in (
            ("confirmed", (verdicts[:, :k] == "confirmed").all(1)),  # one claim holds by chance
            ("refuted", (verdicts[:, :k] == "refuted").any(1)),
        ):
            bound = ERRORS[last_look] * (1 if verdict == "confirmed" else k)
            assert errors.sum() <= n * bound + 4 * math.sqrt(n * bound) + 1, (k, verdict)


@pytest.mark.parametrize(
    ("last_look", "sds", "k", "power"),
    [(10, 2, 1, 0.79), (10, 2, 4, 0.40), (20, 1, 1, 0.62), (20, 2, 7, 0.99), (40, 1, 4, 0.71)],
)
def test_the_power_is_that_of_the_table(last_look, sds, k, power):
    share = AtLeast(0.0).share(sds, 1.0)
    assert reach_probability(share, declared_looks(last_look)) ** k == pytest.approx(
        power, abs=0.01
    )


def outcome(values, criterion=AtLeast(0.0), last_look=20):  # noqa: B008
    return judge(values, criterion, last_look)


def test_ten_of_ten_confirm_and_nine_of_ten_continue():
    assert outcome([1.0] * 10).verdict == "confirmed"
    nine = outcome([1.0] * 9 + [-1.0])
    assert (nine.verdict, nine.undecided) == ("open", True)
    assert outcome([1.0] * 9 + [-1.0], last_look=10).undecided is False
    assert outcome([-1.0] * 3 + [1.0] * 17).verdict == "confirmed"
    assert outcome([-1.0] * 4 + [1.0] * 16).verdict == "open"
    assert outcome([-1.0] * 9 + [1.0] * 31, last_look=40).verdict == "confirmed"
    assert outcome([-1.0] * 10).verdict == "refuted"


def test_decisions_are_made_only_at_looks_and_the_first_one_counts():
    nine = outcome([1.0] * 8 + [-1.0])
    assert (nine.verdict, nine.yes, nine.n) == ("open", 8, 9)
    fourteen = outcome([1.0] * 10 + [-1.0] * 4)
    assert (fourteen.verdict, fourteen.n) == ("confirmed", 10)
    half = [1.0, -1.0] * 5
    assert outcome(half).undecided is False  # 17 of 20 are out of reach
    assert outcome(half, last_look=40).undecided is True


def test_within_is_refuted_only_at_a_single_edge():
    assert judge([2.0, -2.0] * 5, Within(1.0), 10).verdict == "open"
    assert judge([2.0] * 10, Within(1.0), 10).verdict == "refuted"
    assert judge([0.5, -0.5] * 5, Within(1.0), 10).verdict == "confirmed"


def test_values_at_the_threshold_neither_agree_nor_disagree():
    for criterion in (AtLeast(1.0), AtMost(1.0), Within(1.0), Happens("it happens"), Proof(0.1)):
        assert criterion.answer(math.nan) == "neither"
    assert AtLeast(1.0).answer(1.0) == AtMost(1.0).answer(1.0) == "neither"


def test_exact_values_and_bounds_are_refuted_by_one_miss():
    assert judge([0.0] * 10, Exactly(0.0), 10).verdict == "confirmed"
    assert judge([0.0] * 5, Exactly(0.0), 10).verdict == "open"
    assert judge([0.0] * 9 + [1e-300], Exactly(0.0), 10).verdict == "refuted"
    assert judge([0.5, math.nan], Bound(1.0), 10).verdict == "refuted"


def test_a_failed_proof_is_open_and_never_refuted():
    proven = math.log(1e9)
    assert judge([proven] * 10, Proof(1e-9), 10).verdict == "confirmed"
    assert judge([0.0] * 10, Proof(1e-9), 10).verdict == "open"


def test_the_line_shows_median_interval_and_mean():
    line = judge([float(x) for x in range(1, 11)], AtLeast(0.0), 10).line
    for told in ("10 of 10", "median 5.5", "2 to 9", "mean 5.5"):
        assert told in line


def test_the_mean_of_some_values_says_of_how_many():
    line = judge([1.0] * 9 + [math.inf], AtLeast(0.0), 10).line
    assert line.endswith(", mean of the 9 finite values 1")


def row(loss, status="finished"):
    return {"status": status, "values": {"val_loss": loss}, "label": "r", "reason": None}


def result_of(criterion, new, old, name="p", **fields):
    prediction = Trained(name, "says", criterion, arms=(Arm("new"), Arm("old")), **fields)
    found = PredictionResult(prediction, list(range(len(new))))
    found.rows = {"new": list(new), "old": list(old)}
    claim = Claim("A sentence.", (prediction,), last_look=20)
    judge_prediction(found, claim)
    return found


def result(verdict, name="p", **fields):
    """A prediction with a given verdict."""
    new = {"confirmed": 3.0, "refuted": 1.0, "open": math.nan}[verdict]
    status = "diverged" if verdict == "open" else "finished"
    old = row(math.nan, "diverged") if verdict == "open" else row(2.0)
    return result_of(AtLeast(0.5), [row(new, status)] * 10, [old] * 10, name, **fields)


def sentence(*results):
    claim = Claim("A sentence.", tuple(r.prediction for r in results))
    evidence = Evidence(claim, {r.prediction.name: r for r in results})
    judge_claim(evidence)
    return evidence


def test_a_diverged_arm_is_the_worse_one():
    assert score(row(math.nan, "diverged"), "val_loss") == math.inf
    assert score(row(1.2, "diverged"), "val_loss") == math.inf
    assert score(row(2.0, "diverged"), RunMetric(dict, "bleu", diverged=-math.inf)) == -math.inf
    assert math.isnan(score(row(2.0, "diverged"), RunMetric(dict, "x")))
    found = result_of(AtLeast(0.5), [row(math.nan, "diverged")] * 10, [row(2.0)] * 10)
    assert found.verdict == "confirmed" and found.diverged == {"new": 10, "old": 0}
    both = result_of(AtLeast(0.5), [row(0.0, "diverged")] * 10, [row(0.0, "diverged")] * 10)
    assert both.verdict == "open" and both.outcome.no == 0


def test_a_number_that_no_run_has_is_named_and_never_judged():
    with pytest.raises(BadInput, match=r"r: no number val_los was measured; .* val_loss"):
        score(row(2.0), "val_los")
    with pytest.raises(BadInput, match="no number bleu"):
        score(row(2.0), RunMetric(dict, "bleu"))
    assert score(row(2.0, "diverged"), "val_los") == math.inf
    assert score(row(None), "val_loss") == math.inf  # NaN, as it is stored


def test_the_line_names_runs_that_diverged_in_a_confirmed_prediction():
    new = [row(1.0)] * 18 + [row(0.0, "diverged")] * 2
    evidence = sentence(result_of(AtMost(-0.5), new[::-1], [row(2.0)] * 20))
    assert evidence.verdict == "holds"
    assert "2 of 20 diverged in new" in evidence.line


def test_seeds_beyond_the_declared_ones_do_not_count():
    found = result_of(AtLeast(0.5), [row(3.0)] * 20 + [row(1.0)] * 5, [row(2.0)] * 25)
    assert found.outcome.n == 10 and found.verdict == "confirmed"
    assert len(found.values) == 25 and "5 seeds beyond the declared ones" in found.remark


def test_a_failed_run_is_named_and_leaves_the_sentence_open():
    failure = {"status": "failed", "reason": "Traceback\nOSError: disk full", "label": "r"}
    found = result_of(AtLeast(0.5), [row(3.0)] * 10, [row(2.0)] * 9 + [failure])
    evidence = sentence(found)
    assert evidence.failed == ["p"] and "disk full" in found.remark
    assert evidence.verdict == "open"


@pytest.mark.parametrize(
    ("verdicts", "word"),
    [
        (["confirmed", "confirmed"], "holds"),
        (["confirmed", "open"], "open"),
        (["confirmed", "refuted"], "holds only if"),
        (["refuted", "open"], "does not hold"),
        (["refuted", "refuted"], "does not hold"),
        (["open", "open"], "open"),
    ],
)
def test_the_verdict_of_a_sentence(verdicts, word):
    results = [result(v, name=str(i), where=f"here {i}") for i, v in enumerate(verdicts)]
    evidence = sentence(*results)
    assert evidence.verdict == word
    for i in range(len(verdicts)):
        assert f"here {i}" in evidence.line
    assert ("predicted otherwise" in evidence.line) == ("refuted" in verdicts)
    assert ("Open: " in evidence.line) == ("open" in verdicts)


def test_the_line_says_why_a_setting_is_open():
    undecided = result("open", name="a", where="here", pilot=Pilot(0.6, 0.1))
    assert sentence(undecided).line == "Open: here (power 18% by its pilot)."  # 0.84 ** 10
    not_run = result_of(AtLeast(0.5), [], [], where="there")
    assert sentence(result("confirmed", where="here"), not_run).line.endswith(
        "Open: there (not run yet)."
    )


def test_a_confirmed_prediction_against_the_sentence_makes_it_false_there():
    true = result("confirmed", name="a", where="unit variance")
    false = result("confirmed", name="b", where="GPT-2's start", bearing="against")
    evidence = sentence(true, false)
    assert evidence.verdict == "holds only if"
    assert "Holds only if: unit variance. Does not hold: GPT-2's start" in evidence.line
    assert sentence(result("refuted", bearing="against")).verdict == "holds"


def test_secondary_predictions_never_change_the_verdict():
    for verdict in ("refuted", "open"):
        evidence = sentence(result("confirmed"), result(verdict, name="s", role="secondary"))
        assert evidence.verdict == "holds"


def test_a_control_that_fails_leaves_the_sentence_open():
    evidence = sentence(result("confirmed"), result("refuted", name="c", role="control"))
    assert evidence.verdict == "open" and "control c" in evidence.line
