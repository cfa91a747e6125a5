"""Every argument of Lightning's Trainer and every callback of Lightning: it works, with a number
that shows it, it is attnlab's own, or it is refused before the first step."""

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import callbacks
from torch import nn

from attnlab.data.contract import IGNORED
from attnlab.data.corpus import TrainBatches
from attnlab.errors import BadInput
from attnlab.files import read_json
from attnlab.settings.trainer_arguments import ARGUMENTS, CALLBACKS, OF_ATTNLAB
from attnlab.training.config import read_config
from tests.cli import small_run
from tests.conftest import ROOT, SMALL, on_text, settings

Train = Callable[..., Any]
THIS = "tests.training.test_lightning"
EXACT = "trainer.precision=64-true"
STEPS = 4


def by_hand(
    *overrides: str,
    accumulate: int = 1,
    clip_norm: float = 1.0,
    clip_value: float | None = None,
    limit: int | None = None,
) -> float:
    """The validation loss of a training loop without Lightning, in fp64."""
    config = read_config(settings(*overrides))
    data = config.data()
    net = config.model(len(data.alphabet)).double()
    optimizer, schedule = config.optimizer(net, STEPS)
    batches = iter(TrainBatches(data.train_draw(net.block_size), 4, 0, STEPS * accumulate))
    for _ in range(STEPS):
        for _ in range(accumulate):
            x, y = next(batches)
            loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
            (loss / accumulate).backward()
        if clip_value is None:
            nn.utils.clip_grad_norm_(net.parameters(), clip_norm)
        else:
            nn.utils.clip_grad_value_(net.parameters(), clip_value)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    read = data.held_out("val", net.block_size)[:limit]
    with torch.no_grad():
        losses = [F.cross_entropy(net(x).mT, y, reduction="sum") for x, y in read]
    return float(sum(losses)) / sum(int((y != IGNORED).sum()) for _, y in read)


# Overrides that change the result, and the same in the loop by hand.
TO_THE_NUMBER: dict[str, tuple[list[str], dict[str, Any]]] = {
    "precision": ([], {}),
    "accumulate_grad_batches": (["trainer.accumulate_grad_batches=3"], {"accumulate": 3}),
    "gradient_clip_val": (["trainer.gradient_clip_val=0.01"], {"clip_norm": 0.01}),
    "gradient_clip_algorithm": (
        ["trainer.gradient_clip_val=0.001", "+trainer.gradient_clip_algorithm=value"],
        {"clip_value": 0.001},
    ),
    "limit_val_batches": (["+trainer.limit_val_batches=1"], {"limit": 1}),
}
# Overrides that change nothing: the same loss to the last bit.
SAME_BITS = {
    "accelerator": "trainer.accelerator=cpu",
    "strategy": "trainer.strategy=auto",
    "benchmark": "trainer.benchmark=true",
    "deterministic": "trainer.deterministic=warn",
    "detect_anomaly": "+trainer.detect_anomaly=true",
    "enable_autolog_hparams": "+trainer.enable_autolog_hparams=false",
    "enable_model_summary": "trainer.enable_model_summary=true",
    "enable_progress_bar": "trainer.enable_progress_bar=false",
    "inference_mode": "+trainer.inference_mode=false",
    "log_every_n_steps": "trainer.log_every_n_steps=1",
    "profiler": "+trainer.profiler=simple",
    "sync_batchnorm": "+trainer.sync_batchnorm=true",
    "val_check_interval": "trainer.val_check_interval=4",
}
REFUSED = [name for name, argument in ARGUMENTS.items() if argument.allowed is not None]
ELSEWHERE = {  # what another test shows
    "devices": "test_two_devices_train_to_the_same_number",
    "max_steps": "test_min_steps_and_max_steps_count_steps",
    "min_steps": "test_min_steps_and_max_steps_count_steps",
    "max_time": "tests/training/test_run.py::test_a_time_limit_stops_a_run",
}
BAD_ARGUMENTS = [
    "+trainer.num_nodes=2",
    "+trainer.fast_dev_run=true",
    "+trainer.fast_dev_run=3",
    "+trainer.max_epochs=1",
    "+trainer.min_epochs=2",
    "+trainer.limit_train_batches=5",
    "+trainer.limit_train_batches=0.5",
    "+trainer.overfit_batches=1",
    "+trainer.limit_test_batches=1",
    "+trainer.limit_predict_batches=1",
    "trainer.check_val_every_n_epoch=1",
    "trainer.num_sanity_val_steps=2",
    "+trainer.enable_checkpointing=false",
    "+trainer.barebones=true",
    "+trainer.reload_dataloaders_every_n_epochs=1",
    "+trainer.model_registry=mine",
    # Values out of range, of arguments that work.
    "+trainer.limit_val_batches=0",
    "+trainer.limit_val_batches=-1",
    "+trainer.limit_val_batches=0.0",
    "+trainer.min_steps=5",
    "trainer.gradient_clip_val=-1",
    "+trainer.gradient_clip_algorithm=foo",
    "trainer.devices=99",
    "trainer.devices=0",
    "trainer.devices=-2",
]


