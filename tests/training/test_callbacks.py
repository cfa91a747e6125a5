"""Lightning's callbacks and loggers from the configuration: what they log and write."""

import csv
import json
import math
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import lightning.pytorch as L
import pytest
import torch
import yaml
from lightning.pytorch.loggers import Logger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter

from attnlab.errors import BadInput
from attnlab.runs.event_files import read_scalars
from attnlab.runs.reading import read_run
from attnlab.training.callbacks import Divergence, Lines, RunCheckpoints
from attnlab.training.checkpoints import read_checkpoint
from tests.conftest import weights_of

Train = Callable[..., Any]
STOPS_AT_4 = (
    "callbacks=early_stopping",
    "callbacks.early_stopping.min_delta=100",
    "callbacks.early_stopping.patience=1",
    "trainer.max_steps=10",
)


class StopAt(L.Callback):
    """Stops a run, as a callback may."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        trainer.should_stop = trainer.should_stop or trainer.global_step == self.step


class Spoil(L.Callback):
    """Makes the weights non-finite before a batch, or at the end of the training."""

    def __init__(self, batch: int | None = None) -> None:
        self.batch = batch

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == self.batch:
            pl_module.net.wte.weight.data.fill_(math.inf)

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if self.batch is None:
            pl_module.net.wte.weight.data.fill_(math.inf)


class Metrics(L.Callback):
    """Stores the metrics that Lightning gives to callbacks."""

    seen: ClassVar[list[dict[str, float]]] = []
    hparams: ClassVar[dict[str, Any]] = {}

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        Metrics.seen.append({k: float(x) for k, x in trainer.callback_metrics.items()})
        Metrics.hparams = dict(pl_module.hparams)


def status_of(run: Any) -> dict[str, Any]:
    return dict(json.loads((run.folder / "status.json").read_text()))


def test_validation_loss_and_settings_are_where_callbacks_look(train: Train) -> None:
    Metrics.seen.clear()
    run = train("+callbacks.mine._target_=tests.training.test_callbacks.Metrics")
    losses = [seen["val/loss"] for seen in Metrics.seen]
    assert losses[-1] == pytest.approx(run.metrics["val_loss"])
    assert Metrics.hparams["model.n_layer"] == 2
    assert "outputs" not in Metrics.hparams


def test_early_stopping_ends_as_stopped(train: Train) -> None:
    run = train(*STOPS_AT_4)
    status = status_of(run)
    assert (status["status"], status["step"], status["max_steps"]) == ("stopped", 4, 10)
    assert "EarlyStopping" in status["reason"]
    assert (run.metrics["status"], run.metrics["steps"]) == ("stopped", 4)
    checkpoint = read_checkpoint(run.folder / "checkpoints" / "last.ckpt")
    assert checkpoint["global_step"] == 4
    assert checkpoint["attnlab"]["val_losses"][4] == run.metrics["val_loss"]
    row = read_run(run.folder)
    assert (row.status, row.step) == ("stopped", 4)


def test_a_stopped_run_is_reported_and_not_continued(train: Train) -> None:
    first = train(*STOPS_AT_4)
    again = train(*STOPS_AT_4)
    assert not again.fresh and again.metrics == first.metrics
    assert train(*STOPS_AT_4, "force=true").fresh


@pytest.mark.parametrize(
    ("callback", "step"),
    [
        ("{_target_: lightning.pytorch.callbacks.Timer, duration: {seconds: 0}}", 0),
        ("{_target_: tests.training.test_callbacks.StopAt, step: 3}", 3),
        ("{_target_: tests.training.test_callbacks.StopAt, step: 1}", 1),
    ],
)
def test_checkpoint_and_metrics_are_from_the_step_of_the_stop(
    callback: str, step: int, train: Train
) -> None:
    run = train(f"+callbacks.x={callback}", "trainer.max_steps=10")
    assert (status_of(run)["status"], status_of(run)["step"]) == ("stopped", step)
    assert run.metrics["steps"] == step
    assert read_checkpoint(run.folder / "checkpoints" / "last.ckpt")["global_step"] == step


def test_a_stop_at_the_last_step_is_a_finished_run(train: Train) -> None:
    run = train("+callbacks.x={_target_: tests.training.test_callbacks.StopAt, step: 4}")
    assert run.metrics["status"] == "finished"


def test_a_time_limit_stops(train: Train) -> None:
    run = train("+trainer.max_time={seconds: 0}")
    assert (run.metrics["status"], run.metrics["steps"]) == ("stopped", 0)


def test_a_stop_that_min_steps_overrules_is_none(train: Train) -> None:
    run = train(*STOPS_AT_4, "+trainer.min_steps=10")
    assert (run.metrics["status"], run.metrics["steps"]) == ("finished", 10)


def test_a_run_killed_between_its_stop_and_its_metrics_ends_as_stopped(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(*STOPS_AT_4, folder="whole")

    def killed(*_: Any) -> None:
        raise SystemExit(143)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr("attnlab.training.run.measured", killed)
        train(*STOPS_AT_4)
    run = train(*STOPS_AT_4)
    assert (run.metrics["status"], run.metrics["steps"]) == ("stopped", 4)
    assert run.metrics["val_loss"] == whole.metrics["val_loss"]


def test_an_interrupted_run_reports_its_step(
    train: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def ended(keeper: RunCheckpoints, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(RunCheckpoints, "on_train_batch_end", ended)
        train()
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["status"], status["step"]) == ("interrupted", 3)
    assert read_run(tmp_path / "run").status == "interrupted"
    assert train().metrics["status"] == "finished"


def test_checkpoints_along_the_training(train: Train) -> None:
    run = train("callbacks=checkpoints", "callbacks.checkpoints.every_n_train_steps=2")
    names = sorted(file.name for file in (run.folder / "checkpoints").iterdir())
    assert names == ["best.ckpt", "last.ckpt", "step_000002.ckpt", "step_000004.ckpt"]
    assert read_checkpoint(run.folder / "checkpoints" / "step_000002.ckpt")["global_step"] == 2


def test_the_learning_rate_is_monitored(train: Train) -> None:
    run = train("callbacks=lr_monitor", "logger=tensorboard", "trainer.log_every_n_steps=1")
    assert "lr-AdamW/pg1" in read_scalars(run.folder)


def test_the_average_of_the_weights_is_kept_and_resumed(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = train("trainer.max_steps=8", folder="plain")
    ema = ("callbacks=ema", "trainer.max_steps=8", "checkpoint_every=1")
    whole = train(*ema, folder="whole")
    assert not all(
        torch.equal(a, b)
        for a, b in zip(
            weights_of(plain.folder).values(), weights_of(whole.folder).values(), strict=True
        )
    )

    def ended(self: Any, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == 5:
            raise SystemExit(143)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr("attnlab.training.callbacks.Scalars.on_train_batch_end", ended)
        train(*ema, folder="broken")
    broken = train(*ema, folder="broken")
    ours, theirs = weights_of(whole.folder), weights_of(broken.folder)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert broken.metrics["val_loss"] == whole.metrics["val_loss"]


def test_csv_holds_losses_and_settings_of_a_resumed_run(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("logger=[tensorboard,csv]", "trainer.log_every_n_steps=1", "checkpoint_every=1")

    def ended(self: Any, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == 3:
            raise SystemExit(143)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(RunCheckpoints, "on_train_batch_end", ended)
        train(*settings)
    run = train(*settings)
    with (run.folder / "metrics.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    steps = [int(row["step"]) for row in rows if row["train/loss"]]
    assert steps == [1, 2, 3, 4]
    last = [float(row["val/loss"]) for row in rows if row["val/loss"]][-1]
    assert last == run.metrics["val_loss"]
    assert read_scalars(run.folder)["val/loss"][4] == pytest.approx(last)
    assert yaml.safe_load((run.folder / "hparams.yaml").read_text())["optim.lr"] == 1e-3


def interrupted_with_csv(train: Train, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """The settings of a run that ends between the checkpoints of steps 2 and 3."""

    def ended(self: Any, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == 3:
            raise SystemExit(143)

    settings = ("logger=csv", "trainer.log_every_n_steps=1", "checkpoint_every=1")
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(RunCheckpoints, "on_train_batch_end", ended)
        train(*settings)
    return settings


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as stream:
        return [{k: x for k, x in row.items() if x} for row in csv.DictReader(stream)]


@pytest.mark.parametrize("moment", ["deleted", "half written", "written"])
def test_a_kill_while_rows_are_restored_loses_none(
    moment: str, train: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = rows_of(train("logger=csv", "trainer.log_every_n_steps=1", folder="whole").folder)
    settings = interrupted_with_csv(train, monkeypatch)

    def killed(writer: Any) -> None:
        file = Path(writer.metrics_file_path)
        assert not file.exists() and len(writer.metrics) == 3  # steps 1 and 2, validation of 2
        if moment == "half written":
            file.write_text("step,train/loss\n1,")
        if moment == "written":
            save(writer)
        raise SystemExit(128 + signal.SIGKILL)

    save = ExperimentWriter.save
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(ExperimentWriter, "save", killed)
        train(*settings)
    assert rows_of(train(*settings).folder) == expected
    assert not list((tmp_path / "run").glob("metrics.csv?*"))


def test_a_cut_row_is_dropped_and_a_damaged_table_is_one_sentence(
    train: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = rows_of(train("logger=csv", "trainer.log_every_n_steps=1", folder="whole").folder)
    settings = interrupted_with_csv(train, monkeypatch)
    file = tmp_path / "run" / "metrics.csv"
    whole = file.read_text()
    for damage in ("x", "\0", "1,2,3,4,5,6,7,8,9\n"):
        file.write_text(whole.replace("\n", f"\n{damage}", 1))
        with pytest.raises(BadInput, match=r"metrics\.csv is damaged .*; delete it"):
            train(*settings)
    file.write_text(whole.rstrip().rpartition(",")[0])
    assert rows_of(train(*settings).folder) == expected


class Memory(Logger):
    """A logger without a place on the disk."""

    hparams: ClassVar[dict[str, Any]] = {}
    logged: ClassVar[dict[str, float]] = {}
    name, version = "memory", 0

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        Memory.logged |= metrics

    def log_hyperparams(self, params: Any, *_: Any) -> None:
        Memory.hparams = dict(params)


def test_a_logger_without_a_folder_gets_settings_and_results(train: Train) -> None:
    run = train("logger=none", "+logger.mine._target_=tests.training.test_callbacks.Memory")
    assert Memory.logged["val/loss"] == run.metrics["val_loss"]
    assert Memory.hparams["attn.kernel"] and Memory.hparams["trainer.max_steps"] == 4


def test_a_profiler_prints_its_report(
    train: Train, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="lightning.pytorch.profilers"):
        train("+trainer.profiler=simple")
    assert "Profiler Report" in "".join(capfd.readouterr()) + caplog.text


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["callbacks=lr_monitor", "logger=none"], "LearningRateMonitor"),
        (["callbacks=early_stopping", "callbacks.early_stopping.monitor=loss"], "val/loss"),
    ],
)
def test_a_callback_that_cannot_work_is_one_sentence(
    overrides: list[str], named: str, train: Train
) -> None:
    with pytest.raises(BadInput, match=named):
        train(*overrides)


def test_a_diverged_run_is_not_reported_as_stopped(train: Train) -> None:
    run = train(*STOPS_AT_4, "optim.lr=1e30", "trainer.gradient_clip_val=0")
    assert run.metrics["status"] == "diverged"
    assert not math.isfinite(run.metrics["val_loss"])


SPOIL = "+callbacks.x={_target_: tests.training.test_callbacks.Spoil, batch: %s}"


def test_weights_that_only_the_last_validation_finds_are_not_saved(train: Train) -> None:
    settings = ("trainer.max_steps=5", "trainer.val_check_interval=2", "checkpoint_every=2")
    run = train(*settings, SPOIL % "null")
    assert (run.metrics["status"], run.metrics["diverged_at_step"]) == ("diverged", 5)
    assert read_checkpoint(run.folder / "checkpoints" / "last.ckpt")["global_step"] == 4


@pytest.mark.parametrize("interval", [6, 12])
def test_a_divergence_that_is_read_late_is_of_its_step_and_not_saved(
    interval: int, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU the check is read every 10 steps."""
    start = Divergence.on_train_start

    def reads_every_10_steps(self: Divergence, *given: Any) -> None:
        start(self, *given)
        self._every = 10

    monkeypatch.setattr(Divergence, "on_train_start", reads_every_10_steps)
    settings = ("trainer.max_steps=12", f"trainer.val_check_interval={interval}")
    run = train(*settings, "checkpoint_every=1", SPOIL % 3)
    assert (run.metrics["status"], run.metrics["diverged_at_step"]) == ("diverged", 4)
    assert read_checkpoint(run.folder / "checkpoints" / "last.ckpt")["global_step"] == 3


