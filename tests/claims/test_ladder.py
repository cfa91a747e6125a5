"""A ladder of sizes: the slope of the paired difference over log10(parameters)."""

import math
import random
from dataclasses import replace
from statistics import linear_regression, stdev

import pytest
from pydantic import ValidationError

from attnlab.claims.claim import Claim
from attnlab.claims.claim_page import arm_table, figure_of, ladders, mean_with_error
from attnlab.claims.judged_claim import judge_claim, missing_runs
from attnlab.claims.reach import training_in_words

SIZES = {
    "C 64": {"overrides": ["model.n_embd=64"], "parameters": 100_000},
    "C 128": {"overrides": ["model.n_embd=128"], "parameters": 400_000},
    "C 256": {"overrides": ["model.n_embd=256"], "parameters": 1_600_000, "rates": [0.001, 0.003]},
}
PREDICTION = {"says": "Grows.", "arms": ["x", "y"], "above": 0.0, "sizes": SIZES}


def claim_of(**settings):
    arms = {"x": ["attn=unscaled"], "y": ["attn=sdpa"], "z": ["attn=none"]}
    return Claim(says="A.", base=["preset=micro"], first_seed=0, arms=arms,
                 predictions={"slope": PREDICTION | settings})  # fmt: skip


def judged_with(slope, noise, seeds=10):
    """A claim whose difference grows by `slope` for ten times as many parameters."""
    claim = claim_of()
    draw = random.Random(0)
    rows = {}
    while missing := missing_runs(claim, rows):
        for run in missing:
            size = next(s for s in SIZES.values() if s["overrides"][0] in run.overrides)
            loss = 2.0 + draw.gauss(0, noise)
            if "attn=unscaled" in run.overrides:
                loss += slope * (math.log10(size["parameters"]) - 5.5)
            values = {"val_loss": loss, "steps": 300, "parameters": size["parameters"]}
            rows[run] = {"overrides": list(run.overrides), "seed": run.seed, "commit": "",
                         "status": "finished", "cpu_seconds": 1.0, "values": values}  # fmt: skip
    kept = {run: row for run, row in rows.items() if run.seed < seeds or run.seed >= 1000}
    return judge_claim(claim, kept)


@pytest.mark.parametrize(("slope", "verdict"), [(0.3, "holds"), (-0.3, "does not hold")])
def test_a_slope_is_judged_by_seeds(slope, verdict):
    judged = judged_with(slope, noise=0.01)
    assert judged.verdict == verdict
    assert judged.findings[0].tally.median == pytest.approx(slope, abs=0.02)


def test_a_slope_that_is_noise_is_open():
    assert judged_with(0.0, noise=0.1).verdict == "undecided"


def test_the_slope_of_a_seed_is_that_of_a_regression():
    (finding,) = judged_with(0.3, noise=0.05).findings
    x = [math.log10(size["parameters"]) for size in SIZES.values()]
    for i, value in enumerate(finding.values):
        scores = [of_arm[i] for of_arm in finding.scores.values()]
        apart = [scores[2 * k] - scores[2 * k + 1] for k in range(3)]
        assert value == pytest.approx(linear_regression(x, apart).slope)


def test_the_page_has_the_error_of_the_slope_and_the_difference_at_each_size():
    judged = judged_with(0.3, noise=0.05)
    (finding,) = judged.findings
    page = ladders(judged)
    assert mean_with_error(finding.values) in page
    error = stdev(finding.values) / math.sqrt(10)
    assert f"± {error:.3f}" in page
    assert all(f"{size['parameters']:,}" in page for size in SIZES.values())
    assert "C 256" in arm_table(judged) and "attn=none" not in arm_table(judged)
    assert figure_of(judged) != figure_of(judged_with(-0.3, noise=0.05))


def test_a_size_may_have_rates_of_its_own():
    claim = claim_of()
    arms = claim.arms_of(claim.predictions["slope"], None)
    assert list(arms) == [f"{arm}, {at}" for at in SIZES for arm in "xy"]
    assert [bool(arm.rates) for arm in arms.values()] == [False] * 4 + [True] * 2
    assert arms["x, C 128"].overrides == ("preset=micro", "attn=unscaled", "model.n_embd=128")


@pytest.mark.parametrize(("settings", "seeds"), [({}, 3), ({"rate_seeds": 1}, 1)])
def test_as_many_pilots_choose_a_rate_as_declared(settings, seeds):
    claim = claim_of(rates=[0.001, 0.003], **settings)
    for arm in claim.arms_of(claim.predictions["slope"], None).values():
        assert len(arm.choose({})[1]) == seeds * len(arm.rates)


@pytest.mark.parametrize(("by", "best"), [("val_loss", 0.003), ("val_accuracy", 0.01)])
def test_a_rate_is_chosen_by_what_is_declared(by, best):
    claim = claim_of(rates=[0.001, 0.003, 0.01, 0.03], rate_seeds=1, rate_by=by)
    arm = next(iter(claim.arms_of(claim.predictions["slope"], None).values()))
    measured = {
        0.001: {"val_loss": 3.0, "val_accuracy": 0.1},
        0.003: {"val_loss": 1.0, "val_accuracy": 0.8},  # sure of its wrong answers is worse
        0.01: {"val_loss": 1.5, "val_accuracy": 0.9},
        0.03: None,  # diverged
    }
    rows = {}
    for rate, values in measured.items():
        status = "finished" if values else "diverged"
        rows[arm.run(1000, rate)] = {"status": status, "values": values or {}}
    assert arm.choose(rows).rate == best


@pytest.mark.parametrize(
    "settings",
    [
        {"arms": ["x"]},
        {"rate_seeds": 0},
        {"arms": ["x", "y", "z"]},
        {"contrast": "difference"},
        {"weights": [1, -1]},
        {"sizes": {"C 64": SIZES["C 64"]}},
        {"sizes": SIZES | {"C 256": SIZES["C 256"] | {"rates": [0.001, 0.1]}}},
        {"sizes": SIZES | {"C 256": {"overrides": []}}},
    ],
)
def test_a_ladder_that_cannot_be_judged_is_not_read(settings):
    with pytest.raises(ValidationError):
        claim_of(**settings)


def test_the_reach_says_where_fewer_pilots_than_usual_chose_the_rates():
    claim = claim_of(rates=[0.001, 0.003])
    (finding,) = judge_claim(claim, {}).findings
    fewer = replace(finding, prediction=finding.prediction.model_copy(update={"rate_seeds": 1}))
    assert training_in_words([finding]) != training_in_words([fewer])
