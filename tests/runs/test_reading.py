"""Tables of runs: all runs are listed, and means and conditions are correct."""

import csv
import io
import json
import math
import statistics
from pathlib import Path
from typing import Any

import pandas
import pytest
from filelock import FileLock
from omegaconf import OmegaConf
from rich.console import Console
from typer.testing import CliRunner

from attnlab.commands.cli import app
from attnlab.errors import BadInput
from attnlab.files import write_json
from attnlab.runs import frames, pairing, runs_table
from attnlab.runs import reading as runs
from attnlab.runs.settings import flat


def invent(
    root: Path,
    variant: str,
    seed: int,
    *,
    status: str = "finished",
    loss: float | None = 2.0,
    overrides: tuple[str, ...] = (),
    config: dict[str, Any] | None = None,
) -> Path:
    """A run directory as `train.py` writes it."""
    name = ",".join([f"attn={variant}", *overrides])
    folder = root / name / f"seed={seed}"
    step = 1 if loss is None else 100
    told = {"status": status, "step": step, "fingerprint": "", "reason": "", "max_steps": 100}
    write_json(folder / "status.json", told | {"last_finite_loss": 2.0})
    if status in {"finished", "diverged"}:
        metrics: dict[str, Any] = {"variant": variant, "seed": seed, "status": status}
        metrics |= {"val_loss": math.nan if loss is None else loss, "steps": 100}
        metrics |= {"tokens_per_second": 1e4, "device": "cpu", "precision": "32-true"}
        metrics |= {"unit": "character", "corpus": {"name": "text", "sha256": "a"}}
        metrics["probes"] = {"attn/entropy": 0.5, "attn/future_mass": 0.0}
        write_json(folder / "metrics.json", metrics)
    settings = {"attn": {"scale": None}, "optim": {"lr": 0.01}, "seed": seed} | (config or {})
    (folder / ".hydra").mkdir()
    for override in overrides:
        OmegaConf.update(settings := OmegaConf.create(settings), *override.split("=", 1))
    (folder / ".hydra" / "config.yaml").write_text(OmegaConf.to_yaml(settings))
    typed = [f"attn={variant}", f"seed={seed}", "name=x", *overrides]
    (folder / ".hydra" / "overrides.yaml").write_text(OmegaConf.to_yaml(typed))
    return folder


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    root = tmp_path / "outputs" / "sweep"
    for seed, loss in ((0, 2.0), (1, 2.2), (2, 2.4)):
        invent(root, "sdpa", seed, loss=loss)
    for seed, loss in ((0, 2.5), (1, 2.7)):
        invent(root, "unscaled", seed, loss=loss, config={"attn": {"scale": 1.0}, "callbacks": {}})
    invent(root, "unscaled", 2, status="diverged", loss=None)
    invent(root, "flipped", 0, status="failed")
    return root


