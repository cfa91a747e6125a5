"""Command lines in forked processes, which need not import everything again."""

import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from attnlab import workers
from attnlab.commands import cli
from tests.command_line import train_py
from tests.conftest import ROOT, SMALL, weights_of

RUN = [*SMALL, "trainer.max_steps=12", "trainer.val_check_interval=4", "checkpoint_every=2"]
FORK = multiprocessing.get_context("fork")


@dataclass
class Command:
    """One call of train.py or of attnlab.

    Args:
        process: which does it.
        said: the file of its standard output and error.
    """

    process: BaseProcess
    said: Path

    def end(self) -> tuple[int | None, str]:
        """Wait for the end, and return exit code (such as -9 after SIGKILL) and output."""
        self.process.join(timeout=300)
        return self.process.exitcode, self.said.read_text()


@cache
def import_once() -> None:
    """Import and compose what a run needs before processes are forked."""
    import tensorboard.summary  # noqa: F401
    import torch.utils.tensorboard  # noqa: F401

    from attnlab.training import run  # noqa: F401

    refused = train_py(*RUN, f"data.path={ROOT / 'README.md'}", "trainer.devices=0")
    assert refused.code == 2, refused


def begin(
    arguments: list[str],
    scratch: Path,
    before: Callable[[], object] = lambda: None,
    *,
    script: str = "train.py",
) -> Command:
    """Start a command; its process first calls `before`, which can prepare a fault.

    Args:
        arguments: of the command line.
        scratch: a folder for what it prints.
        before: called first.
        script: train.py or attnlab.
    """
    import_once()
    said = scratch / f"said-{len(list(scratch.glob('said-*')))}.txt"
    said.touch()
    process = FORK.Process(target=_main, args=(script, arguments, said, before))
    process.start()
    return Command(process, said)


def ended(
    arguments: list[str], scratch: Path, before: Callable[[], object] = lambda: None
) -> tuple[int | None, str]:
    """Run a command, and return its exit code and output."""
    return begin(arguments, scratch, before).end()


def forked_worker(number: int, logs: Path, threads: int) -> ProcessPoolExecutor:
    """What replaces `workers.make_worker`: a worker that is forked."""
    log = str(logs / f"worker-{number}.log")
    return ProcessPoolExecutor(1, FORK, workers.start_worker, (log, threads))


def _main(script: str, arguments: list[str], said: Path, before: Callable[[], object]) -> None:
    os.chdir(ROOT)
    out = os.open(said, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(out, stream)
    # pytest captures Python's own streams, and the fork has a copy of what it has captured
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    sys.argv = [script, *arguments]
    os.environ.pop("HYDRA_FULL_ERROR", None)
    # Background jobs of a script, such as in CI, ignore Ctrl-C; commands in a terminal do not.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    before()
    if script == "train.py":
        runpy.run_path("train.py", run_name="__main__")
    else:
        cli.main()


def is_one_sentence(said: str) -> bool:
    """Whether a command ended with one sentence and no traceback."""
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    return "Traceback" not in said and len(errors) == 1


def at_call(number: int, of: str, sent: signal.Signals) -> Callable[[], None]:
    """Send this process a signal when a method of TaskModule is called for the n-th time."""

    def prepare() -> None:
        from attnlab.training.lightning_module import TaskModule

        method, calls = vars(TaskModule)[of], []

        def counted(*arguments: object) -> object:
            calls.append(of)
            if len(calls) == number:
                os.kill(os.getpid(), sent)
            return method(*arguments)

        setattr(TaskModule, of, counted)

    return prepare


def folder_of(outputs: Path) -> Path:
    (status,) = outputs.rglob("status.json")
    return status.parent


def same_weights(a: Path, b: Path) -> bool:
    ours, theirs = weights_of(a), weights_of(b)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


def interrupted(command: list[str], scratch: Path, before: Callable[[], object] = int) -> Path:
    """A run that was killed after its fourth checkpoint: its folder."""

    def prepare() -> None:
        before()
        at_call(10, "training_step", signal.SIGKILL)()

    code, said = ended(command, scratch, prepare)
    assert code == -9, said
    return folder_of(scratch)
