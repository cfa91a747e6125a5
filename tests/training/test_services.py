"""Weights & Biases (offline) and MLflow (a local file) log the same as TensorBoard and CSV."""

import csv
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from attnlab.runs.event_files import read_scalars
from attnlab.training.callbacks import RunCheckpoints

pytestmark = pytest.mark.long
Train = Callable[..., Any]
SETTINGS = ("probes=default", "trainer.log_every_n_steps=1", "checkpoint_every=1")


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of an offline run: a LevelDB log of protocol buffers."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        piece = data[at + 7 : at + 7 + length]
        at += 7 + length
        if (kind, length) == (0, 0):
            return
        whole = piece if kind in (1, 2) else whole + piece
        if kind in (1, 4):  # a whole record, or the last piece of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record


def wandb_entries(folder: Path) -> list[dict[str, Any]]:
    """What each process logged for a run: id, settings, and the last value of each key."""
    entries = []
    for file in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        entry: dict[str, Any] = {"id": file.stem.removeprefix("run-"), "config": {}, "steps": []}
        for record in wandb_records(file):
            kind = record.WhichOneof("record_type")
            if kind == "history":
                values = {
                    i.key or "/".join(i.nested_key): json.loads(i.value_json)
                    for i in record.history.item
                }
                entry |= values
                if "train/loss" in values:
                    entry["steps"].append(values["trainer/global_step"])
            elif kind in ("config", "run"):
                config = record.config if kind == "config" else record.run.config
                for item in config.update:
                    key = item.key or "/".join(item.nested_key)
                    entry["config"][key] = json.loads(item.value_json)
        entries.append(entry)
    return entries


@pytest.fixture
def mlflow_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Any]:
    mlflow = pytest.importorskip("mlflow")

    def read(outputs: Path) -> Any:
        client = mlflow.MlflowClient(f"sqlite:///{outputs}/mlflow.db")
        experiment = client.get_experiment_by_name("lab")
        (run,) = client.search_runs([experiment.experiment_id])
        return client, run

    return read


def test_all_loggers_have_the_same_final_loss(
    train: Train,
    mlflow_of: Callable[[Path], Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    settings = (
        *SETTINGS,
        *("logger=[tensorboard,csv,wandb,mlflow]", "logger.wandb.offline=true"),
        f"outputs={tmp_path}",
    )

    def ended(self: Any, trainer: Any, *_: Any) -> None:
        if trainer.global_step == 3:
            raise SystemExit(143)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(RunCheckpoints, "on_train_batch_end", ended)
        train(*settings)
    run = train(*settings)
    loss = run.metrics["val_loss"]

    events = read_scalars(run.folder)
    assert events["val/loss"][4] == pytest.approx(loss)
    with (run.folder / "metrics.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [float(row["val/loss"]) for row in rows if row["val/loss"]][-1] == loss

    first, last = wandb_entries(run.folder)
    assert first["id"] == last["id"]
    assert last["val/loss"] == last["hp/val_loss"] == loss
    # A service keeps the point of step 3, which the killed part logged after its checkpoint.
    assert (first["steps"], last["steps"]) == ([1, 2, 3], [3, 4])
    assert last["config"]["run_directory"] == str(run.folder)
    assert last["config"]["optim.lr"] == 1e-3
    assert any(key.startswith("pattern/L0") for key in last)

    client, entry = mlflow_of(tmp_path)
    assert entry.data.metrics["val/loss"] == entry.data.metrics["hp/val_loss"] == loss
    history = client.get_metric_history(entry.info.run_id, "train/loss")
    points = {(point.step, point.value) for point in history}  # step 3 twice, with one value
    assert sorted(step for step, _ in points) == [1, 2, 3, 4]
    assert entry.info.status == "FINISHED"
    assert entry.info.run_name == f"{run.folder.parent.name}/{run.folder.name}"
    assert entry.data.tags["run_directory"] == str(run.folder)
    assert entry.data.params["optim.lr"] == "0.001"
    images = client.list_artifacts(entry.info.run_id, "images")
    assert any("pattern" in file.path for file in images)


def test_runs_in_one_process_have_separate_entries(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    settings = ("logger=wandb", "logger.wandb.offline=true")
    ids = {
        wandb_entries(train(*settings, f"seed={seed}", folder=f"seed={seed}").folder)[0]["id"]
        for seed in range(2)
    }
    assert len(ids) == 2