def test_every_argument_of_the_trainer_is_decided() -> None:
    parameters = set(inspect.signature(L.Trainer.__init__).parameters) - {"self"}
    tables = [TO_THE_NUMBER, SAME_BITS, ELSEWHERE, REFUSED, dict.fromkeys(OF_ATTNLAB)]
    decided = [name for table in tables for name in table]
    assert sorted(decided) == sorted(parameters) == sorted(ARGUMENTS)  # each once


def test_every_refused_argument_has_a_row() -> None:
    named = {row.lstrip("+").partition("=")[0].removeprefix("trainer.") for row in BAD_ARGUMENTS}
    assert set(REFUSED) <= named


# Values of arguments that are in no configuration, and whether a run can have them.
TYPED = [
    *((row, False) for row in BAD_ARGUMENTS if row.startswith("+")),
    *((row, True) for row in SAME_BITS.values() if row.startswith("+")),
    *((f"+trainer.{name}=x", False) for name in OF_ATTNLAB),
    ("+trainer.max_epochs=-1", True),
    ("+trainer.min_epochs=0", True),
    ("+trainer.fast_dev_run=false", True),
    ("+trainer.limit_val_batches=0.5", True),
    ("+trainer.limit_val_batches=many", False),
    ("+trainer.max_time={minutes:5}", True),
    ("+trainer.max_time=5", False),
    ("+trainer.min_steps=3", True),
    ("+trainer.profiler=quick", False),
    ("+trainer.barebones=maybe", False),
]


@pytest.mark.parametrize(("override", "possible"), TYPED)
def test_what_is_advised_is_accepted_and_what_is_refused_is_told_at_once(
    override: str, possible: bool, text_file: Path, tmp_path: Path, train: Train
) -> None:
    typed = override.removeprefix("+")
    done = small_run(tmp_path / "out", text_file, typed, "trainer.max_steps=4")
    advised = f"add it by {override}" in done.err
    assert (done.code, advised) == (2, possible), done
    if not possible:
        assert typed.partition("=")[0] in done.err
        with pytest.raises(BadInput):
            train(override)
        return
    train(override)


@pytest.mark.parametrize("name", TO_THE_NUMBER)
def test_an_argument_gives_the_number_of_a_loop_by_hand(
    name: str, train: Train, text_file: Path
) -> None:
    overrides, given = TO_THE_NUMBER[name]
    loss = train(EXACT, *overrides).metrics["val_loss"]
    words = on_text(text_file, [])
    assert loss == pytest.approx(by_hand(*words, **given), rel=1e-9)
    if given:  # and it is not the number without the argument
        assert loss != pytest.approx(by_hand(*words), rel=1e-9)


@pytest.mark.parametrize("name", SAME_BITS)
def test_an_argument_does_not_change_the_result(name: str, train: Train) -> None:
    plain = train(folder="plain").metrics
    assert train(SAME_BITS[name]).metrics["val_loss"] == plain["val_loss"]


def test_a_limited_validation_says_what_it_read(train: Train, tmp_path: Path) -> None:
    limited = train("+trainer.limit_val_batches=1", "data=plays", "data.length=30000").metrics
    whole = train("data=plays", "data.length=30000", folder="whole").metrics
    assert 0 < limited["val_share"] < 1 and "val_share" not in whole
    assert "val_floor" in whole and "val_floor" not in limited  # it is that of all the data
    assert train("+trainer.limit_val_batches=1.0", folder="all").metrics.get("val_share") is None


@pytest.mark.parametrize("override", BAD_ARGUMENTS)
def test_an_argument_is_refused_before_the_first_step(
    override: str, train: Train, tmp_path: Path
) -> None:
    with pytest.raises(BadInput) as error:
        train(override)
    name = override.lstrip("+").partition("=")[0].partition(".")[2]
    assert name in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_min_steps_and_max_steps_count_steps(train: Train) -> None:
    early = ["callbacks=early_stopping", "callbacks.early_stopping.min_delta=9"]
    early += ["callbacks.early_stopping.patience=1", "trainer.max_steps=12"]
    assert train(*early, folder="early").metrics["steps"] == 4
    assert train(*early, "+trainer.min_steps=7", folder="later").metrics["steps"] == 7
    assert train("trainer.max_steps=3", folder="three").metrics["steps"] == 3


@pytest.mark.slow
def test_two_devices_train_to_the_same_number(text_file: Path, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *SMALL, f"data.path={text_file}", EXACT,
         "trainer.devices=2", "+trainer.limit_val_batches=1", "outputs=out"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, check=True,
    )  # fmt: skip
    metrics = read_json(next(tmp_path.rglob("metrics.json")))
    assert metrics["devices"] == 2
    by_one = by_hand(*on_text(text_file, []), limit=2)  # each device reads one batch
    assert metrics["val_loss"] == pytest.approx(by_one, rel=1e-9)


