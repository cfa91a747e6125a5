"""A signal during training: the checkpoint of its step is written before the run ends."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from attnlab.training.callbacks import Divergence, RunCheckpoints
from attnlab.training.interruption import Interruption
from tests.conftest import ROOT
from tests.forked import RUN as USUAL
from tests.forked import at_call, ended, folder_of, same_weights
from tests.marks import sampled

RUN = [*USUAL, "checkpoint_every=100", "trainer.val_check_interval=6"]
PLACES = [("training_step", 4), ("validation_step", 6)]
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 138, signal.SIGUSR2: 140}


@pytest.fixture(scope="module")
def whole(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run."""
    scratch = tmp_path_factory.mktemp("whole")
    code, said = ended([*RUN, f"data.path={text_file}", f"outputs={scratch}/o"], scratch)
    assert code == 0, said
    return folder_of(scratch / "o")


def status_of(folder: Path) -> tuple[str, int]:
    status = json.loads((folder / "status.json").read_text())
    return status["status"], status["step"]


PAIRS = [(sent, *place) for place in PLACES for sent in CODES]


@pytest.mark.parametrize(
    ("sent", "where", "step"), sampled(PAIRS, lambda x: PAIRS.index(x) in (0, 6))
)
def test_a_signal_costs_no_step(
    sent: signal.Signals, where: str, step: int, whole: Path, text_file: Path, tmp_path: Path
) -> None:
    command = [*RUN, f"data.path={text_file}", f"outputs={tmp_path}/o"]
    code, said = ended(command, tmp_path, at_call(4 if step == 4 else 1, where, sent))
    assert code == CODES[sent], said
    assert f"Interrupted at step {step}; the same command resumes from step {step}." in said
    folder = folder_of(tmp_path / "o")
    assert status_of(folder) == ("interrupted", step)
    code, said = ended(command, tmp_path)
    assert code == 0, said
    assert f"Resuming from step {step}." in said
    assert same_weights(folder, whole)


def test_a_second_signal_acts_at_once(text_file: Path, tmp_path: Path) -> None:
    def twice() -> None:
        at_call(4, "training_step", signal.SIGTERM)()
        at_call(4, "training_step", signal.SIGTERM)()

    command = [*RUN, f"data.path={text_file}", f"outputs={tmp_path}/o"]
    code, said = ended(command, tmp_path, twice)
    assert code == 143, said
    assert not (folder_of(tmp_path / "o") / "checkpoints").exists()


def test_sigterm_in_a_job_of_slurm_writes_a_checkpoint_and_goes_on(
    whole: Path, text_file: Path, tmp_path: Path
) -> None:
    def prepare() -> None:
        os.environ |= {"SLURM_JOB_ID": "1"}
        at_call(4, "training_step", signal.SIGTERM)()
        at_call(6, "training_step", signal.SIGKILL)()

    command = [*RUN, f"data.path={text_file}", f"outputs={tmp_path}/o"]
    code, said = ended(command, tmp_path, prepare)
    assert code == -9, said
    code, said = ended(command, tmp_path)
    assert "Resuming from step 4." in said
    assert same_weights(folder_of(tmp_path / "o"), whole)


def test_a_signal_before_the_first_step_waits_for_it(
    whole: Path, text_file: Path, tmp_path: Path
) -> None:
    command = [*RUN, f"data.path={text_file}", f"outputs={tmp_path}/o"]
    for step in (1, 2):  # also in a run that resumes
        code, said = ended(command, tmp_path, at_call(1, "train_dataloader", signal.SIGUSR1))
        assert code == 138, said
        assert status_of(folder_of(tmp_path / "o")) == ("interrupted", step)
    code, said = ended(command, tmp_path)
    assert code == 0, said
    assert same_weights(folder_of(tmp_path / "o"), whole)


@pytest.fixture
def handlers() -> Iterator[None]:
    """Puts the handlers of signals back."""
    before = {number: signal.getsignal(number) for number in CODES}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_an_earlier_checkpoint_is_not_enough(tmp_path: Path) -> None:
    """With accumulated gradients, a batch may begin before the step of the signal is done."""
    checkpoints = RunCheckpoints(tmp_path, 100, Divergence())
    interruption, trainer = Interruption(checkpoints), SimpleNamespace(global_step=0, world_size=1)
    handled: list[int] = []
    signal.signal(signal.SIGUSR2, lambda number, _: handled.append(number))
    interruption.on_fit_start(trainer)
    interruption.on_train_start(trainer)
    trainer.global_step, checkpoints.saved_step = 3, 2
    os.kill(os.getpid(), signal.SIGUSR2)
    interruption.on_train_batch_start(trainer)
    assert not handled and checkpoints.asked
    checkpoints.saved_step = 3
    interruption.on_train_batch_start(trainer)
    assert handled == [signal.SIGUSR2] and not checkpoints.asked


@pytest.mark.long
def test_a_killed_process_of_a_distributed_run_is_one_sentence(
    text_file: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "train.py", *RUN, f"data.path={text_file}", f"outputs={tmp_path}/o"]
    command += ["trainer.devices=2", "trainer.strategy=ddp", "trainer.accelerator=cpu"]
    command += ["trainer.max_steps=2000", "checkpoint_every=5"]
    first = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 120
    while not list(tmp_path.rglob("last.ckpt")) and time.monotonic() < end:
        time.sleep(0.2)
    (other, *_) = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    os.kill(int(other), signal.SIGKILL)
    _, said = first.communicate(timeout=120)
    assert first.returncode == 137
    assert "error: another process of this run was killed" in said
    assert "Traceback" not in said
    assert status_of(folder_of(tmp_path / "o"))[0] == "interrupted"