def ask(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["runs", *arguments], env={"COLUMNS": "80"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def test_all_runs_are_listed(sweep: Path) -> None:
    found = runs.read_runs(sweep.parent)
    assert len(found) == 7
    assert sorted(run.status for run in found) == ["diverged", "failed", *["finished"] * 5]
    assert len(runs.read_runs(sweep / "attn=sdpa" / "seed=0")) == 1


def test_seeds_come_in_order_of_their_numbers(tmp_path: Path) -> None:
    for seed in (10, 9, 2):
        invent(tmp_path, "sdpa", seed)
    assert [run.values["seed"] for run in runs.read_runs(tmp_path)] == [2, 9, 10]


def test_infinite_values_have_a_mean(tmp_path: Path) -> None:
    for seed, loss in enumerate((math.inf, -math.inf)):
        invent(tmp_path, "sdpa", seed, loss=loss)
        invent(tmp_path, "manual", seed, loss=math.inf)
    means = [group.mean("val_loss") for group in pairing.settings(runs.read_runs(tmp_path))]
    assert means[0] == math.inf and math.isnan(means[1] or 0)


def test_groups_have_mean_and_deviation_over_seeds(sweep: Path) -> None:
    groups = {
        (g.first.values["attn"], g.first.status): g
        for g in pairing.settings(runs.read_runs(sweep))
    }
    assert set(groups) == {
        ("sdpa", "finished"),
        ("unscaled", "finished"),
        ("unscaled", "diverged"),
        ("flipped", "failed"),
    }
    sdpa = groups["sdpa", "finished"]
    assert sdpa.mean("val_loss") == pytest.approx(2.2)
    assert sdpa.sd("val_loss") == pytest.approx(statistics.stdev([2.0, 2.2, 2.4]))
    assert sdpa.mean("attn/entropy") == 0.5
    lone = groups["unscaled", "diverged"]
    assert math.isnan(lone.mean("val_loss") or 0) and lone.sd("val_loss") is None
    assert groups["flipped", "failed"].mean("val_loss") is None


def test_different_settings_are_different_groups(tmp_path: Path) -> None:
    invent(tmp_path, "sdpa", 0, overrides=("optim.lr=0.1", "trainer.max_steps=9"))
    invent(tmp_path, "sdpa", 1, overrides=("optim.lr=0.2", "trainer.max_steps=9"))
    found = runs.read_runs(tmp_path)
    assert len(pairing.settings(found)) == 2
    assert sorted(pairing.labels(found).values()) == ["sdpa lr=0.1", "sdpa lr=0.2"]
    assert "all with trainer.max_steps=9" in runs_table.title(found, "here", of=len(found))


def test_two_sweeps_are_separate_groups(tmp_path: Path) -> None:
    invent(tmp_path / "a", "sdpa", 0)
    invent(tmp_path / "b", "sdpa", 0)
    assert sorted(pairing.labels(runs.read_runs(tmp_path)).values()) == ["sdpa (a)", "sdpa (b)"]


def test_sweeps_of_one_name_in_two_directories_are_separate_groups(tmp_path: Path) -> None:
    for place in ("a", "b"):
        invent(tmp_path / place / "lab", "sdpa", 0)
    invent(tmp_path / "b" / "lab", "flipped", 0)
    names = pairing.labels(runs.read_runs(tmp_path))
    assert names == {
        tmp_path / "a/lab/attn=sdpa/seed=0": "sdpa (a/lab)",
        tmp_path / "b/lab/attn=sdpa/seed=0": "sdpa (b/lab)",
        tmp_path / "b/lab/attn=flipped/seed=0": "flipped",
    }


def test_a_setting_that_is_true_or_false_has_no_mean(tmp_path: Path) -> None:
    for seed in (0, 1):
        invent(tmp_path, "sdpa", seed, config={"model": {"bias": True}})
    (row,) = pairing.pairs(runs.read_runs(tmp_path))
    assert row.setting.mean("model.bias") is None
    assert runs_table.cell(row, "model.bias") == "True"
    (row,) = json.loads(ask(str(tmp_path), "--json", "--columns", "model.bias,corpus.name"))
    assert row["model.bias"] == {"mean": None, "sd": None, "values": [True, True]}
    assert row["corpus.name"]["values"] == ["text", "text"]
    (row,) = csv.DictReader(io.StringIO(ask(str(tmp_path), "--csv", "--columns", "corpus.name")))
    assert (row["corpus.name_mean"], row["corpus.name_sd"]) == ("text", "")


def test_csv_writes_control_characters_out(tmp_path: Path) -> None:
    invent(tmp_path, "sdpa", 0, config={"model": {"bias": "a\x1b[2J\n=1"}})
    printed = ask(str(tmp_path), "--csv", "--columns", "model.bias")
    (row,) = csv.DictReader(io.StringIO(printed))
    assert row["model.bias_mean"] == r"a\x1b[2J\n=1"
    assert "\x1b" not in printed


@pytest.mark.parametrize(
    ("condition", "count"),
    [
        ("attn=unscaled", 3),
        ("attn!=unscaled", 4),
        ("val_loss<2.3", 2),
        ("val_loss>=2.5", 2),
        ("status=diverged", 1),
        ("attn.scale=1.0", 2),
        ("attn.scale=1", 2),
        ("attn.scale=null", 5),
        ("optim.lr <= 1e-2", 7),
        ("seed=0", 3),
        ("corpus.name=text", 6),
    ],
)
def test_conditions(sweep: Path, condition: str, count: int) -> None:
    assert len(runs_table.select(runs.read_runs(sweep), [condition])) == count


def test_an_order_needs_a_number(sweep: Path) -> None:
    with pytest.raises(BadInput, match="val_loss<abc: < needs a number, not 'abc'"):
        runs_table.select(runs.read_runs(sweep), ["val_loss<abc"])


def test_conditions_add_up(sweep: Path) -> None:
    assert len(runs_table.select(runs.read_runs(sweep), ["attn=unscaled", "val_loss<2.6"])) == 1


def test_sorting_puts_missing_values_last(sweep: Path) -> None:
    found = runs.read_runs(sweep)
    singles = runs_table.one_by_one(pairing.pairs(found))
    up, down = (
        [
            c.setting.first.values.get("val_loss")
            for c in runs_table.sort(singles, "val_loss", descending=descending)
        ]
        for descending in (False, True)
    )
    assert up[:5] == [2.0, 2.2, 2.4, 2.5, 2.7] and down[:5] == up[:5][::-1]
    compared = runs_table.sort(pairing.pairs(found), "val_loss", descending=True)
    assert [c.setting.first.variant for c in compared][:2] == ["unscaled", "sdpa"]


def test_interrupted_and_running(tmp_path: Path) -> None:
    folder = invent(tmp_path, "sdpa", 0, status="running")
    (folder / ".lock").touch()
    assert runs.read_run(folder).status == "interrupted"
    with FileLock(folder / ".lock"):
        assert runs.read_run(folder).status == "running"


@pytest.mark.parametrize("file", ["status.json", "metrics.json", ".hydra/config.yaml"])
def test_a_damaged_run_is_a_row(sweep: Path, file: str) -> None:
    (sweep / "attn=sdpa" / "seed=0" / file).write_text("{")
    found = runs.read_runs(sweep)
    assert [run.status for run in found].count("damaged") == 1
    assert "damaged" in ask(str(sweep))


def test_the_table_fits_80_columns(sweep: Path) -> None:
    for extra in ([], ["--each"], ["--where", "status=finished"]):
        text = ask(str(sweep), *extra).split("\n", 1)[1]
        assert max(map(len, text.splitlines())) <= 80
    text = ask(str(sweep))
    assert "2.20±0.20" in text and "diverged" in text and "failed" in text


def test_a_sweep_of_finished_runs_has_one_line_a_variant(sweep: Path) -> None:
    """The table of an ordinary sweep has one row per variant."""
    invent(sweep, "identical_heads", 0, loss=2.1234)
    invent(sweep, "identical_heads", 1, loss=2.1334)
    text = ask(str(sweep), "--where", "status=finished")
    assert any("identical_heads" in line and "2.1284±0.0071" in line for line in text.split("\n"))


def test_json_holds_every_value(sweep: Path) -> None:
    rows = {(r["attn"], r["statuses"][0]): r for r in json.loads(ask(str(sweep), "--json"))}
    assert rows["sdpa", "finished"]["val_loss"]["values"] == [2.0, 2.2, 2.4]
    assert rows["sdpa", "finished"]["n"] == 3
    assert rows["unscaled", "diverged"]["val_loss"]["mean"] == "nan"
    assert rows["flipped", "failed"]["val_loss"] == {"mean": None, "sd": None, "values": []}
    each = json.loads(ask(str(sweep), "--json", "--each", "--columns", "optim.lr,val_loss"))
    assert len(each) == 7 and {row["optim.lr"] for row in each} == {0.01}


def test_csv_has_means_and_deviations(sweep: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(ask(str(sweep), "--csv"))))
    (sdpa,) = [row for row in rows if row["attn"] == "sdpa"]
    assert float(sdpa["val_loss_mean"]) == pytest.approx(2.2)
    assert float(sdpa["val_loss_sd"]) == pytest.approx(0.2)
    assert (sdpa["n"], sdpa["seeds"]) == ("3", "0 1 2")
    assert len(list(csv.DictReader(io.StringIO(ask(str(sweep), "--csv", "--each"))))) == 7


def test_no_run_matches_the_condition(sweep: Path) -> None:
    assert "none of 7 runs match --where" in ask(str(sweep), "--where", "val_loss>99")
    assert json.loads(ask(str(sweep), "--where", "val_loss>99", "--json")) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--where", "attn"], "must be KEY=VALUE"),
        (["--where", "atn=sdpa"], "did you mean attn"),
        (["--sort", "val_los"], "did you mean val_loss"),
        (["--columns", "val_loss,attn/entropi"], "did you mean attn/entropy"),
    ],
)
def test_bad_conditions_are_one_sentence(sweep: Path, arguments: list[str], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        ask(str(sweep), *arguments)


def test_settings_are_read_as_they_were_saved(tmp_path: Path) -> None:
    odd = {"lr": 1e-5, "word": "1e-5", "none": None, "flag": True, "yes": "yes", "list": [0.9, 1]}
    folder = invent(tmp_path, "sdpa", 0, config={"odd": odd, "empty": {}, "path": "Größe: 1/2"})
    saved = OmegaConf.load(folder / ".hydra" / "config.yaml")
    expected = flat(OmegaConf.to_container(saved))  # type: ignore[arg-type]
    assert runs.read_run(folder).config == expected
    assert expected["odd.lr"] == 1e-5 and expected["odd.word"] == "1e-5"


def test_no_runs(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no directory"):
        runs.read_runs(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="holds no runs"):
        runs.read_runs(tmp_path)


def test_a_name_in_brackets_is_not_markup(tmp_path: Path) -> None:
    invent(tmp_path, "sdpa", 0, overrides=("optim.betas=[0.9,0.95]",))
    invent(tmp_path, "sdpa", 1)
    compared = runs_table.one_by_one(pairing.pairs(runs.read_runs(tmp_path)))
    table = runs_table.table(compared, ["val_loss"], each=True)
    console = Console(width=80, file=io.StringIO())
    console.print(table)
    assert "[0.9,0.95]" in console.file.getvalue().replace("\n", "").replace(" ", "")


def test_runs_become_a_data_frame(sweep: Path) -> None:
    frame = frames.load(sweep)
    assert len(frame) == 7
    sdpa = frame[frame["attn"] == "sdpa"]
    assert sdpa["val_loss"].tolist() == [2.0, 2.2, 2.4]
    assert set(frame["status"]) == {"finished", "diverged", "failed"}
    assert {"run", "folder", "seed", "optim.lr", "attn/entropy"} <= set(frame.columns)


def test_curves_become_a_row_for_each_value(train: Any) -> None:
    frame = frames.load(train("logger=tensorboard").folder, curves=True)
    val = frame[frame["tag"] == "val/loss"]
    assert val["step"].tolist() == [2, 4]
    assert val["value"].notna().all()


def test_runs_go_to_a_parquet_file(sweep: Path, tmp_path: Path) -> None:
    """`attn.scale` is a number or null, and `callbacks` an empty mapping."""
    ask(str(sweep), "--parquet", str(tmp_path / "runs.parquet"))
    frame = pandas.read_parquet(tmp_path / "runs.parquet")
    assert len(frame) == 7 and frame["val_loss"].max() == 2.7


def test_the_version_is_printed() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0 and result.stdout.startswith("attnlab ")