# --- Callbacks.


def both(self: Any, *_: Any) -> None:
    """For LambdaCallback."""
    Path("called.txt").touch()


LIGHTNING = "+callbacks.x._target_=lightning.pytorch.callbacks"
# Callback -> its settings, and files that it leaves below the run directory.
WORKING: dict[str, tuple[list[str], str | None]] = {
    "DeviceStatsMonitor": (["logger=csv"], None),
    "EarlyStopping": (["+callbacks.x.monitor=val/loss"], None),
    "LambdaCallback": ([f"+callbacks.x.on_train_start={THIS}.both"], "called.txt"),
    "LearningRateMonitor": (["logger=csv", "trainer.log_every_n_steps=1"], "metrics.csv"),
    "ModelCheckpoint": (["+callbacks.x.monitor=val/loss"], "lightning/**/*.ckpt"),
    "ModelSummary": ([], None),
    "OnExceptionCheckpoint": (["+callbacks.x.dirpath=ckpt"], None),
    "TQDMProgressBar": ([], None),
    "Timer": (["+callbacks.x.duration={hours:1}"], None),
}
# What cannot be named on the command line, because it is a base class or shown elsewhere.
BASES = {
    "Callback": "tests/training/test_run.py, every callback of a user",
    "Checkpoint": "attnlab's own checkpoints",
    "ProgressBar": "the base of TQDMProgressBar",
    "EMAWeightAveraging": "test_run.py::test_the_measured_weights_are_the_kept_ones",
    "WeightAveraging": "the base of EMAWeightAveraging",
    "RichModelSummary": "as ModelSummary, where rich is installed",
    "RichProgressBar": "as TQDMProgressBar, where rich is installed",
}


def test_every_callback_of_lightning_is_decided() -> None:
    assert sorted([*WORKING, *BASES, *CALLBACKS]) == sorted(callbacks.__all__)


@pytest.mark.parametrize("name", WORKING)
def test_a_callback_works_and_does_not_change_the_result(
    name: str, train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "DeviceStatsMonitor":
        pytest.importorskip("psutil")
    monkeypatch.chdir(tmp_path)
    plain = train(folder="plain").metrics
    overrides, left = WORKING[name]
    done = train(f"{LIGHTNING}.{name}", *overrides)
    assert done.metrics["val_loss"] == plain["val_loss"]
    assert left is None or [*done.folder.glob(left), *tmp_path.glob(left)]


def test_a_monitored_learning_rate_is_that_of_the_step(train: Train) -> None:
    done = train(f"{LIGHTNING}.LearningRateMonitor", "logger=csv", "trainer.log_every_n_steps=1")
    rows = pd.read_csv(done.folder / "metrics.csv")
    column = next(name for name in rows if name.startswith("lr-"))
    rates = rows.dropna(subset=column).groupby("step")[column].first()
    ours = rows.dropna(subset="train/lr").groupby("step")["train/lr"].first()
    # Lightning counts steps from 0.
    assert rates.tolist() == pytest.approx(ours.tolist(), rel=1e-6)


class Tuned(callbacks.LearningRateFinder):
    """A user's subclass of a callback that is refused."""


BAD_CALLBACKS = [
    *((f"{LIGHTNING}.{name}", name) for name in sorted(CALLBACKS) if "Base" not in name),
    (f"+callbacks.x._target_={THIS}.Tuned", "Tuned"),
    ("callbacks=early_stopping callbacks.early_stopping.monitor=val_loss", "val/loss"),
    ("callbacks=early_stopping callbacks.early_stopping.monitor=val/acc", "val/loss"),
    (f"{LIGHTNING}.ModelCheckpoint +callbacks.x.monitor=val_loss", "val/loss"),
    (f"{LIGHTNING}.LearningRateMonitor", "logger"),
]
# Arguments that these need before they can be made.
NEEDED = {
    "GradientAccumulationScheduler": ["+callbacks.x.scheduling={0:2}"],
    "ModelPruning": ["+callbacks.x.pruning_fn=torch.nn.utils.prune.l1_unstructured"],
    "StochasticWeightAveraging": ["+callbacks.x.swa_lrs=0.01"],
    "ThroughputMonitor": [f"+callbacks.x.batch_size_fn={THIS}.both"],
}


@pytest.mark.parametrize(("overrides", "named"), BAD_CALLBACKS)
def test_a_callback_is_refused_before_the_first_step(
    overrides: str, named: str, train: Train, tmp_path: Path
) -> None:
    with pytest.raises(BadInput) as error:
        train(*overrides.split(" "), *NEEDED.get(named, []))
    assert named in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", sorted(name for name in CALLBACKS if "Base" not in name))
def test_a_refused_callback_is_told_before_the_data_are_read(name: str) -> None:
    given = [f"{LIGHTNING}.{name}", *NEEDED.get(name, [])]
    with pytest.raises(BadInput, match=name):
        read_config(settings(*SMALL, "data.path=nowhere.txt", *given))
