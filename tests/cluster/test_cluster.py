"""Runs and sweeps on a real Slurm, started by `make test-cluster`: nothing is lost, same bits."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT, SMALL
from tests.forked import same_weights

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif("SLURM_DIR" not in os.environ, reason="needs Slurm: make test-cluster"),
]
STEPS = 240
SLOW = """
import time
import lightning.pytorch as L

class Slow(L.Callback):
    def on_train_batch_end(self, *_):
        time.sleep({seconds})
"""
SLURM = ["hydra/launcher=submitit_slurm", "hydra.launcher.cpus_per_task=1"]


class Lab:
    """A directory to train in, with a callback that makes each step last a while."""

    def __init__(self, folder: Path, text: Path) -> None:
        self.folder = folder
        self.settings = [*SMALL, f"data.path={text}", f"trainer.max_steps={STEPS}"]
        self.settings += ["trainer.val_check_interval=40", "checkpoint_every=1000", "logger=none"]
        self.settings += ["+callbacks.slow._target_=slow.Slow", f"outputs={folder}/o"]
        self.slow(0.2)

    def slow(self, seconds: float) -> None:
        (self.folder / "slow.py").write_text(SLOW.format(seconds=seconds))

    def command(self, *added: str) -> list[str]:
        return [sys.executable, str(ROOT / "train.py"), *self.settings, *added]

    def start(self, *added: str) -> "subprocess.Popen[str]":
        """Start a command; its output goes to said.txt."""
        with (self.folder / "said.txt").open("w") as said:
            return subprocess.Popen(
                self.command(*added), cwd=self.folder, stdout=said, stderr=said, text=True
            )

    @property
    def said(self) -> str:
        return (self.folder / "said.txt").read_text()

    def run_of(self, **settings: object) -> Path:
        """The run directory of a variant and seed."""
        for status in (self.folder / "o").rglob("status.json"):
            wanted = f"attn={settings['attn']}", f"seed={settings['seed']}"
            if status.parent.parent.name.startswith(wanted[0]) and status.parent.name == wanted[1]:
                return status.parent
        return self.folder / "none"

    def status(self, attn: str = "sdpa", seed: int = 0) -> str:
        file = self.run_of(attn=attn, seed=seed) / "status.json"
        return str(json.loads(file.read_text())["status"]) if file.exists() else "none"


@pytest.fixture
def lab(tmp_path: Path, text_file: Path) -> Lab:
    return Lab(tmp_path, text_file)


@pytest.fixture(scope="module")
def whole(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Undisturbed runs of both variants, without Slurm."""
    undisturbed = Lab(tmp_path_factory.mktemp("whole"), text_file)
    undisturbed.slow(0)
    environment = {k: x for k, x in os.environ.items() if not k.startswith("SLURM_JOB")}
    command = undisturbed.command("-m", "hydra/launcher=basic", "attn=sdpa,unscaled")
    subprocess.run(command, cwd=undisturbed.folder, env=environment, check=True)
    return undisturbed


def until(condition: Callable[[], object], seconds: float = 240) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, queue()
        time.sleep(0.5)


