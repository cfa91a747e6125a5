"""Shared by the tests: one thread, fixed seeds, and the command in this process."""

import os
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch

from attncheck.command import main


class Done(NamedTuple):
    """What a command left on the terminal."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tests run in parallel processes, so more threads would compete for the cores."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # of subprocesses


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same random numbers in every test."""
    torch.manual_seed(0)


@pytest.fixture
def attncheck(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Done]:
    """`attncheck ...`, called as attncheck("models.py:Model", "--json")."""

    def call(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "path", list(sys.path))
        try:
            code = main(arguments)
        except SystemExit as stopped:
            assert isinstance(stopped.code, int), stopped.code
            code = stopped.code
        return Done(code, *capsys.readouterr())

    return call
