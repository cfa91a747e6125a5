"""The judge on simulated runs: how often it is wrong, and how often it sees what is there."""

import math

import numpy as np
import pytest

from attnlab.claims import (
    Arm,
    AtLeast,
    AtMost,
    Claim,
    Effort,
    Exactly,
    Proved,
    Reading,
    ShareAtLeast,
    Trained,
    Within,
)
from attnlab.claims.evidence import Evidence, Found
from attnlab.claims.judge import judge_claim, judge_family, judge_part, score

SIMULATIONS = 2000
EFFORT = {"quick": Effort(6)}


def part(test, name="p", **fields):
    return Trained(name, "says", test, EFFORT, arms=(Arm("new"), Arm("old")), **fields)


def row(loss, status="finished"):
    return {"status": status, "values": {"val_loss": loss}, "loss_at_start": math.log(65)}


def found_of(test, new, old, **fields):
    found = Found(part(test, **fields), list(range(len(new))), {"new": list(map(row, new))})
    found.rows["old"] = list(map(row, old))
    judge_part(found)
    return found


def evidence_of(*founds, name="claim"):
    claim = Claim("A sentence.", tuple(found.part for found in founds), name=name)
    evidence = Evidence(claim, "quick", {found.part.name: found for found in founds})
    judge_claim(evidence)
    return evidence


def share_supported(test, effect, sd, seeds=6):
    """Share of simulated claims that come out as supported; runs share the noise of their seed."""
    rng = np.random.default_rng(0)
    supported = 0
    for _ in range(SIMULATIONS):
        common = rng.normal(2.4, 0.02, seeds)
        old = common + rng.normal(0, sd / math.sqrt(2), seeds)
        new = common + effect + rng.normal(0, sd / math.sqrt(2), seeds)
        evidence = evidence_of(found_of(test, new, old))
        judge_family([evidence])
        supported += evidence.verdict == "supported"
    return supported / SIMULATIONS


LIMIT = 0.05 + 3 * math.sqrt(0.05 * 0.95 / SIMULATIONS)


@pytest.mark.parametrize("sd", [0.003, 0.05, 1.0])
@pytest.mark.parametrize("test", [AtLeast(0.0), AtMost(0.0)])
def test_without_any_effect_five_percent_at_most_are_supported(test, sd):
    assert share_supported(test, effect=0.0, sd=sd) <= LIMIT


def test_an_effect_at_the_threshold_is_no_more_than_the_threshold():
    assert share_supported(AtLeast(0.10), effect=0.10, sd=0.006) <= LIMIT
    assert share_supported(Within(0.005), effect=0.005, sd=0.002) <= LIMIT


def test_no_effect_never_supports_a_threshold_far_off():
    assert share_supported(AtLeast(0.10), effect=0.0, sd=0.02) == 0


@pytest.mark.parametrize(
    ("test", "sd"),
    [
        (AtLeast(0.10, expected=0.18), 0.006),  # unscaled under unit variance, measured
        (AtMost(-0.05, expected=-0.128), 0.009),  # unscaled at GPT-2's start, measured
        (Within(0.005, expected=0.0), 0.0027),  # kernels; published noise over seeds
    ],
)
def test_the_declared_effect_is_seen_four_times_of_five(test, sd):
    assert share_supported(test, effect=test.expected, sd=sd) >= 0.80


def test_the_opposite_effect_refutes():
    rng = np.random.default_rng(1)
    outcome = AtLeast(0.10).judge(list(rng.normal(-0.1, 0.01, 6)))
    assert outcome.verdict == "refuted"
    assert "measured -0.09742 nats" in outcome.line


def test_noise_is_inconclusive():
    assert AtLeast(0.1).judge([0.0, 0.3, -0.2, 0.5, 0.1, 0.05]).verdict == "inconclusive"


def test_one_seed_is_inconclusive_whatever_it_says():
    outcome = AtLeast(0.1).judge([5.0])
    assert outcome.verdict == "inconclusive"
    assert "no spread" in outcome.line


