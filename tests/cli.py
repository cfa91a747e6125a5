"""train.py and attnlab in this process: train_py("attn=unscaled") -> exit code, output, errors."""

import contextlib
import gc
import io
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from hydra.core.global_hydra import GlobalHydra

from tests.conftest import ROOT, on_text


class Done(NamedTuple):
    """What a command left on the terminal."""

    code: int
    out: str
    err: str


def train_py(*arguments: str) -> Done:
    """`python train.py ...`. Sweeps run in this process: add hydra/launcher=basic."""

    def start() -> None:
        runpy.run_path(str(ROOT / "train.py"), run_name="__main__")

    return _ended(["train.py", *arguments], start)


def small_run(outputs: Path, text: Path, *arguments: str) -> Done:
    """`python train.py ...` with a model that trains in a fraction of a second."""
    flags = [x for x in arguments if x.startswith("-")]
    overrides = [x for x in arguments if x not in flags]
    return train_py(*flags, *on_text(text, overrides), f"outputs={outputs}", *overrides)


def attnlab(*arguments: str) -> Done:
    """`attnlab ...`."""
    from attnlab.commands.cli import main

    return _ended(["attnlab", *arguments], main)


def _ended(argv: list[str], start: Callable[[], object]) -> Done:
    code: int | str | None = 0
    with _apart(argv) as (out, err):
        try:
            start()
        except SystemExit as stop:
            code = stop.code
        except Exception:
            traceback.print_exc()
            code = 1
    if isinstance(code, str):
        return Done(1, out.getvalue(), err.getvalue() + code)
    return Done(code or 0, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _apart(argv: list[str]) -> Iterator[tuple[io.StringIO, io.StringIO]]:
    """Arguments and output of a process of its own; what it sets for the process is undone."""
    out, err = io.StringIO(), io.StringIO()
    GlobalHydra.instance().clear()
    with (
        mock.patch.object(sys, "argv", argv),
        mock.patch.object(sys, "path", list(sys.path)),
        mock.patch.object(gc, "freeze"),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        yield out, err
    GlobalHydra.instance().clear()
