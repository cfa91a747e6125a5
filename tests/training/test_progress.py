"""What a run and a sweep say about how far they are."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from lightning.pytorch.callbacks import TQDMProgressBar

from attnlab.training.callbacks import StepBar
from attnlab.training.config import read_config
from attnlab.training.run import Request, make_trainer
from attnlab.training.sweep_progress import (
    begin_sweep,
    note_end_of_run,
    readable_duration,
    runs_of,
)
from tests.conftest import settings


@pytest.mark.parametrize(
    "typed",
    [
        ["preset=micro"],
        ["attn=none,sdpa,unscaled", "seed=0,1,2"],
        ["attn=none,sdpa", "seed=range(10)", "optim.lr=1e-3"],
        ["seed=choice(1,2,3)", "+a=[1,2]", "b='1,2'"],
        ["+a=[1,2],[3]", "seed=0,1", "seed=4"],
        ["attn=sdpa,sink", "attn@attn.layers.0=sdpa,sink"],
    ],
)
def test_runs_are_counted_as_hydra_makes_them(typed: list[str]) -> None:
    overrides = OverridesParser.create().parse_overrides(typed)
    (made,) = BasicSweeper.split_arguments(overrides, None)
    assert len(runs_of(typed, {}) or []) == len(made)


def test_a_typed_key_replaces_that_of_the_experiment() -> None:
    assert len(runs_of(["attn=sdpa"], {"attn": "none,sdpa", "seed": "range(10)"}) or []) == 10
    assert len(runs_of(["seed=0,1"], {"attn": "none,sdpa", "seed": "range(10)"}) or []) == 4
    assert runs_of(["attn=glob(*)"], {}) is None


@pytest.mark.parametrize(
    ("runs", "at_once", "said"),
    [
        (3, 1, ["1 of 3, 20 s left", "2 of 3, 5 s left", "3 of 3"]),
        (3, 2, ["1 of 3", "2 of 3, 5 s left", "3 of 3"]),
        (None, 1, ["run 1", "run 2", "run 3"]),
    ],
)
def test_a_sweep_counts_the_runs_that_ended(
    runs: int | None, at_once: int, said: list[str], tmp_path: Path
) -> None:
    with mock.patch.object(time, "time", lambda: 100.0):
        begin_sweep(tmp_path, runs, at_once)
    with mock.patch.object(time, "time", lambda: 110.0):
        assert [note_end_of_run(tmp_path, number) for number in (4, 0, 2)] == said


@pytest.mark.parametrize(
    ("seconds", "text"), [(7, "7 s"), (99, "99 s"), (600, "10 min"), (9000, "2.5 h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert readable_duration(seconds) == text


@pytest.mark.parametrize("resumed_at", [0, 100])
def test_the_bar_counts_the_steps_of_the_whole_run(resumed_at: int) -> None:
    bar = StepBar()
    trainer: Any = SimpleNamespace(max_steps=300, global_step=resumed_at)
    bar.on_train_start()
    bar.on_train_epoch_start(trainer)
    for step in range(resumed_at + 1, 301):
        trainer.global_step = step
        bar.on_train_batch_end(trainer, None, None, None, step - resumed_at - 1)
        assert (bar.train_progress_bar.n, bar.train_progress_bar.total) == (step, 300)
    assert bar.train_progress_bar.initial == resumed_at


@pytest.mark.parametrize(("out", "err"), [(True, False), (False, True)])
def test_the_bar_is_where_its_output_is_a_terminal(
    out: bool,
    err: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: out)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: err)
    config = read_config(settings("trainer.accelerator=cpu"))
    trainer = make_trainer(config, Request(tmp_path, variant="sdpa"))
    bar = trainer.progress_bar_callback
    assert isinstance(bar, StepBar) == out
    TQDMProgressBar().init_train_tqdm()
    written = capsys.readouterr()
    assert "Training" in written.out and not written.err  # where Lightning writes