def test_equivalence_is_not_the_lack_of_significance():
    noisy = [0.5, -0.6, 0.2, -0.3, 0.4, -0.1]
    assert AtLeast(0.0).judge(noisy).verdict == "inconclusive"
    assert Within(0.005).judge(noisy).verdict == "inconclusive"
    assert Within(0.005).judge([0.1 + v / 100 for v in noisy]).verdict == "refuted"


def test_exactly_means_every_bit():
    assert Exactly(0.0).judge([0.0] * 6).verdict == "supported"
    assert Exactly(0.0).judge([0.0] * 5 + [1e-300]).verdict == "refuted"


def test_a_proof_needs_every_seed():
    bound = math.log(1e9)
    assert Proved(1e-9).judge([bound, bound + 5]).verdict == "supported"
    assert Proved(1e-9).judge([bound, bound - 0.1]).verdict == "inconclusive"
    assert Proved(1e-9).judge([0.0, 1.0]).verdict == "refuted"
    assert Proved(1e-9).judge([bound, bound + 5]).p <= 1.0001e-9


def test_shares_use_the_exact_interval():
    assert ShareAtLeast(0.5).judge([1.0] * 6).verdict == "supported"  # low end 0.54
    assert ShareAtLeast(0.5).judge([1.0] * 5 + [0.0]).verdict == "inconclusive"
    assert ShareAtLeast(0.5).judge([0.0] * 6).verdict == "refuted"


def test_diverged_runs_are_scored_as_at_the_start_and_never_dropped():
    assert score(row(math.nan, "diverged"), "val_loss") == math.log(65)
    assert score(row(1.2, "diverged"), "val_loss") == math.log(65)
    reading = Reading(lambda folder: {}, "share", diverged=0.0)
    assert score(row(math.nan, "diverged"), reading) == 0.0
    found = found_of(AtLeast(0.1), [2.5] * 6, [2.4] * 6)
    found.rows["new"][2] = row(math.nan, "diverged")
    judge_part(found)
    assert len(found.values) == 6
    assert found.values[2] == pytest.approx(math.log(65) - 2.4)
    assert found.diverged == {"new": 1, "old": 0}


def test_a_failed_run_is_named_and_not_judged():
    found = found_of(AtLeast(0.1), [2.5] * 6, [2.4] * 6)
    found.rows["old"][0] = {"status": "failed", "reason": "Traceback\nOSError: disk full"}
    judge_part(found)
    evidence = evidence_of(found)
    assert evidence.failed == ["p"]
    assert "disk full" in found.remark
    assert evidence.verdict == "inconclusive"


def test_one_refuted_prediction_refutes_and_one_open_leaves_open():
    good = found_of(AtLeast(0.0), [2.51, 2.5, 2.52], [2.4] * 3, name="good")
    bad = found_of(AtMost(0.0), [2.51, 2.5, 2.52], [2.4] * 3, name="bad")
    shown = found_of(AtMost(0.0), [2.51, 2.5, 2.52], [2.4] * 3, name="shown", counts=False)
    assert evidence_of(good, shown).verdict == "supported"
    assert evidence_of(good, bad).verdict == "refuted"


def test_the_sentence_is_true_here_and_false_there():
    here = found_of(
        AtLeast(0.1), [2.5, 2.6], [2.4, 2.49], name="b", bearing="for", where="unit variance"
    )
    there = found_of(
        AtMost(0.0), [2.3, 2.32], [2.4, 2.41], name="c", bearing="against", where="GPT-2's start"
    )
    evidence = evidence_of(here, there)
    assert here.outcome.verdict == "inconclusive"  # two seeds are few
    here.outcome = AtLeast(0.1).judge([0.18, 0.181])
    there.outcome = AtMost(0.0).judge([-0.1, -0.101])
    judge_claim(evidence)
    assert evidence.sentence == "depends"
    assert "Holds: unit variance. Does not hold: GPT-2's start" in evidence.line


def test_holm_takes_back_what_eight_claims_may_give_by_chance():
    family = [
        evidence_of(found_of(AtLeast(0.0), [2.5] * 6, [2.4] * 6), name=str(i)) for i in range(8)
    ]
    for evidence in family:
        evidence.p = 0.02
        evidence.verdict = "supported"
    judge_family(family)
    assert {evidence.verdict for evidence in family} == {"inconclusive"}
    assert family[0].p_holm == pytest.approx(0.16)