@pytest.mark.parametrize("batch", [8, 9])
def test_a_batch_that_is_accumulated_diverges_at_its_own_step(batch: int, train: Train) -> None:
    settings = ("trainer.max_steps=8", "trainer.accumulate_grad_batches=2")
    run = train(*settings, SPOIL % batch)
    assert run.metrics["status"] == "diverged"
    assert run.metrics["diverged_at_step"] == run.metrics["steps"] == 5
    assert not math.isfinite(run.metrics["val_loss"])


@pytest.mark.parametrize(
    ("steps", "told"),
    [(110, "step 10: loss 2.5000, 20 s left\n"), (20, ""), (1210, "4 min left\n")],
)
def test_ten_steps_forecast_the_time_left(
    steps: int, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = SimpleNamespace(global_step=0, max_steps=steps, is_global_zero=True)
    module = SimpleNamespace(loss=torch.tensor(2.5))
    monkeypatch.setattr("time.monotonic", lambda: 0.2 * trainer.global_step)  # 0.2 s a step
    lines: Any = Lines()
    lines.on_train_start(trainer, module)
    for trainer.global_step in range(15):
        lines.on_train_batch_start(trainer, module, None, 0)
    said = capsys.readouterr().out
    assert said.endswith(told)
    assert said.count("\n") == bool(told)