def slurm(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def queue() -> str:
    return slurm("squeue", "--states=all", "--array", "--noheader", "--format=%i|%T|%N|%r|%j")


def jobs(state: str, name: str = "train") -> list[str]:
    """The ids of the jobs in a state."""
    rows = [row.split("|") for row in queue().splitlines()]
    return [row[0] for row in rows if row[1] == state and row[4] == name]


def is_training(lab: Lab) -> bool:
    """Whether the job of sdpa has done its first validation."""
    return (lab.run_of(attn="sdpa", seed=0) / "checkpoints" / "last.ckpt").exists()


def release() -> None:
    """Start requeued jobs at once, which Slurm holds for two minutes, and with a longer limit."""
    for job in jobs("PENDING"):
        slurm("scontrol", "update", f"JobId={job}", "StartTime=now", "TimeLimit=60")


def assert_same(lab: Lab, whole: Lab, attn: str = "sdpa") -> None:
    ours, theirs = lab.run_of(attn=attn, seed=0), whole.run_of(attn=attn, seed=0)
    assert lab.status(attn) == "finished"
    assert same_weights(ours, theirs)
    losses = [json.loads((run / "metrics.json").read_text())["val_loss"] for run in (ours, theirs)]
    assert losses[0] == losses[1]


def test_a_sweep_ends_like_any_other(lab: Lab, whole: Lab) -> None:
    lab.slow(0)
    code = lab.start("-m", *SLURM, "attn=sdpa,unscaled").wait(600)
    assert code == 0, lab.said
    assert "All runs in" in lab.said and "comparison.png" in lab.said
    assert len(re.findall(r"val loss \d\.\d{4} \(\d of 2\)", lab.said)) == 2
    assert "srun" not in lab.said
    for attn in ("sdpa", "unscaled"):
        assert_same(lab, whole, attn)


def test_a_cancelled_job_costs_no_summary(lab: Lab, whole: Lab) -> None:
    sweep = lab.start("-m", *SLURM, "attn=sdpa,unscaled")
    until(lambda: is_training(lab))
    (victim,) = (job for job in jobs("RUNNING") if job.endswith("_0"))  # of sdpa
    slurm("scancel", victim)
    assert sweep.wait(600) == 1, lab.said
    assert "Traceback" not in lab.said
    assert "error: interrupted, 1 of this sweep's runs; to repeat each one:" in lab.said
    repeat = next(x for x in lab.said.splitlines() if x.endswith(" attn=sdpa"))
    assert lab.status("unscaled") == "finished"
    assert lab.status("sdpa") in ("interrupted", "running")
    lab.slow(0)
    assert "trainer.max_steps" in repeat
    assert lab.start("attn=sdpa").wait(600) == 0, lab.said
    assert "Resuming from step" in lab.said
    assert_same(lab, whole)


@pytest.mark.parametrize("grace", [0, 8])
def test_a_preempted_job_is_requeued_and_the_sweep_waits(grace: int, lab: Lab, whole: Lab) -> None:
    slurm("scontrol", "update", "PartitionName=low", f"GraceTime={grace}")
    sweep = lab.start("-m", *SLURM, "attn=sdpa")
    until(lambda: is_training(lab))
    urgent = ["sbatch", "--partition=high", "--exclusive", "--job-name=urgent", "--wrap=sleep 2"]
    slurm(*urgent, f"--output={lab.folder}/urgent")
    until(lambda: jobs("COMPLETED", "urgent") and jobs("PENDING"))
    lab.slow(0)
    release()
    assert sweep.wait(600) == 0, lab.said
    assert_same(lab, whole)


def test_a_time_limit_is_an_interruption(lab: Lab, whole: Lab) -> None:
    lab.slow(2.0)
    # The signal comes in the first minute; then a busy machine has three for the first step.
    limit = ["hydra.launcher.timeout_min=4", "hydra.launcher.signal_delay_s=180"]
    assert lab.start("-m", *SLURM, *limit, "attn=sdpa").wait(600) == 1, lab.said
    assert "error: interrupted, 1 of this sweep's runs" in lab.said
    assert "Traceback" not in lab.said
    assert lab.status() == "interrupted"
    lab.slow(0)
    assert lab.start("-m", *SLURM, "attn=sdpa").wait(600) == 0, lab.said
    assert_same(lab, whole)


@pytest.mark.parametrize("signal", ["USR1", "USR2"])
def test_sbatch_requeues_a_run_before_its_time_is_over(signal: str, lab: Lab, whole: Lab) -> None:
    lab.slow(1.0)
    script = lab.folder / "train.sh"
    script.write_text(f"#!/bin/bash\nexec srun {shlex.join(lab.command('attn=sdpa'))}\n")
    options = ["--requeue", "--time=3", f"--signal={signal}@120", "--open-mode=append", "-c1"]
    options += [f"--output={lab.folder}/said.txt", f"--chdir={lab.folder}", "--job-name=train"]
    slurm("sbatch", *options, str(script))
    until(lambda: lab.status() == "interrupted", 400)  # up to a minute early
    lab.slow(0)

    def finished() -> bool:
        release()
        return lab.status() == "finished"

    until(finished, 400)
    ended = re.findall(r"the job is requeued and resumes from step (\d+)", lab.said)
    assert ended and ended == re.findall(r"Resuming from step (\d+)\.", lab.said)
    assert_same(lab, whole)
