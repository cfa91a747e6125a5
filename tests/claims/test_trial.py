"""Learning rates are chosen on the pilots, and two lengths are one prediction."""

import json
import math
from dataclasses import replace

import pytest

from attnlab.claims import Arm, AtLeast, AtMost, Claim, Measured, Trained, level
from attnlab.claims.conditions import check_fairness, describe_conditions
from attnlab.claims.declare import check_seeds
from attnlab.claims.evaluate import judge_prediction
from attnlab.claims.judge import false_confirmations, judge_claim
from attnlab.claims.report import headline
from attnlab.claims.reproduce import is_quick
from attnlab.claims.results import Evidence, PredictionResult
from attnlab.claims.rule import decide_lengths
from attnlab.claims.trial import SEEDS, next_rates, prepare, rate_errors
from attnlab.errors import BadInput
from attnlab.runs.best_rates import best_rate

GRID = (1e-3, 3e-3, 1e-2)
PAIR = (Arm("gated", ("attn=gated",)), Arm("sdpa", ("attn=sdpa",)))


def tried(losses):
    """The same loss at all three selection seeds."""
    return {rate: dict.fromkeys((1000, 1001, 1002), loss) for rate, loss in losses.items()}


def test_rates_are_extended_twice_while_the_best_is_at_an_edge():
    assert next_rates(GRID, {}) == list(GRID)
    losses = {1e-3: 2.0, 3e-3: 2.1, 1e-2: math.inf}
    assert next_rates(GRID, tried(losses)) == [0.00033]
    losses |= {0.00033: 1.9}
    assert next_rates(GRID, tried(losses)) == [0.00011]
    assert next_rates(GRID, tried(losses | {0.00011: 1.95})) == []
    losses |= {0.00011: 1.8}
    assert next_rates(GRID, tried(losses)) == []
    assert best_rate(tried(losses), SEEDS).rate == 0.00011
    assert best_rate(tried(losses), SEEDS).at_edge


def test_rates_are_extended_upwards_from_the_upper_edge():
    losses = {1e-3: 2.2, 3e-3: 2.1, 1e-2: 2.0}
    assert next_rates(GRID, tried(losses)) == [0.033]
    assert next_rates(GRID, tried(losses | {0.033: 1.9})) == [0.11]  # the factor of 0.01 and 0.033


def test_a_rate_counts_with_all_of_its_selection_seeds():
    some = tried({1e-3: 2.0, 3e-3: 1.9, 1e-2: 2.2})
    del some[3e-3][1002]
    assert next_rates(GRID, some) == [3e-3]
    some[3e-3] |= {1002: 2.6, 1003: 0.0}  # of pilots at the chosen rate
    assert next_rates(GRID, some) == [0.00033]  # 1e-3 is best now, and at the edge
    assert best_rate(some, SEEDS).losses[3e-3] == pytest.approx((1.9 + 1.9 + 2.6) / 3)


@pytest.mark.parametrize(
    ("rates", "lengths", "valid"),
    [
        (GRID, (), True),
        (GRID, (300, 1200), True),
        ((1e-3, 1e-2, 1e-1), (), False),
        ((1e-3, 3e-3), (), False),
        ((1e-2, 3e-3, 1e-3), (), False),
        ((), (300,), False),
    ],
)
def test_rates_lie_close_together(rates, lengths, valid):
    prediction = Trained("p", "s", AtLeast(0), arms=PAIR, rates=rates, lengths=lengths)
    assert (not list(rate_errors(prediction))) is valid


def pilots(losses):
    """Rows of both arms at the given losses."""
    return [
        {"overrides": list(overrides), "rate": rate, "seed": seed, "status": "finished"}
        | {"values": {"val_loss": loss}}
        for overrides, by_rate in losses.items()
        for rate, by_seed in tried(by_rate).items()
        for seed, loss in by_seed.items()
    ]


def test_every_arm_gets_its_best_rate_at_every_length():
    claim = Claim("x", (Trained("p", "Worse.", AtLeast(0), arms=PAIR, rates=GRID,
                                lengths=(300, 1200)),), headline="p")  # fmt: skip
    assert prepare(claim, []).predictions[0].arms[0].overrides[0] == "attn=gated"
    steps = [(f"trainer.max_steps={n}", f"trainer.val_check_interval={n}") for n in (300, 1200)]
    losses = {
        ("attn=gated", *steps[0]): {1e-3: 2.0, 3e-3: 1.9, 1e-2: 2.0},
        ("attn=sdpa", *steps[0]): {1e-3: 2.0, 3e-3: 2.1, 1e-2: 2.2, 3.3e-4: 2.2},
        ("attn=gated", *steps[1]): {1e-3: 2.0, 3e-3: 2.1, 1e-2: 2.2, 3.3e-4: 2.1},
        ("attn=sdpa", *steps[1]): {1e-3: 2.0, 3e-3: 1.9, 1e-2: 2.0},
    }
    made = prepare(claim, pilots(losses))
    assert [each.name for each in made.predictions] == ["p_300", "p_1200"]
    assert made.headline == "p_300" and made.predictions[1].says == "Worse (1,200 steps)."
    rates = [arm.overrides[-2:] for each in made.predictions for arm in each.arms]
    low, middle = (
        ("optim.lr=0.001", "optim.min_lr=0.0001"),
        ("optim.lr=0.003", "optim.min_lr=0.0003"),
    )
    assert rates == [middle, low, low, middle]
    assert made.predictions[0].arms[0].name == "gated, 300 steps"


