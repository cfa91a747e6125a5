"""Numbers of a claim's page cannot be misread: signs, shares, ranges of few seeds, conditions."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from attnlab.claims.claim import Claim
from attnlab.claims.claim_page import (
    arm_table,
    difference_of_conditions,
    draw_findings,
    median_in_words,
    rounded_by_spread,
    share_in_words,
    verdict_and_where,
    whole_percent,
)
from attnlab.claims.judged_claim import judge_claim
from attnlab.claims.ranking import Cell
from attnlab.claims.ranking_page import cell_in_words
from attnlab.claims.reach import amounts
from attnlab.claims.trials import Run
from attnlab.runs.seed_statistics import Interval


def judged(arms, values, **prediction):
    """A claim with one prediction; a loss a seed and arm."""
    claim = Claim(
        says="A.", base=[], first_seed=0, arms={name: [f"x={name}"] for name in arms},
        predictions={"p": {"says": "", "arms": arms, "above": 0.0} | prediction},
    )  # fmt: skip
    rows = {}
    for name, losses in zip(arms, values, strict=True):
        for seed, loss in enumerate(losses):
            rows[Run((f"x={name}",), seed)] = {
                "status": "finished", "overrides": [f"x={name}"], "cpu_seconds": 1.0,
                "values": {"val_loss": loss},
            }  # fmt: skip
    return judge_claim(claim, rows)


@pytest.mark.parametrize(
    ("arms", "settings", "words"),
    [
        (["a", "b"], {}, "+1.0 nats (+1.0 to +1.0)"),
        (["a"], {}, "2.0 nats (2.0 to 2.0)"),
        (["a", "b"], {"contrast": "min"}, "1.0 nats (1.0 to 1.0)"),
    ],
)
def test_a_difference_has_its_sign(arms, settings, words):
    (finding,) = judged(arms, [[2.0] * 10, [1.0] * 10][: len(arms)], **settings).findings
    assert median_in_words(finding, signed=True) == words
    assert median_in_words(finding) == words.replace("+", "")


@pytest.mark.parametrize(
    ("seeds", "words"),
    [(10, "50 % (50 % to 50 %)"), (3, "50 % (3 seeds: 50 %, 50 %, 50 %)")],
)
def test_a_range_of_few_seeds_does_not_look_like_an_interval(seeds, words):
    losses = [[2.0] * seeds, [3.0] * seeds, [1.0] * seeds]
    settings = {"weights": [1, -1, 0], "role": "shown", "seeds": seeds}
    (finding,) = judged(["x", "none", "sdpa"], losses, **settings).findings
    assert share_in_words(finding) == words


@pytest.mark.parametrize(
    ("other", "ends_in"),
    [
        (["attn=sdpa", "model.n_head=2"], "differ in model.n_head, and in nothing else."),
        (["model.n_head=2", "model.n_embd=32"], "so it was not shown which of them decides."),
    ],
)
def test_a_page_says_in_what_true_and_false_conditions_differ(tmp_path, other, ends_in):
    arms = {"a": ["attn=sdpa"], "b": other}
    predictions = {
        "p": {"says": "", "arms": ["a"], "above": 0.0},
        "q": {"says": "", "arms": ["b"], "above": 0.0, "role": "against"},
    }
    file = tmp_path / "experiments" / "mine" / "claim.yaml"
    claim = Claim(says="A.", base=["preset=micro"], first_seed=0, arms=arms,
                  predictions=predictions, file=file)  # fmt: skip
    rows = {}
    for words in arms.values():
        overrides = ("preset=micro", *words)
        row = {"overrides": overrides, "status": "finished", "values": {"val_loss": 1.0}}
        rows |= {Run(overrides, seed): row for seed in range(10)}
    result = judge_claim(claim, rows)
    assert result.verdict == "holds in part"
    assert difference_of_conditions(result).endswith(ends_in)


@pytest.mark.parametrize(
    ("best_of_b", "ends_in"),
    [
        (0.003, "nothing else."),
        (0.01, "nothing else but the learning rate, which is the best of each."),
    ],
)
def test_a_page_says_if_best_rates_differ(tmp_path, best_of_b, ends_in):
    arms = {"a": ["model.n_head=4"], "b": ["model.n_head=2"]}
    rates = [0.001, 0.003, 0.01, 0.03]
    predictions = {
        "p": {"says": "", "arms": ["a"], "above": 0.0, "rates": rates},
        "q": {"says": "", "arms": ["b"], "above": 0.0, "rates": rates, "role": "against"},
    }
    file = tmp_path / "experiments" / "mine" / "claim.yaml"
    claim = Claim(says="A.", base=["preset=micro"], first_seed=0, arms=arms,
                  predictions=predictions, file=file)  # fmt: skip
    best = {"a": 0.003, "b": best_of_b}
    rows = {}
    for name, words in arms.items():
        for rate in rates:
            overrides = (
                *("preset=micro", *words),
                *(f"optim.lr={rate:g}", f"optim.min_lr={rate / 10:g}"),
            )
            loss = 1.0 if rate == best[name] else 2.0
            row = {"overrides": overrides, "status": "finished", "values": {"val_loss": loss}}
            rows |= {Run(overrides, seed): row for seed in [*range(10), *range(1000, 1003)]}
    assert difference_of_conditions(judge_claim(claim, rows)).endswith(ends_in)


@pytest.mark.parametrize(
    ("value", "spread", "digits"),
    [
        (-0.0004, 0.1, "0.00"),
        (-0.004, 0.01, "-0.004"),
        (-0.0, 1.0, "0.0"),
        (-1e-9, 1e-7, "-1.0e-09"),
    ],
)
def test_a_number_that_is_rounded_to_0_has_no_minus(value, spread, digits):
    assert rounded_by_spread(value, spread) == digits


@pytest.mark.parametrize(("share", "words"), [(-0.004, "0 %"), (-0.006, "-1 %"), (0.5, "50 %")])
def test_a_share_that_is_rounded_to_0_has_no_minus(share, words):
    assert whole_percent(share) == words


@pytest.mark.parametrize(
    ("failed", "rate", "words"),
    [
        (0, 0.1, "**worse**: 300 steps<br>+25 (+0 to +50)"),
        (2, 0.1, "**worse**: 300 steps, 2 of 10 failed<br>+25 (+0 to +50)"),
        (0, 0.2, "**worse**: 300 steps<br>+25 (+0 to +50)<br>rates 0.2, 0.1"),
    ],
)
def test_a_cell_of_the_ranking_names_failed_runs_and_other_rates(failed, rate, words):
    cell = Cell([{}] * 10, "worse", "steps", 300, Interval(25, 0, 50), failed=failed,
                rate=rate, partner_rate=0.1)  # fmt: skip
    assert cell_in_words(cell) == words


@pytest.mark.parametrize(
    ("numbers", "words"),
    [((), ""), ((1,), "1 step"), ((3, 3), "3 steps"), ((1200, 300), "300 and 1,200 steps"),
     ((25, 1300, 50), "25 to 1,300 steps")],
)  # fmt: skip
def test_amounts_are_said_with_their_unit(numbers, words):
    assert amounts(numbers, "step") == words


def test_titles_of_a_figure_fit_in_it():
    figure = draw_findings(judged(["a"], [[1.0, 2.0] * 5], says="A long prediction. " * 8))
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    (title,) = [words for words in figure.findobj(Text) if "prediction" in words.get_text()]
    assert title.get_window_extent(renderer).x1 <= figure.bbox.x1


def test_the_table_of_arms_has_the_steps_of_all_runs():
    """A callback may end each at another step."""
    result = judged(["a"], [[1.0] * 10])
    for steps, row in enumerate(result.findings[0].rows["a"], 25):
        row["values"]["steps"] = steps
    assert "| 25 to 34 |" in arm_table(result)


@pytest.mark.parametrize(
    ("of_300", "of_600", "words"),
    [
        ([-1.0] * 10, [1.0] * 10, "refuted after 300 steps"),
        ([-1.0] * 10, [1.0, -1.0] * 5, "refuted after 300 steps, open after 600 steps"),
        ([1.0] * 10, [], "not trained yet after 600 steps"),
    ],
)
def test_a_control_that_failed_names_the_lengths_at_which_it_did(of_300, of_600, words):
    control = {"says": "", "arms": ["a"], "above": 0.0, "role": "control", "lengths": [300, 600]}
    claim = Claim(
        says="A.", base=[], first_seed=0, arms={"a": ["x=a"]}, predictions={"p": control}
    )
    rows = {}
    for steps, losses in ((300, of_300), (600, of_600)):
        arm = claim.arms_of(claim.predictions["p"], steps)["a"]
        for seed, loss in enumerate(losses):
            rows[arm.run(seed, None)] = {"status": "finished", "values": {"val_loss": loss}}
    assert verdict_and_where(judge_claim(claim, rows)).endswith(f": {words}")


@pytest.mark.parametrize(
    ("losses", "fails"), [([1.0] * 10, False), ([1.0, -1.0] * 5, True), ([-1.0] * 10, True)]
)
def test_a_page_says_that_nothing_follows_from_a_control_that_is_not_confirmed(losses, fails):
    result = judged(["a"], [losses], role="control")
    assert ("nothing follows" in verdict_and_where(result)) == fails
