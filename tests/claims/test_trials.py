"""Which rate an arm gets, and which runs are missing, by invented rows."""

import math

import pytest

from attnlab.claims.claim import Claim, Prediction
from attnlab.claims.judged_claim import judge_claim, missing_runs
from attnlab.claims.ranking import Protocol, missing_of_ranking, with_own
from attnlab.claims.rows import Rows
from attnlab.claims.trials import Arm, Run, metric_of, read_test, rows_until_missing
from attnlab.claims.work import composed
from attnlab.errors import BadInput
from tests.conftest import ROOT

GRID = (0.003, 0.01, 0.03)


def row_of(loss, **values):
    """A row; an infinite loss is that of a diverged run."""
    status = "diverged" if loss == math.inf else "finished"
    return {"status": status, "values": {"val_loss": loss, **values}}


def filled(arm, loss):
    """Run what a choice needs until it is made: the choice, its rows, and the rounds."""
    rows, rounds = {}, 0
    while missing := arm.choose(rows).missing:
        assert {run.seed for run in missing} <= {1000, 1001, 1002}
        assert not set(missing) & set(rows) and len(set(missing)) == len(missing)
        for run in missing:
            rate, floor = (float(word.split("=")[1]) for word in run.overrides[-2:])
            assert floor == pytest.approx(rate / 10)
            rows[run] = row_of(loss(rate, run.seed))
        rounds += 1
    return arm.choose(rows), rows, rounds


@pytest.mark.parametrize(
    ("loss", "rate", "tried", "at_edge"),
    [
        (lambda r, s: abs(math.log(r / 0.01)), 0.01, 3, False),
        (lambda r, s: abs(math.log(r / 0.03)), 0.03, 4, False),  # one more, 0.09
        (lambda r, s: abs(math.log(r / 0.09)), 0.09, 5, False),
        (lambda r, s: -r, 0.27, 5, True),  # extended twice, and never again
        (lambda r, s: r, 0.00027, 5, True),
        (lambda r, s: 1.0, 0.00027, 5, True),  # a tie: the lowest
        (lambda r, s: math.inf, 0.00027, 5, True),
        (lambda r, s: math.inf if r > 0.02 else -r, 0.01, 3, False),
        (lambda r, s: math.inf if (r, s) == (0.01, 1001) else abs(math.log(r / 0.01)), 0.03, 4,
         False),  # one of three seeds diverged
        (lambda r, s: math.nan if r == 0.01 else abs(math.log(r / 0.0101)), 0.03, 4, False),
        (lambda r, s: r + (s == 1002) * (r < 0.01), 0.01, 3, False),  # the mean, not the median
    ],
)  # fmt: skip
def test_the_rate_with_the_lowest_mean_loss_is_chosen(loss, rate, tried, at_edge):
    choice, rows, rounds = filled(Arm(("x=1",), GRID), loss)
    assert choice.rate == pytest.approx(rate)
    assert (len(choice.scores), choice.at_edge) == (tried, at_edge)
    assert len(rows) == 3 * tried
    assert rounds == 1 + tried - 3


def test_a_test_is_read_in_the_order_of_seeds_up_to_the_first_gap():
    fixed, arm = Arm(("x=1", "optim.lr=0.1")), Arm(("x=1",), GRID)
    of_fixed, of_arm = read_test(fixed, {}, range(2)), read_test(arm, {}, range(5))
    assert of_fixed.rows == of_arm.rows == []
    assert of_fixed.missing == [Run(fixed.overrides, s) for s in (0, 1)]
    assert of_arm.missing == arm.choose({}).missing  # first, the rate
    _, rows, _ = filled(arm, lambda r, s: abs(math.log(r / 0.01)))
    for seed in (4, 1, 0):
        rows[arm.run(seed, 0.01)] = row_of(float(seed))
        rows[arm.run(2, 0.03)] = row_of(9.0)  # at another rate, it does not count
    found = read_test(arm, rows, range(5))
    assert [row["values"]["val_loss"] for row in found.rows] == [0.0, 1.0]
    assert [run.seed for run in found.missing] == [2, 3]


@pytest.mark.parametrize(
    ("row", "key", "worst", "value"),
    [
        (row_of(2.0), "val_loss", math.inf, 2.0),
        (row_of(math.inf), "val_loss", math.inf, math.inf),
        (row_of(None), "val_loss", math.inf, math.inf),  # JSON stores NaN as null
        (row_of(None), "val_loss", math.nan, math.nan),
        (row_of(math.inf, x=0.5), "x", 0.0, 0.0),
        (row_of(2.0, x=None), "x", 0.0, math.nan),  # measured, and not a number
        (row_of(2.0), "x", math.nan, math.nan),
    ],
)
def test_a_number_of_a_row(row, key, worst, value):
    assert metric_of(row, key, worst) == pytest.approx(value, nan_ok=True)
    found = [row_of(1.0, x=1.0), row, row_of(1.0, x=1.0)]
    there = row["status"] == "diverged" or key in row["values"]
    assert rows_until_missing(key, found) == (found if there else found[:1])  # up to the first gap