def test_two_lengths_are_confirmed_or_refuted_together():
    assert decide_lengths(["confirmed", "confirmed"]) == "confirmed"
    assert decide_lengths(["refuted", "refuted"]) == "refuted"
    for other in ("open", "refuted"):
        assert decide_lengths(["confirmed", other]) == "open"


def judged(claim, differences, parameters=(100, 100)):
    """A claim whose first arm is worse by one difference a prediction."""
    found = {}
    for each, difference in zip(claim.predictions, differences, strict=True):
        rows = {
            arm.name: [{"status": "finished", "reason": None, "label": "",
                        "values": {"val_loss": loss, "parameters": count}}] * 10
            for arm, loss, count in zip(each.arms, (2 + difference, 2), parameters, strict=False)
        }  # fmt: skip
        found[each.name] = PredictionResult(each, list(range(10)), rows)
        judge_prediction(found[each.name], claim)
    evidence = Evidence(claim, found)
    judge_claim(evidence)
    return evidence


def test_the_line_names_the_lengths_at_which_a_prediction_differs():
    claim = prepare(
        Claim("x", (Trained("p", "s", AtLeast(0.1), arms=PAIR, lengths=(300, 1200),
                            where="here"),)), [])  # fmt: skip
    assert judged(claim, (0.2, 0.2)).verdict == "holds"
    assert judged(claim, (0.0, 0.0)).verdict == "does not hold"
    evidence = judged(claim, (0.2, 0.0))
    assert evidence.verdict == "open"
    assert evidence.line == "Open: here (confirmed at 300 steps, refuted at 1,200 steps)."


class Resolved:
    """A resolver whose arms have one configuration."""

    def arms(self, claim, *predictions):
        settings = {"optim": {"lr": 1e-3}, "trainer": {"max_steps": 60}}
        config = type("Config", (), {"settings": settings, "corpus": "plays"})
        return {arm.name: config for each in predictions for arm in each.arms}


def test_a_claim_of_improvement_at_one_rate_is_refused_or_says_so():
    one = Trained("p", "Gates are better.", AtMost(0), arms=PAIR)
    with pytest.raises(BadInput, match="compares arms without rates"):
        check_fairness(Claim("x", (one,)), [])
    check_fairness(Claim("x", (replace(one, rates=GRID),)), [])
    said = replace(one, says="Gates are better at one learning rate.")
    check_fairness(Claim("x", (said,)), [])
    evidence = judged(Claim("x", (said,)), (-0.1,))
    tested = describe_conditions(evidence.claim, evidence.found, Resolved())
    assert tested == (
        "Tested with one learning rate (0.001), one length (60 steps), one data set (plays)."
    )


def test_predictions_at_two_lengths_stand_beside_those_at_one():
    two = Trained("p", "s", AtLeast(0.1), arms=PAIR, lengths=(300, 1200), where="here")
    one = Trained("o", "s", AtLeast(0.1), arms=PAIR)
    evidence = judged(prepare(Claim("x", (two, one)), []), (0.2, 0.2, 0.2))
    tested = describe_conditions(evidence.claim, evidence.found, Resolved())
    assert ", 300 and 1,200 steps (some predictions at 60 alone), " in tested


def test_only_what_was_run_counts_as_tested():
    two = Trained("p", "s", AtLeast(0.1), arms=PAIR, lengths=(300, 1200), where="here")
    evidence = judged(prepare(Claim("x", (two,)), []), (0.2, 0.2))
    evidence.found["p_1200"] = PredictionResult(evidence.found["p_1200"].prediction)
    tested = describe_conditions(evidence.claim, evidence.found, Resolved())
    assert ", 300 steps, " in tested and "1,200" not in tested


def test_unequal_parameters_are_named():
    evidence = judged(Claim("x", (Trained("p", "s", AtMost(0), arms=PAIR),)), (-0.1,), (108, 100))
    tested = describe_conditions(evidence.claim, evidence.found, Resolved())
    assert "unequal parameters (gated has 8.0% more than sdpa)" in tested


