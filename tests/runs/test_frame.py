"""Runs as one table: what is read, chosen and never written."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest

from attnlab.errors import BadInput
from attnlab.runs.best_rate import at_best
from attnlab.runs.compare import compare
from attnlab.runs.frame import known_column, read_curves, read_run, read_runs, read_scalars
from attnlab.runs.report import commands_with_ten_seeds
from tests.invented import write_run


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    for seed in (0, 9, 10):
        write_run(tmp_path, "sdpa", seed, 2.0 + seed / 100, entropy=0.5)
    write_run(tmp_path, "unscaled", 0, 2.1, "optim.lr=0.01", entropy=0.2)
    write_run(tmp_path, "unscaled", 1, 2.1, "optim.lr=0.01", status="diverged", step=3)
    write_run(tmp_path, "unscaled", 2, 2.1, "optim.lr=0.01", status="failed")
    return tmp_path


def test_a_row_has_settings_metrics_and_status(lab: Path) -> None:
    frame = read_runs(lab)
    assert frame.seed.tolist() == [0, 9, 10, 0, 1, 2]  # in natural order
    assert frame.status.tolist() == ["finished"] * 4 + ["diverged", "failed"]
    assert frame.loss.tolist()[:5] == [2.0, 2.09, 2.1, 2.1, float("inf")]
    assert frame["optim.lr"].tolist() == [1e-3] * 3 + [1e-2] * 3
    assert frame["attn/entropy"].tolist()[:4] == [0.5, 0.5, 0.5, 0.2]
    assert frame.step.tolist()[:5] == [8, 8, 8, 8, 3] and pd.isna(frame.step[5])
    assert frame.reason[5] == "ValueError: a reason"


@pytest.mark.parametrize(
    ("former", "present", "same"),
    [
        ({"learned_positions": False}, {"positions": "none"}, True),
        ({"learned_positions": True}, {"positions": "learned"}, True),
        ({"learned_positions": None, "positions": "none"}, {"positions": "none"}, True),
        ({"learned_positions": False}, {"positions": "learned"}, False),
    ],
)
def test_a_run_of_an_earlier_version_has_the_settings_of_this_one(
    tmp_path: Path, former: dict[str, object], present: dict[str, object], same: bool
) -> None:
    for seed, model in enumerate((former, present)):
        write_run(tmp_path, "sdpa", seed, 2.0, settings={"model": model})
    old, new = read_runs(tmp_path)["settings"]
    assert (old == new) == same


@pytest.mark.parametrize(
    ("where", "n"),
    [
        (["attn=sdpa"], 3),
        (["attn!=sdpa"], 3),
        (["optim.lr<0.01"], 3),
        (["optim.lr>=0.01", "status=finished"], 1),
        (["seed<=9"], 5),
        (["attn/entropy>0.3"], 3),
        (["attn.scale=null"], 3),
        (["attn.scale!=null"], 3),
        (["force=false"], 6),
    ],
)
def test_conditions_choose_runs(lab: Path, where: list[str], n: int) -> None:
    assert len(read_runs(lab, where=where)) == n


def test_a_layer_of_the_users_own_is_apart_from_the_variant_it_was_typed_with(
    tmp_path: Path,
) -> None:
    typed = {
        "sdpa": [],
        "Mine": ["attn._target_=my.Mine"],
        "Other": ["attn._target_=my.more.Other", "attn.scale=2.0"],
        "Gate+Mine": ["attn._target_=[Gate,my.Mine]"],
    }
    for number, overrides in enumerate(typed.values()):
        for seed in (0, 1):
            write_run(tmp_path / "lab", "sdpa", seed, 2.0 + number, *overrides)
    write_run(tmp_path / "lab", "near", 0, 1.0, settings={"attn": {"_target_": "my.Near"}})
    frame = read_runs(tmp_path)
    means = frame.groupby("attn").loss.mean().to_dict()
    assert means == {"sdpa": 2, "Mine": 3, "Other": 4, "Gate+Mine": 5, "near": 1}
    assert len(read_runs(tmp_path, where=["attn=sdpa"])) == 2
    compared = {c.label.split(" ")[0]: c for c in compare(frame)}
    assert {c.baseline.label for c in compared.values() if c.baseline} == {"sdpa"}
    assert len(compared["Mine"].pairs) == 2 and compared["Mine"].group.variant == "Mine"
    (own,) = compare(frame, baseline="Mine", where=["attn=Other"])[1:]
    assert own.baseline is not None and own.baseline.label.startswith("Mine")
    (command,) = commands_with_ten_seeds([compared["Mine"].group])
    assert "attn=sdpa attn._target_=my.Mine" in command  # `attn=Mine` would be no choice


def test_reading_writes_nothing(lab: Path) -> None:
    before = sorted(lab.rglob("*"))
    read_runs(lab)
    assert sorted(lab.rglob("*")) == before


@pytest.mark.parametrize("content", ["", "[]", "{", '{"val_loss": "high"}', "\udcff"])
@pytest.mark.parametrize("name", ["metrics.json", ".hydra/config.yaml", ".hydra/overrides.yaml"])
def test_a_damaged_run_is_a_row(lab: Path, name: str, content: str) -> None:
    folder = write_run(lab, "flipped", 0, 2.0)
    (folder / name).write_bytes(content.encode(errors="surrogateescape"))
    row = read_run(folder)
    assert row["status"] in ("damaged", "finished") and len(read_runs(lab)) == 7
    if name == "metrics.json" or not content:
        assert row["status"] == "damaged" and row["reason"]


def test_scalars_are_those_that_tensorboard_reads(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = write_run(tmp_path, "sdpa", 0, 2.0, curves={"val/loss": [3.0, 2.5], "a/b": [1.0]})
    log = EventAccumulator(str(folder)).Reload()
    expected = {tag: {x.step: x.value for x in log.Scalars(tag)} for tag in log.Tags()["scalars"]}
    assert read_scalars(folder) == expected and set(expected) == {"val/loss", "a/b"}
    assert read_scalars(folder, "a/b") == {"a/b": expected["a/b"]}
    assert read_scalars(folder, "a") == {}
    (file,) = folder.glob("events*")
    file.write_bytes(file.read_bytes()[:-7])  # the run was killed while it wrote
    assert read_scalars(folder) == {"val/loss": expected["val/loss"]}


def test_the_best_rate_is_that_of_the_mean_over_common_seeds(tmp_path: Path) -> None:
    losses = {0.001: (2.5, 2.3), 0.003: (2.2, 2.4), 0.01: (2.1, 2.9)}
    for rate, of in losses.items():
        for seed, loss in enumerate(of):
            write_run(tmp_path, "sdpa", seed, loss, f"optim.lr={rate}")
    write_run(tmp_path, "sdpa", 2, 1.0, "optim.lr=0.01")  # a seed that not all rates have
    best = at_best(read_runs(tmp_path), "lr")
    assert best.runs["optim.lr"].tolist() == [0.003, 0.003]
    assert best.may_differ == ("optim.lr", "optim.min_lr")
    (grid,) = best.grids
    assert grid.means.to_dict() == pytest.approx({0.001: 2.4, 0.003: 2.3, 0.01: 2.5})
    assert grid.best == 0.003 and not grid.is_at_edge


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_a_run_without_a_result_has_no_best_rate(tmp_path: Path, status: str) -> None:
    write_run(tmp_path, "sdpa", 0, 2.0, "optim.lr=0.001")
    write_run(tmp_path, "sdpa", 0, 2.0, "optim.lr=0.01", status=status)
    with pytest.raises(BadInput, match=r"only one optim\.lr"):
        at_best(read_runs(tmp_path), "lr")


def test_parquet_keeps_the_frame(lab: Path, tmp_path: Path) -> None:
    """Settings and metrics of every kind, in one column of different kinds, and none at all."""
    kinds = {"attn": {"layers": {"0": {"a": 1}}}, "callbacks": {}, "trainer": {"devices": "auto"}}
    folder = write_run(lab, "hybrid", 0, 2.0, settings=kinds)
    write_run(lab, "gqa", 0, 2.0, settings={"trainer": {"devices": 2}, "init_from": "a"})
    write_run(lab, "mqa", 0, 2.0, settings={"trainer": {"devices": [0, 1]}, "name": 7})
    metrics = json.loads((folder / "metrics.json").read_text())
    metrics |= {"by_length": {"64": {"loss": [1.0, math.nan, 2]}}, "git": None, "huge": 2**70}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    (folder.parent / "seed=9" / ".hydra").mkdir(parents=True)
    (folder.parent / "seed=9" / ".hydra/config.yaml").write_text("[")  # damaged
    frame = read_runs(lab)
    frame.to_parquet(tmp_path / "runs.parquet")
    back = pd.read_parquet(tmp_path / "runs.parquet")
    assert {*frame.status} == {"finished", "diverged", "failed", "damaged"}
    for name in frame:
        if name != "by_length.64.loss":  # Parquet returns an array
            values = [x[name].astype(object).where(x[name].notna(), "-") for x in (back, frame)]
            assert values[0].tolist() == values[1].tolist(), name
    assert {type(x) for x in frame.folder} == {str}
    assert frame.set_index("attn")["trainer.devices"].loc[["gqa", "mqa"]].tolist() == [
        *("2", "[0, 1]")
    ]


def test_no_column_has_two_meanings(tmp_path: Path) -> None:
    """A setting and a metric of one name, and what a probe of the user's calls as we call ours."""
    folder = write_run(tmp_path, "sdpa", 0, 2.0, settings={"train_loss": True})
    write_run(tmp_path, "sdpa", 1, 2.0, settings={"train_loss": True}, status="interrupted")
    metrics = json.loads((folder / "metrics.json").read_text()) | {"train_loss": 1.5}
    metrics["probes"] = {"loss": 7.0, "folder": 8.0, "optim.lr": 9.0, "mine": 10.0}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    frame = read_runs(tmp_path)
    assert frame.train_loss[0] == 1.5 and pd.isna(frame.train_loss[1])
    assert frame.loss[0] == 2.0 and frame.folder[0] == str(folder.resolve())
    assert frame["optim.lr"].tolist() == [1e-3, 1e-3] and frame.mine[0] == 10.0
    assert [frame[f"probes.{name}"][0] for name in ("loss", "folder", "optim.lr")] == [7, 8, 9]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("effective_keys", "attn/effective_keys"),
        ("attn/efective_keys", "attn/effective_keys"),
        ("lr", "optim.lr"),
        ("optim.rl", "optim.lr"),
    ],
)
def test_an_unknown_column_has_a_proposal(tmp_path: Path, name: str, near: str) -> None:
    write_run(tmp_path, "sdpa", 0, 2.0, effective_keys=3.0)
    frame = read_runs(tmp_path)
    with pytest.raises(BadInput, match=near):
        known_column(frame, name)
    with pytest.raises(BadInput, match=near):
        read_runs(tmp_path, where=[f"{name}=1"])


@pytest.mark.parametrize("logger", ["tensorboard", "csv"])
def test_curves_are_one_frame(tmp_path: Path, logger: str) -> None:
    losses = {"val/loss": [3.0, 2.5]}
    for seed in (0, 1):
        folder = write_run(tmp_path, "sdpa", seed, 2.0, curves=None if logger == "csv" else losses)
        if logger == "csv":  # a row for each call, as Lightning's CSVLogger writes them
            (folder / "metrics.csv").write_text("step,train/lr,val/loss\n1,,3.0\n1,0.1,\n2,,2.5\n")
    write_run(tmp_path, "unscaled", 0, 2.0)  # has logged nothing
    curves = read_curves(tmp_path)
    assert curves["seed"].tolist() == [0, 0, 1, 1] and curves["step"].tolist() == [1, 2, 1, 2]
    assert curves["val/loss"].tolist() == [3.0, 2.5] * 2 and {*curves["attn"]} == {"sdpa"}
    with pytest.raises(BadInput, match="logged"):
        read_curves(tmp_path, where=["attn=unscaled"])
