"""`python train.py ...` and `attnlab ...` in this process: their messages and exit codes."""

import io
import os
import runpy
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from attnlab.commands import cli
from tests.conftest import ROOT


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Args:
        code: the exit code.
        out: the standard output.
        error: the standard error.
    """

    code: int
    out: str
    error: str


def train_py(*arguments: str) -> Ended:
    """Run train.py with these arguments, in the repository's root."""
    with _working_in(ROOT):
        return _ended(
            "train.py", arguments, lambda: runpy.run_path("train.py", run_name="__main__")
        )


def attnlab(*arguments: str, folder: Path | None = None) -> Ended:
    """Run the command `attnlab` with these arguments, in a folder or in the current one."""
    with _working_in(folder or Path.cwd()):
        return _ended("attnlab", arguments, cli.main)


def _ended(name: str, arguments: tuple[str, ...], main: Callable[[], object]) -> Ended:
    out, error = io.StringIO(), io.StringIO()
    code = 0
    with _as_before(), redirect_stdout(out), redirect_stderr(error):
        sys.argv = [name, *arguments]
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Ended(code, out.getvalue(), error.getvalue())


@contextmanager
def _working_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _as_before() -> Iterator[None]:
    """Undo what a command changes in its process."""
    argv, path, terminate = sys.argv, list(sys.path), signal.getsignal(signal.SIGTERM)
    environment = dict(os.environ)
    try:
        with warnings.catch_warnings():
            yield
    finally:
        sys.argv, sys.path[:] = argv, path
        signal.signal(signal.SIGTERM, terminate)
        os.environ.clear()
        os.environ.update(environment)