def test_arms_of_separate_predictions_are_compared_too():
    """Two predictions of one arm each are as much of a comparison as one of two."""
    gated, plain = (
        Trained(f"p{i}", "s", AtMost(9), arms=PAIR[i : i + 1], contrast=level) for i in (0, 1)
    )
    claim = Claim("x", (gated, plain))
    with pytest.raises(BadInput, match="p0 compares arms without rates"):
        check_fairness(claim, [])
    check_fairness(Claim("x", (gated,)), [])  # nothing to compare with
    results = {
        name: judged(Claim("x", (each,)), (0.1,), (count,)).found[name]
        for name, each, count in (("p0", gated, 124), ("p1", plain, 100))
    }
    tested = describe_conditions(claim, results, Resolved())
    assert "unequal parameters (gated has 24.0% more than sdpa)" in tested


def test_quick_leaves_out_secondary_predictions_with_runs_of_their_own():
    main = Trained("p", "s", AtMost(0), arms=PAIR)
    shared = replace(main, name="shared", role="secondary", arms=PAIR[:1])
    apart = replace(shared, name="apart", arms=(PAIR[0], Arm("other", ("attn=flipped",))))
    pure = Measured("pure", "s", AtMost(0), role="secondary")
    claim = Claim("x", (main, shared, apart, pure))
    assert [is_quick(claim, x) for x in claim.predictions] == [True, True, False, True]
    assert is_quick(Claim("x", (pure, apart)), apart)  # no other runs decide
    assert not is_quick(claim, replace(main, budget="full"))


def test_seeds_of_an_earlier_version_are_not_used_again_without_its_rows(tmp_path):
    claim = Claim("x", (Trained("p", "s", AtMost(0), arms=PAIR),), first_seed=5)
    check_seeds(claim, tmp_path, "rows*.jsonl")
    history = [{"version": 1, "verdict": "holds"}, {"version": 2, "seeds": [13, 14, 15]}]
    (tmp_path / "declared.json").write_text(json.dumps({"history": history}))
    with pytest.raises(BadInput, match="would use seed 13 again, which version 2 used"):
        check_seeds(claim, tmp_path, "rows*.jsonl")
    check_seeds(replace(claim, first_seed=16), tmp_path, "rows*.jsonl")


def test_a_best_rate_at_the_edge_is_named():
    claim = Claim("x", (Trained("p", "s", AtMost(0), arms=PAIR, rates=GRID, where="here"),))
    edge = {0.00011: 1.8, 0.00033: 1.9, 1e-3: 2.0, 3e-3: 2.1, 1e-2: 2.2}
    inner = {1e-3: 2.0, 3e-3: 1.9, 1e-2: 2.0}
    rows = pilots({("attn=gated",): edge, ("attn=sdpa",): inner})
    line = judged(prepare(claim, rows), (-0.1,)).line
    assert line == "Holds: here (the best rate of gated is at the edge of those tried)."


def test_times_of_one_processor_are_not_judged():
    timed = Measured("t", "s", AtLeast(1), timed=True)
    one, other = {"processor": "one"}, {"processor": "other"}
    with pytest.raises(BadInput, match="judges times of one processor"):
        check_fairness(Claim("x", (timed,)), [one])
    check_fairness(Claim("x", (timed,)), [one, other])
    check_fairness(Claim("x", (replace(timed, role="shown"),)), [one])


def test_a_claim_that_only_shows_times_is_open_and_names_the_processor():
    timed = Measured("t", "s", AtLeast(0, unit="s"), role="shown", timed=True, value="t")
    rows = [{"status": "finished", "values": {"t": float(n)}, "processor": "P"} for n in range(9)]
    claim = Claim("Fast.", (timed,))
    evidence = Evidence(claim, {"t": PredictionResult(timed, list(range(9)), {"": rows})})
    judge_prediction(evidence.found["t"], claim)
    judge_claim(evidence)
    assert (evidence.verdict, evidence.line) == ("open", "Open: the times are shown, not judged.")
    tested = describe_conditions(claim, evidence.found, Resolved())
    assert tested == "Tested with one processor (P)."
    rows[0]["processor"] = "O"
    tested = describe_conditions(claim, evidence.found, Resolved())
    assert tested == "Tested with 2 processors (O; P)."
    rows[0]["processor"] = "P"
    row = headline(evidence)
    assert (row["measured"], row["n"]) == ("4 s (1 to 7)", "shown")


def test_the_error_over_all_claims_counts_every_declared_primary_prediction_once():
    def content(last, **predictions):
        looks = [[10, 10], [20, 17]][: 1 + (last == 20)]
        return {"looks": looks, "predictions": predictions}

    primary = {"role": "primary", "criterion": {"kind": "AtLeast"}}
    part = primary | {"part_of": "p"}
    exact = {"role": "primary", "criterion": {"kind": "Exactly"}}
    shown = primary | {"role": "shown"}
    declared = [content(10, a=primary, b=exact, c=shown), content(20, p_1=part, p_2=part)]
    count, error = false_confirmations(declared)
    assert count == 2
    assert error == pytest.approx(2**-10 + 0.00210, abs=1e-5)
