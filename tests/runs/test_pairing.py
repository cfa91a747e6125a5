"""Runs are grouped, labeled and paired by their stored settings."""

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from attnlab.commands.cli import app
from attnlab.errors import BadInput
from attnlab.runs.pairing import Comparison, labels, pairs, settings
from attnlab.runs.reading import read_runs
from tests.runs.invented import write_run

# Losses of sdpa and of unscaled, by n_head and seed, as in a sweep of both.
SWEEP = {1: ((2.60, 2.62), (2.61, 2.64)), 4: ((2.50, 2.52), (2.53, 2.54))}


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    root = tmp_path / "outputs" / "lab"
    for heads, losses in SWEEP.items():
        for variant, of_seeds in zip(("sdpa", "unscaled"), losses, strict=True):
            for seed, loss in enumerate(of_seeds):
                changes = [
                    "preset=micro",
                    f"model.n_head={heads}",
                    "trainer.val_check_interval=60",
                ]
                write_run(root, variant, seed, loss, *changes)
    return root


def by_label(root: Path, baseline: str | None = None) -> dict[str, Comparison]:
    return {c.setting.label: c for c in pairs(read_runs(root), baseline)}


def ask(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"})
    assert result.exception is None, result.exception
    return result.stdout


def test_each_setting_is_paired_with_the_baseline_of_its_other_settings(sweep: Path) -> None:
    compared = by_label(sweep)
    assert [*compared] == [
        *("sdpa n_head=1", "unscaled n_head=1", "sdpa n_head=4", "unscaled n_head=4")
    ]
    assert compared["unscaled n_head=1"].differences == pytest.approx([0.01, 0.02])
    four = compared["unscaled n_head=4"]
    assert four.baseline is not None and four.baseline.label == "sdpa n_head=4"
    assert four.differences == pytest.approx([0.03, 0.02]) and four.worse == 2 and not four.better


def test_table_compare_and_json_show_the_same_differences(sweep: Path) -> None:
    expected = {"unscaled n_head=1": 0.015, "unscaled n_head=4": 0.025}
    for verb in ("runs", "compare"):
        text = ask(verb, str(sweep))
        assert max(map(len, text.split("\n", 1)[1].split(" cannot")[0].splitlines())) <= 80
        rows = {row["run"]: row for row in json.loads(ask(verb, str(sweep), "--json"))}
        for label, median in expected.items():
            assert rows[label]["difference"]["median"] == pytest.approx(median)
            assert rows[label]["baseline"] == label.replace("unscaled", "sdpa")
            (line,) = [x for x in text.splitlines() if x.strip().startswith(f"{label} ")][:1]
            assert f" {median:+.4f} " in line
        csv = ask(verb, str(sweep), "--csv").splitlines()
        place = csv[0].split(",").index("difference_median")
        for line in csv[1:]:
            label, median_cell = line.split(",")[0], line.split(",")[place]
            assert median_cell == "" or float(median_cell) == pytest.approx(expected[label])


def test_without_a_baseline_there_are_no_differences_and_a_reason(tmp_path: Path) -> None:
    for scale in (0.3, 1.0):
        write_run(tmp_path, "sdpa", 0, 2.0, f"attn.scale={scale}")
    compared = by_label(tmp_path)
    assert [*compared] == ["sdpa scale=0.3", "sdpa scale=1"]
    assert all(not c.pairs and "no run of attn=sdpa" in c.why for c in compared.values())
    chosen = by_label(tmp_path, "scale=0.3")
    assert chosen["sdpa scale=0.3"].is_baseline
    assert chosen["sdpa scale=1"].differences == [0.0]


def test_the_user_names_the_baseline(sweep: Path) -> None:
    attention = by_label(sweep, "unscaled")
    assert attention["sdpa n_head=4"].differences == pytest.approx([-0.03, -0.02])
    heads = by_label(sweep, "n_head=1")
    assert heads["sdpa n_head=4"].differences == pytest.approx([-0.1, -0.1])
    assert heads["unscaled n_head=4"].differences == pytest.approx([-0.08, -0.1])
    both = by_label(sweep, "attn=sdpa,n_head=1")
    assert both["unscaled n_head=4"].differences == pytest.approx([-0.07, -0.08])


@pytest.mark.parametrize(
    ("baseline", "sentence"),
    [
        ("linear", "--baseline linear matches none of these settings: sdpa n_head=1, "),
        ("n_haed=1", "n_haed is not a setting of these runs"),
    ],
)
def test_a_baseline_that_is_not_there(sweep: Path, baseline: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        pairs(read_runs(sweep), baseline)


def test_other_settings_and_other_texts_are_never_paired(tmp_path: Path) -> None:
    write_run(tmp_path, "sdpa", 0, 2.0)
    write_run(tmp_path, "unscaled", 0, 2.1, "optim.lr=0.003")
    write_run(tmp_path, "flipped", 0, 2.1, sha256="1" * 64)
    write_run(tmp_path, "linear", 1, 2.1)
    compared = {c.setting.first.variant: c for c in pairs(read_runs(tmp_path))}
    assert [c.setting.first.variant for c in compared.values() if c.pairs] == []
    assert compared["unscaled"].why == "no run of attn=sdpa has its other settings"
    assert compared["flipped"].why == "trained on another text"
    assert compared["linear"].why == "no seed of both has ended"


def test_seeds_of_a_text_that_has_changed_have_no_common_mean(tmp_path: Path) -> None:
    for variant, loss in (("sdpa", 2.0), ("unscaled", 2.1)):
        write_run(tmp_path, variant, 0, loss)
        write_run(tmp_path, variant, 1, loss + 1, sha256="1" * 64)
    compared = pairs(read_runs(tmp_path))
    assert sorted((c.setting.mean("val_loss"), c.seeds) for c in compared) == [
        *((2.0, []), (2.1, [0]), (3.0, []), (3.1, [1]))
    ]
    assert len({c.setting.label for c in compared}) == 4


def test_labels_come_from_settings_even_where_names_of_directories_are_cut(
    tmp_path: Path,
) -> None:
    for heads in (1, 4):
        folder = tmp_path / f"attn=sdpa,~{heads}270f8f9" / "seed=0"
        write_run(tmp_path, "sdpa", 0, 2.0, f"model.n_head={heads}", folder=folder)
    assert [s.label for s in settings(read_runs(tmp_path))] == ["sdpa n_head=1", "sdpa n_head=4"]


def test_a_group_of_the_configuration_stands_for_what_it_sets(tmp_path: Path) -> None:
    write_run(tmp_path, "sdpa", 0, 2.0)
    plays = {"data": {"_target_": "plays", "tokenizer": "bpe"}}
    write_run(tmp_path, "sdpa", 0, 2.0, "data=plays", settings=plays)
    assert sorted(labels(read_runs(tmp_path)).values()) == ["sdpa", "sdpa data=plays"]


def test_run_directories_of_any_name_are_grouped_by_their_settings(tmp_path: Path) -> None:
    for name, variant, seed in (("a", "sdpa", 0), ("b", "sdpa", 1), ("c", "unscaled", 1)):
        write_run(tmp_path, variant, seed, 2.0 + seed, folder=tmp_path / name)
    compared = by_label(tmp_path)
    assert [len(c.setting.runs) for c in compared.values()] == [2, 1]
    assert compared["unscaled"].seeds == [1]


def test_the_same_settings_and_seed_twice_are_told_apart_by_place(tmp_path: Path) -> None:
    for place in ("a", "b"):
        write_run(tmp_path / place, "sdpa", 0, 2.0)
    write_run(tmp_path / "b", "unscaled", 0, 2.5)
    compared = by_label(tmp_path)
    assert [*compared] == ["sdpa (a)", "sdpa (b)", "unscaled"]
    assert compared["unscaled"].baseline is compared["sdpa (b)"].setting


def test_divergence_has_a_sign_and_no_size(tmp_path: Path) -> None:
    for seed, ends in enumerate(("fff", "dff", "fdd")):
        for variant, end in zip(("unscaled", "sdpa", "flipped"), ends, strict=True):
            status = "diverged" if end == "d" else "finished"
            write_run(tmp_path, variant, seed, 2.0, status=status)
    compared = by_label(tmp_path)
    assert compared["unscaled"].differences == [0.0, math.inf, -math.inf]
    assert (compared["unscaled"].worse, compared["unscaled"].better) == (1, 1)
    assert math.isnan(compared["flipped"].differences[2])


def test_means_leave_out_diverged_runs_unless_all_diverged(tmp_path: Path) -> None:
    write_run(tmp_path, "unscaled", 0, 2.0, entropy=0.5)
    write_run(tmp_path, "unscaled", 1, 0.0, entropy=0.1, status="diverged")
    write_run(tmp_path, "sdpa", 0, 0.0, entropy=0.3, status="diverged")
    means = {s.label: (s.mean("val_loss"), s.mean("attn/entropy"))
             for s in settings(read_runs(tmp_path))}  # fmt: skip
    assert means["unscaled"] == (2.0, 0.5)
    assert means["sdpa"][1] == 0.3


def test_settings_of_one_short_name_are_labeled_by_their_full_names(tmp_path: Path) -> None:
    write_run(tmp_path, "sdpa", 0, 2.0, "optim.lr=1", "schedule.lr=2", "model.n_head=1")
    write_run(tmp_path, "sdpa", 0, 2.0, "optim.lr=2", "schedule.lr=1", "model.n_head=2")
    labels_shown = {s.label for s in settings(read_runs(tmp_path))}
    assert labels_shown == {
        "sdpa n_head=1 optim.lr=1 schedule.lr=2",
        "sdpa n_head=2 optim.lr=2 schedule.lr=1",
    }


@pytest.mark.parametrize(
    ("worse", "n", "verdict"),
    [(10, 10, "worse"), (9, 10, "open"), (0, 10, "better"), (9, 9, "open"), (17, 20, "worse")],
)
def test_the_verdict_counts_seeds(tmp_path: Path, worse: int, n: int, verdict: str) -> None:
    for seed in range(n):
        write_run(tmp_path, "sdpa", seed, 2.0)
        # The first seeds are better, so that 17 of 20 are not decided by the first ten.
        write_run(tmp_path, "unscaled", seed, 2.1 if seed >= n - worse else 1.9)
    c = by_label(tmp_path)["unscaled"]
    assert c.decision[0] == verdict
    low, high = c.interval[1:]
    assert math.isnan(low) == (n < 6) and (low <= high or n < 6)


def test_damaged_runs_are_settings_of_their_own(sweep: Path) -> None:
    file = next(sweep.glob("attn=sdpa*n_head=1*/seed=1/metrics.json"))
    file.write_text("[]")
    compared = pairs(read_runs(sweep))
    (damaged,) = [c for c in compared if c.why.startswith("damaged: ")]
    assert "seed=1" in damaged.setting.label and "JSON object" in damaged.why
    assert sum(len(c.pairs) for c in compared) == 3
