"""Runs in a job of Slurm: whose checkpoints they read, and what signals mean."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attnlab.errors import Terminated
from attnlab.training.slurm import requeue, terminate
from tests.conftest import weights_of

Train = Callable[..., Any]
JOB = {"SLURM_NTASKS": "1", "SLURM_JOB_NAME": "x", "SLURM_JOB_ID": "1"}
JOB |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize("force", ["force=false", "force=true"])
def test_a_checkpoint_of_lightnings_requeueing_changes_nothing(force: str, train: Train) -> None:
    whole = train("seed=2", folder="whole")
    other = train("optim.lr=0.1", "trainer.max_steps=3", folder="other")
    old = (other.folder / "checkpoints" / "last.ckpt").read_bytes()
    run = train("seed=2")
    if force == "force=false":  # interrupted before the first checkpoint
        (run.folder / "checkpoints" / "last.ckpt").unlink()
        status = run.folder / "status.json"
        status.write_text(status.read_text().replace('"finished"', '"interrupted"'))
    planted = run.folder / "hpc_ckpt_1.ckpt"
    planted.write_bytes(old)
    again = train("seed=2", force)
    assert again.fresh
    assert planted.read_bytes() == old
    assert again.metrics["val_loss"] == whole.metrics["val_loss"]
    ours, theirs = weights_of(again.folder), weights_of(whole.folder)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.usefixtures("job")
def test_a_batch_job_ignores_sigterm_and_is_requeued_after_a_user_signal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    terminate(signal.SIGTERM, None)
    with pytest.raises(Terminated) as end:
        terminate(signal.SIGUSR1, None)
    assert end.value.code == 128 + signal.SIGUSR1
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert requeue(end.value)
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "2")
    assert requeue(end.value)
    assert not requeue(Terminated(signal.SIGTERM))
    assert (tmp_path / "asked").read_text() == "requeue 1\nrequeue 7_2\n"
    monkeypatch.setenv("SLURM_JOB_NAME", "interactive")
    assert not requeue(end.value)
    with pytest.raises(Terminated):
        terminate(signal.SIGTERM, None)
