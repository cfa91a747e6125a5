"""Runs as one table: what is read, chosen and never written."""

from pathlib import Path

import pandas as pd
import pytest

from attnlab.errors import BadInput
from attnlab.runs.compare import at_best
from attnlab.runs.frame import read_run, read_runs, read_scalars
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
    (file,) = folder.glob("events*")
    file.write_bytes(file.read_bytes()[:-7])  # the run was killed while it wrote
    assert read_scalars(folder) == {"val/loss": expected["val/loss"]}


def test_the_best_rate_is_that_of_the_mean_over_common_seeds(tmp_path: Path) -> None:
    losses = {0.001: (2.5, 2.3), 0.003: (2.2, 2.4), 0.01: (2.1, 2.9)}
    for rate, of in losses.items():
        for seed, loss in enumerate(of):
            write_run(tmp_path, "sdpa", seed, loss, f"optim.lr={rate}")
    write_run(tmp_path, "sdpa", 2, 1.0, "optim.lr=0.01")  # a seed that not all rates have
    frame, apart, said = at_best(read_runs(tmp_path), "lr")
    assert frame["optim.lr"].tolist() == [0.003, 0.003] and apart == ("optim.lr", "optim.min_lr")
    assert "0.003 of 0.001 (2.4000), 0.003 (2.3000), 0.01 (2.5000)" in said and "edge" not in said


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_a_run_without_a_result_has_no_best_rate(tmp_path: Path, status: str) -> None:
    write_run(tmp_path, "sdpa", 0, 2.0, "optim.lr=0.001")
    write_run(tmp_path, "sdpa", 0, 2.0, "optim.lr=0.01", status=status)
    with pytest.raises(BadInput, match=r"only one optim\.lr"):
        at_best(read_runs(tmp_path), "lr")
