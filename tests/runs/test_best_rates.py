"""Settings are compared at the best learning rate of each."""

import json

import pytest
from typer.testing import CliRunner

from attnlab.commands.cli import app
from attnlab.errors import BadInput
from attnlab.runs.best_rates import compare_at_best
from attnlab.runs.reading import read_runs
from tests.runs.invented import write_run

LOSSES = {  # by learning rate
    "sdpa": {1e-3: 2.5, 3e-3: 2.3, 1e-2: 2.4},
    "unscaled": {1e-3: 2.35, 3e-3: 2.6, 1e-2: 2.9},
}


def sweep(root, seeds=(0, 1, 2), more=()):
    for variant, by_rate in LOSSES.items():
        best = min(by_rate, key=by_rate.get)
        for rate, loss in by_rate.items():
            for seed in (*seeds, *(more if rate == best else ())):
                shift = 0.01 * seed if seed < 3 else 0.1  # seeds of the selection are lower
                write_run(root, variant, seed, loss + shift, f"optim.lr={rate:g}",
                          f"optim.min_lr={rate / 10:g}")  # fmt: skip
    return root


def test_each_setting_is_compared_at_its_best_rate(tmp_path):
    best = compare_at_best(read_runs(sweep(tmp_path)), "lr")
    sdpa, unscaled = best.comparisons
    assert [choice.rate for choice in best.choices] == [3e-3, 1e-3]
    assert sdpa.is_baseline
    assert unscaled.differences == pytest.approx([0.05] * 3)  # at 1e-3 alone it is -0.15
    assert [choice.at_edge for choice in best.choices] == [False, True]
    text = str(best)
    assert (
        "best optim.lr, by the mean loss over seeds 0, 1, 2, and is compared on the same" in text
    )
    assert "0.003 of 0.001 (2.5100), 0.003 (2.3100), 0.01 (2.4100)" in text
    assert "the best one is at the edge" in text.splitlines()[2]


def test_seeds_that_did_not_choose_the_rate_are_compared_if_there_are_some(tmp_path):
    best = compare_at_best(read_runs(sweep(tmp_path, more=(3, 4, 5, 6))), "optim.lr")
    assert list(best.seeds) == [3, 4, 5, 6]
    assert best.comparisons[1].seeds == [3, 4, 5, 6]
    assert "compared on seeds 3 to 6." in str(best)


def test_one_seed_is_named_as_one(tmp_path):
    text = str(compare_at_best(read_runs(sweep(tmp_path, seeds=(0,))), "lr"))
    assert "by the loss of seed 0, and is compared on the same seed." in text


def test_runs_are_sorted_by_number(tmp_path):
    rates = [run.config["optim.lr"] for run in read_runs(sweep(tmp_path, seeds=(0, 10, 9)))]
    assert rates[:9] == [1e-3] * 3 + [3e-3] * 3 + [1e-2] * 3
    assert [run.seed for run in read_runs(tmp_path)][:3] == [0, 9, 10]


def test_the_command_prints_the_rates_as_text_and_as_json(tmp_path):
    command = ["compare", str(sweep(tmp_path)), "--best", "lr"]
    text = CliRunner().invoke(app, command).output
    assert "Each setting has its best optim.lr" in text and "+0.0500" in text
    rows = json.loads(CliRunner().invoke(app, [*command, "--json"]).output)
    assert [row["optim.lr"] for row in rows] == [3e-3, 1e-3]
    assert rows[1]["difference"]["median"] == pytest.approx(0.05)
    assert rows[1]["selection_seeds"] == [0, 1, 2] and rows[1]["at_edge"]


def test_a_run_that_stands_twice_is_refused(tmp_path):
    sweep(tmp_path / "one")
    sweep(tmp_path / "two")
    with pytest.raises(BadInput, match=r"one.* and .*two.* have the same optim\.lr and seed"):
        compare_at_best(read_runs(tmp_path), "lr")


@pytest.mark.parametrize(
    ("name", "message"),
    [("rate", "rate is not a setting"), ("max_steps", "has only one trainer.max_steps")],
)
def test_a_setting_without_several_values_is_refused(name, message, tmp_path):
    with pytest.raises(BadInput, match=message):
        compare_at_best(read_runs(sweep(tmp_path)), name)
