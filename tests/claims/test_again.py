"""Runs that decide are repeated with another instruction set; a verdict that changes is open."""

import math

import pytest

from attnlab.claims.claim import Claim
from attnlab.claims.claim_page import processors_in_words
from attnlab.claims.finding import rows_of_arm
from attnlab.claims.judged_claim import instruction_set_of_repetition, judge_claim, missing_again
from attnlab.claims.trials import Run
from attnlab.claims.work import instruction_set_used

RATES = (0.003, 0.01, 0.03)
PREDICTIONS = {
    "p": {"says": "", "arms": ["a", "b"], "below": 0.0, "rates": RATES},
    "c": {"says": "", "arms": ["a"], "below": 5.0, "role": "control"},
    "s": {"says": "", "arms": ["b"], "below": 5.0, "role": "secondary"},
}


def claim_of(most: int = 10, **predictions: dict) -> Claim:
    arms = {"a": ["attn=a"], "b": ["attn=b"]}
    return Claim(
        says="A.", base=["y=1"], first_seed=300, most_seeds=most, arms=arms,
        predictions=predictions or PREDICTIONS,
    )  # fmt: skip


def rows_of(claim: Claim, values: list[float], used: str = "AVX2") -> dict[Run, dict]:
    """Pilots for which 0.01 is the best rate, and test rows; `values` are those of p."""
    rows: dict[Run, dict] = {}
    for name, prediction in claim.predictions.items():
        for arm_name, arm in claim.arms_of(prediction, None).items():
            for seed in arm.selection:
                for rate in arm.rates:
                    rows[arm.run(seed, rate)] = row(abs(math.log(rate / 0.01)), used)
            for seed, value in enumerate(values, 300):
                run = arm.run(seed, 0.01 if arm.rates else None)
                rows[run] = row(1.0 + (value if arm_name == "a" and name == "p" else 0.0), used)
    return rows


def row(loss: float, used: str) -> dict:
    machine = "AMD EPYC, torch 2"
    return {"status": "finished", "values": {"val_loss": loss}, "commit": "", "machine": machine,
            "instruction_set": used}  # fmt: skip


def without_pilots(rows: dict[Run, dict]) -> dict[Run, dict]:
    return {run: row for run, row in rows.items() if run.seed < 1000}


GOOD, BAD = [-1.0] * 10, [1.0] * 10


@pytest.mark.parametrize(
    ("first", "second", "verdict", "sentence"),
    [
        (GOOD, None, "holds", "One processor."),
        (GOOD, GOOD, "holds", "Same on two instruction sets"),
        (GOOD, GOOD[:9] + BAD[:1], "undecided", "Not the same"),
        (GOOD[:9] + BAD[:1], GOOD, "undecided", "Not the same"),
        (GOOD, BAD, "undecided", "Not the same"),
        (BAD, BAD, "does not hold", "Same on two instruction sets"),
        (GOOD, GOOD[:4], "holds", "One processor."),  # not complete
    ],
)
def test_a_verdict_counts_if_two_instruction_sets_agree(first, second, verdict, sentence):
    claim = claim_of()
    rows = rows_of(claim, first)
    again = without_pilots(rows_of(claim, second, "SSE4.2")) if second else {}
    judged = judge_claim(claim, rows, again=again)
    assert judged.verdict == verdict
    assert processors_in_words(judged).startswith(f"**{sentence}")


def test_a_control_that_was_not_repeated_is_said():
    claim = claim_of()
    again = without_pilots(rows_of(claim, GOOD, "SSE4.2"))
    control = {run for run in again if "optim.lr=0.01" not in run.overrides}
    part = {run: row for run, row in again.items() if run not in control}
    judged = judge_claim(claim, rows_of(claim, GOOD), again=part)
    assert list(judged.again) == ["p"]
    assert processors_in_words(judged).startswith("**One processor, in part two.**")


def test_what_decides_is_repeated_at_the_rates_of_the_pilots():
    claim = claim_of(20)
    first = GOOD[:7] + BAD[:3] + GOOD
    rows = rows_of(claim, first)
    missing = missing_again(claim, rows, {})
    a_and_b = {("y=1", f"attn={x}", "optim.lr=0.01", "optim.min_lr=0.001") for x in "ab"}
    assert {run.overrides for run in missing} == a_and_b | {("y=1", "attn=a")}
    assert {run.seed for run in missing} == set(range(300, 310))
    assert len(missing) == 30
    again = {run: rows[run] for run in missing}  # 7 of 10: the next stage is due
    assert {run.seed for run in missing_again(claim, rows, again)} == set(range(310, 320))
    assert missing_again(claim, rows, without_pilots(rows)) == []
    lost = missing_again(claim, without_pilots(rows), {})  # a lost pilot is not repeated
    assert {run.overrides for run in lost} == {("y=1", "attn=a")}  # which needs no rate


@pytest.mark.parametrize(
    ("of_p", "first"),
    [
        ([*GOOD[:5], *BAD, *GOOD[:5]], "p"),  # 10 of 20: open
        ([*BAD[:3], *GOOD, *GOOD[:7]], "p"),  # 17 of 20, the fewest that confirm
        ([*GOOD, *GOOD], "c"),  # as sure as the other one, which is declared first
    ],
)
def test_what_seeds_agree_on_least_is_repeated_first(of_p, first):
    declared = {name: PREDICTIONS[name] for name in ("c", "p")}
    claim = claim_of(20, **declared)
    rates = {len(run.overrides) for run in missing_again(claim, rows_of(claim, of_p), {})[:10]}
    assert rates == {4 if first == "p" else 2}  # p has a rate and its last value


def test_rows_of_an_arm_have_any_rate_and_any_seed():
    claim = claim_of()
    arm = claim.arms_of(claim.predictions["p"], None)["a"]
    rows = rows_of(claim, GOOD)
    of_test = 2 * len(GOOD)  # at the best rate, and at none for the control
    assert len(rows_of_arm(arm, rows)) == len(arm.selection) * len(RATES) + of_test


def test_the_set_is_one_that_the_rows_do_not_have():
    claim = claim_of()
    for used, other in (("AVX512", "AVX2"), ("AVX2", "SSE4.2"), (None, "SSE4.2")):
        rows = rows_of(claim, GOOD, used)
        assert instruction_set_of_repetition(claim, rows, {}) == other
    begun = rows_of(claim, GOOD[:2], "AVX2")
    assert instruction_set_of_repetition(claim, rows, begun) == "AVX2"


@pytest.mark.parametrize(
    ("machine", "device", "capability", "used"),
    [
        ("x86_64", "cpu", "DEFAULT", "SSE4.2"),
        ("x86_64", "cpu", "AVX2", "AVX2"),
        ("arm64", "cpu", "DEFAULT", "DEFAULT"),
        ("x86_64", "cuda", "AVX2", "cuda"),
    ],
)
def test_the_instruction_set_of_a_row(monkeypatch, machine, device, capability, used):
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert instruction_set_used(device, capability) == used
