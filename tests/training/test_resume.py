"""A run that is ended at any moment and repeated ends as if nothing had happened."""

import errno
import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import attnlab
import attnlab.training.run as run_module
from attnlab.errors import BadInput
from attnlab.files import read_json
from attnlab.runs.frame import read_run, read_scalars
from attnlab.training.callbacks import AtomicCheckpointIO
from attnlab.training.lightning_module import GPTModule
from tests.cli import Done, small_run
from tests.conftest import ROOT, SMALL

Train = Callable[..., Any]
LENGTH = ("trainer.max_steps=8", "trainer.val_check_interval=4", "checkpoint_every=3")
# Each has a state of its own that a checkpoint must restore.
MECHANISMS = {
    "dropout, two batches a step": ("model.dropout=0.1", "trainer.accumulate_grad_batches=2"),
    "muon": ("optim=muon", "optim.min_lr=0", "trainer.precision=bf16-mixed"),
    "averaged weights": ("callbacks=ema",),
    "stopped early": (
        *("callbacks=early_stopping", "callbacks.early_stopping.min_delta=9"),
        *("callbacks.early_stopping.patience=2", "trainer.val_check_interval=2"),
    ),
    "bf16": ("trainer.precision=bf16-true",),
    "64 bits, last step not due": ("trainer.precision=64-true", "trainer.val_check_interval=5"),
    "recurrent layers in turn": ("attn=hybrid", "attn@attn.layers.1=gated_delta_net"),
    "probes and loggers": (
        *("probes=default", "probes.patterns.every=2", "logger=[tensorboard,csv]"),
        *("trainer.log_every_n_steps=1", "probes.history.steps=4"),
    ),
    "a task, longer texts": (
        *("data=induction", "model.positions=none", "attn=rotary"),
        "data.eval_lengths=[16,24]",
    ),
    "checkpoints of Lightning's own": (
        *("+callbacks.kept._target_=lightning.pytorch.callbacks.ModelCheckpoint", "logger=csv"),
        *("+callbacks.kept.save_last=true", "+callbacks.kept.every_n_train_steps=2"),
        *("trainer.log_every_n_steps=1", "checkpoint_every=100"),
    ),
    "compiled": ("compile=true",),
}
# Name -> (object, function, how often it may be called): the next call ends the process.
MOMENTS: dict[str, tuple[Any, str, int]] = {
    "before the first checkpoint": (GPTModule, "training_step", 1),
    "between two checkpoints": (GPTModule, "training_step", 4),
    "while a checkpoint is written": (AtomicCheckpointIO, "save_checkpoint", 2),
    "at the end of a validation": (GPTModule, "on_validation_epoch_end", 1),
    "before the metrics": (run_module, "run_metrics", 0),
}
PLAIN = [name for name in MECHANISMS if name != "compiled"]
# `git` is the commit of the working tree, which may change while the tests run.
MEASURED_ONCE = {"wall_seconds", "tokens_per_second", "git"}


class Ended(BaseException):
    """Stands for the end of the process; nothing catches it."""


@contextmanager
def ending(moment: str, end: Callable[[], None]) -> Iterator[None]:
    """Call `end` at the moment."""
    place, name, calls = MOMENTS[moment]
    original = vars(place)[name]
    seen = []

    def counted(*arguments: Any, **options: Any) -> Any:
        seen.append(name)
        if len(seen) > calls:
            end()
        return original(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, name, counted)
        yield


def raises() -> None:
    raise Ended


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def left(folder: Path) -> dict[str, Any]:
    """All that a run has left and a repeated one must have: weights, metrics, curves."""
    found: dict[str, Any] = {"curves": read_scalars(folder), "rows": rows_of(folder)}
    for name in ("last", "best"):
        checkpoint = torch.load(folder / f"checkpoints/{name}.ckpt", weights_only=True)
        found[name] = {
            k: (str(x.dtype), x.view(torch.uint8).tolist())
            for k, x in checkpoint["state_dict"].items()
        }
    metrics = read_json(folder / "metrics.json")
    found["metrics"] = {k: x for k, x in metrics.items() if k not in MEASURED_ONCE}
    return json.loads(json.dumps(found))