def claim_of(most=20, **settings):
    """A claim of two arms; b has the loss 0."""
    prediction = Prediction(says="", arms=["a", "b"], above=0.0, **settings)
    arms = {"a": ["x=1"], "b": ["x=2"]}
    return Claim(says="", base=["y=3"], first_seed=300, most_seeds=most, arms=arms,
                 predictions={"p": prediction})  # fmt: skip


def simulated(claim, differences, **which):
    """Run what is needed until nothing is; the number of runs in each round."""
    rows, rounds = {}, []
    while runs := missing_runs(claim, rows, **which):
        rounds.append(len(runs))
        for run in runs:
            at = differences[run.seed - 300] if run.seed < 1000 else 0.0
            rows[run] = row_of(at if "x=1" in run.overrides else 0.0)
    return rounds, rows


@pytest.mark.parametrize(
    ("most", "differences", "rounds", "verdict"),
    [
        (20, [1.0] * 10, [20], "confirmed"),
        (20, [-1.0] * 10, [20], "refuted"),
        (20, [1.0] * 7 + [-1.0] * 3 + [1.0] * 10, [20, 20], "confirmed"),
        (20, [1.0] * 6 + [-1.0] * 4, [20], "open"),  # 17 of 20 cannot be reached
        (10, [1.0] * 9 + [-1.0], [20], "open"),
        (40, [-1.0] * 9 + [1.0] * 31, [20, 20, 40], "confirmed"),
        (10, [math.inf] * 10, [20], "confirmed"),
    ],
)
def test_a_test_goes_on_while_a_later_stage_can_decide(most, differences, rounds, verdict):
    made, rows = simulated(claim_of(most), differences)
    assert made == rounds
    (finding,) = judge_claim(claim_of(most), rows).findings
    assert finding.verdict == verdict
    assert list(finding.values) == differences


@pytest.mark.parametrize(
    ("settings", "which", "rounds"),
    [
        ({"rates": GRID}, {}, [18, 6, 6, 20]),  # a tie is extended downwards, twice
        ({"lengths": [5, 20]}, {}, [40]),
        ({"role": "secondary", "seeds": 3}, {}, [6]),
        ({"role": "shown", "seeds": 3}, {"pilots": True}, []),
        ({}, {"pilots": True}, [10]),  # five seeds of both arms
        ({"role": "secondary", "seeds": 3}, {"pilots": True}, [2]),
        ({"long": True}, {"long": False}, []),
        ({"long": True}, {"long": True}, [20]),
        ({"first_seed": 305}, {}, [20]),
    ],
)
def test_what_is_needed_is_what_is_missing(settings, which, rounds):
    claim = claim_of(10, **settings)
    made, rows = simulated(claim, [1.0] * 20, **which)
    assert made == rounds
    seeds = {run.seed for run in rows if run.seed < 1000}
    assert min(seeds, default=300) == settings.get("first_seed", 300) or which.get("pilots")
    for run in list(rows)[::4]:  # a lost row is what is missing, alone
        assert missing_runs(claim, {k: v for k, v in rows.items() if k != run}, **which) == [run]


def test_a_variant_of_the_command_line_is_ranked_by_published_rows():
    protocol = Protocol.read(ROOT / "experiments" / "ranking" / "ranking.yaml")
    rows, alone = Rows(protocol.folder / "rows.jsonl"), "model.learned_positions=false"
    for typed, name, partner in [
        ("attn=gate_head", "gate_head", "sdpa"),
        (f"{alone} attn=rotary", f"rotary {alone}", "sdpa, no positions"),
        ("attn=rotary model.positions=none", f"rotary {alone}", "sdpa, no positions"),
        ("attn._target_=my.Layer +attn.k=2", "my.Layer +attn.k=2", "sdpa"),
    ]:
        own, found = with_own(protocol, typed.split())
        assert (found, own.partner(found)) == (name, partner)
        assert bool(missing_of_ranking(own, rows, [found], quick=False)) == ("my.Layer" in name)
    for typed in (alone, f"attn=rotary {alone} model.n_head=1", "attn=rotary optim.lr=1"):
        with pytest.raises(BadInput):
            with_own(protocol, typed.split())


def test_words_of_an_arm_that_hydra_refuses_are_explained_as_by_the_command() -> None:
    with pytest.raises(BadInput, match="did you mean attn=unscaled"):
        composed(["attn=unscald"], ROOT / "experiments")