def rows_of(folder: Path) -> dict[str, list[Any]]:
    """What each logger has: every row of metrics.csv, and every point that TensorBoard shows."""
    rows: dict[str, list[Any]] = {}
    if (folder / "metrics.csv").exists():
        table = pd.read_csv(folder / "metrics.csv").melt("step").dropna()
        values = zip(table["variable"], table["step"], table["value"], strict=True)
        rows["csv"] = sorted([str(name), int(step), float(value)] for name, step, value in values)
    if [*folder.glob("events.out.tfevents.*")]:
        log = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
        rows["tensorboard"] = [
            [tag, point.step, point.value]
            for tag in sorted(log.Tags()["scalars"])
            for point in log.Scalars(tag)
        ]
    return rows


def same(mine: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two runs left the same; NaN is NaN."""
    return json.dumps(mine, sort_keys=True) == json.dumps(other, sort_keys=True)


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, dict[str, Any]]:
    """What each mechanism leaves without an interruption."""
    return {}


@pytest.fixture
def whole(train: Train, undisturbed: dict[str, Any]) -> Callable[[str], dict[str, Any]]:
    def of(mechanism: str) -> dict[str, Any]:
        if mechanism not in undisturbed:
            folder = train(*LENGTH, *MECHANISMS[mechanism], folder="whole").folder
            undisturbed[mechanism] = left(folder)
        return undisturbed[mechanism]

    return of


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("mechanism", PLAIN)
def test_a_run_that_ended_early_ends_like_an_undisturbed_one(
    mechanism: str, moment: str, train: Train, whole: Callable[[str], dict[str, Any]]
) -> None:
    with ending(moment, raises), pytest.raises(Ended):
        train(*LENGTH, *MECHANISMS[mechanism])
    again = train(*LENGTH, *MECHANISMS[mechanism])
    assert again.fresh and same(left(again.folder), whole(mechanism))


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_killed_run_ends_like_an_undisturbed_one(
    mechanism: str,
    moment: str,
    train: Train,
    whole: Callable[[str], dict[str, Any]],
    tmp_path: Path,
) -> None:
    overrides = (*LENGTH, *MECHANISMS[mechanism])
    if mechanism == "compiled" and moment != "between two checkpoints":
        pytest.skip("a compilation takes half a minute")
    with ending(moment, dies):
        child = multiprocessing.get_context("fork").Process(target=train, args=overrides)
        child.start()
        child.join()
    assert child.exitcode == -signal.SIGKILL
    assert read_run(tmp_path / "run")["status"] == "interrupted"
    again = train(*overrides)
    assert again.fresh and same(left(again.folder), whole(mechanism))


def test_a_lost_state_of_the_optimizer_is_seen(
    train: Train, whole: Callable[[str], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from lightning.pytorch.strategies import SingleDeviceStrategy

    with ending("between two checkpoints", raises), pytest.raises(Ended):
        train(*LENGTH, *MECHANISMS["muon"])
    monkeypatch.setattr(SingleDeviceStrategy, "load_optimizer_state_dict", lambda *_: None)
    assert not same(left(train(*LENGTH, *MECHANISMS["muon"]).folder), whole("muon"))


def test_tensorboard_shows_all_of_a_run_whose_clock_was_ahead(
    train: Train, whole: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    mechanism = "probes and loggers"
    with ending("between two checkpoints", raises), pytest.raises(Ended):
        train(*LENGTH, *MECHANISMS[mechanism])
    for file in [*(tmp_path / "run").glob("events.out.tfevents.*")]:
        seconds = file.name.split(".")[3]
        file.rename(file.with_name(file.name.replace(seconds, str(int(seconds) + 86_400))))
    assert same(left(train(*LENGTH, *MECHANISMS[mechanism]).folder), whole(mechanism))


# --- Loggers: every row once, and the code of the exit.

LOGGERS = ["logger=tensorboard", "logger=csv", "logger=[tensorboard,csv]"]


def full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# Name -> what ends the process, and the codes it may end with: 128 + signal, or the signal itself
# outside of the training.
ENDS: dict[str, tuple[Callable[[], None], set[int]]] = {
    "SIGKILL": (dies, {-signal.SIGKILL}),
    "SIGTERM": (lambda: os.kill(os.getpid(), signal.SIGTERM), {143, -signal.SIGTERM}),
    "Ctrl-C": (lambda: os.kill(os.getpid(), signal.SIGINT), {130}),
    "full disk": (full, {2}),
}
EVERY_ROW = ("trainer.log_every_n_steps=1", "probes=light")
QUICK = [("SIGKILL", LOGGERS[1]), ("SIGTERM", LOGGERS[0]), ("Ctrl-C", LOGGERS[2])]
QUICK.append(("full disk", LOGGERS[2]))


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(
    ("end", "logger"),
    [
        pytest.param(end, logger, marks=[] if (end, logger) in QUICK else pytest.mark.slow)
        for end in ENDS
        for logger in LOGGERS
    ],
)
def test_every_row_is_there_once(
    end: str,
    logger: str,
    moment: str,
    text_file: Path,
    tmp_path: Path,
    undisturbed: dict[str, dict[str, Any]],
) -> None:
    overrides = [*LENGTH, *EVERY_ROW, logger]
    ends, codes = ENDS[end]

    def command(outputs: Path) -> None:
        done = small_run(outputs, text_file, *overrides)
        assert "Traceback" not in done.err, done.err
        raise SystemExit(done.code)

    def ended(outputs: Path) -> int | None:
        child = multiprocessing.get_context("fork").Process(target=command, args=[outputs])
        child.start()
        child.join()
        return child.exitcode

    if logger not in undisturbed:
        assert ended(tmp_path / "whole") == 0
        (metrics,) = (tmp_path / "whole").rglob("metrics.json")
        undisturbed[logger] = left(metrics.parent)
    with ending(moment, ends):
        assert ended(tmp_path / "out") in codes
    (config,) = (tmp_path / "out").rglob(".hydra/config.yaml")
    folder = config.parents[1]
    assert read_run(folder)["status"] == "interrupted"
    assert ended(tmp_path / "out") == 0
    assert same(left(folder), undisturbed[logger])


# --- A disk that is really full: no file may have more bytes than this.

LIMITS = [0, 1_000, 6_000, 20_000, 40_000, 70_000]


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of a file")
@pytest.mark.parametrize("limit", LIMITS)
def test_a_full_disk_is_one_sentence_and_the_command_goes_on(
    limit: int, text_file: Path, tmp_path: Path, undisturbed: dict[str, dict[str, Any]]
) -> None:
    """The limit falls into the first files of a run, a logger's, or a checkpoint."""
    import resource

    logger = "logger=[tensorboard,csv]"
    words = [*LENGTH, *EVERY_ROW, logger]

    def command(outputs: Path, limit: int) -> None:
        if limit >= 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        done = small_run(outputs, text_file, *words)
        assert done.err.count("\n") == (limit >= 0), done.err
        raise SystemExit(done.code)

    def ended(outputs: Path, limit: int = -1) -> int | None:
        child = multiprocessing.get_context("fork").Process(target=command, args=[outputs, limit])
        child.start()
        child.join()
        return child.exitcode

    if logger not in undisturbed:
        assert ended(tmp_path / "whole") == 0
        (metrics,) = (tmp_path / "whole").rglob("metrics.json")
        undisturbed[logger] = left(metrics.parent)
    assert ended(tmp_path / "out", limit) == 2
    assert not [*tmp_path.rglob("error.txt"), *tmp_path.rglob("*.tmp")]
    assert ended(tmp_path / "out") == 0
    (metrics,) = (tmp_path / "out").rglob("metrics.json")
    assert same(left(metrics.parent), undisturbed[logger])


def test_a_run_that_another_version_has_begun_is_not_continued(
    train: Train, tmp_path: Path
) -> None:
    with ending("between two checkpoints", raises), pytest.raises(Ended):
        train(*LENGTH)
    last = tmp_path / "run/checkpoints/last.ckpt"
    checkpoint = torch.load(last, weights_only=True)
    del checkpoint["attnlab"]["version"]  # 0.1.0 did not write it
    torch.save(checkpoint, last)
    with pytest.raises(BadInput, match=r"0\.1\.0"):
        train(*LENGTH)
    assert read_run(tmp_path / "run")["status"] == "interrupted"
    assert train(*LENGTH, "force=true").metrics["versions"]["attnlab"] == attnlab.__version__


OPTIMIZER = """
import torch

def made(net, max_steps, **settings):
    return torch.optim.SGD(net.parameters(), lr={lr})
"""


def test_own_code_that_is_edited_before_a_resume_is_another_run(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)

    def command(lr: float) -> Done:
        (tmp_path / "edited.py").write_text(OPTIMIZER.format(lr=lr))
        importlib.invalidate_caches()
        sys.modules.pop("edited", None)
        return small_run(tmp_path / "out", text_file, *LENGTH, "optim._target_=edited.made")

    with ending("between two checkpoints", raises), pytest.raises(Ended):
        command(0.1)
    assert command(0.25).code == 0
    assert command(0.1).code == 0
    runs = [read_run(file.parent) for file in (tmp_path / "out").rglob("metrics.json")]
    assert [run["status"] for run in runs] == ["finished", "finished"]
    assert len({run["optim.source"] for run in runs}) == 2


KILLER = """
import os
import signal
from pathlib import Path
import lightning.pytorch as L

class Kill(L.Callback):
    def on_train_batch_end(self, trainer, *_):
        step, dead = trainer.global_step, Path("dead")
        if step == 5 and trainer.global_rank == {rank} and not dead.exists():
            dead.touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_two_devices_are_killed_and_resume(rank: int, text_file: Path, tmp_path: Path) -> None:
    """One of two processes on the CPU dies; the repeated command ends like an undisturbed run."""
    (tmp_path / "killer.py").write_text(KILLER.format(rank=rank))
    data = f"data.path={text_file}"
    devices = ("trainer.devices=2", "model.dropout=0.1", "+callbacks.kill._target_=killer.Kill")

    def go(outputs: str) -> subprocess.CompletedProcess[str]:
        command = [*SMALL, *LENGTH, data, *devices, f"outputs={outputs}"]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        with (tmp_path / "log.txt").open("w+") as log:
            done = subprocess.run(
                [sys.executable, str(ROOT / "train.py"), *command],
                cwd=tmp_path, env=environment, stdout=log, stderr=log, text=True,
            )  # fmt: skip
            log.seek(0)
            return subprocess.CompletedProcess(done.args, done.returncode, log.read())

    killed = go("killed")
    assert killed.returncode and (tmp_path / "dead").exists(), killed.stdout
    resumed, undisturbed = go("killed"), go("whole")
    assert resumed.stdout.count("Resuming from step 4.") == 1, resumed.stdout
    assert resumed.stdout.count("validation loss") == 1, resumed.stdout
    assert undisturbed.returncode == 0, undisturbed.stdout
    mine, other = (next((tmp_path / x).rglob("metrics.json")).parent for x in ("killed", "whole"))
    assert same(left(mine), left(other))
    assert left(mine)["metrics"]["devices"] == 2
