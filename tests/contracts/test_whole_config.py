"""Only code that stores or compares it gets the whole configuration after the check."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from omegaconf import DictConfig

from tests.command_line import train_py
from tests.conftest import ROOT, SMALL

TraceFunction = Callable[[FrameType, str, Any], Any]
SOURCE = str(ROOT / "src" / "attnlab")
ALLOWED = {
    "main.without_defaults": "the name of the run directory",
    "run_directory.folder_for": "the name of the run directory",
    "settings.flat": "identity",
    "settings.identity": "identity",
    "settings.fingerprint": "identity",
    "settings.differences": "identity",
    "run_directory.check_is_ours": "identity",
    "origin.read_resumable": "identity",
    "origin._read_compared": "identity",
    "files.check_plain": "what a run has saved",
    "run_directory.begin": "the directory .hydra",
    "loggers.log_settings": "hyperparameters",
    "loggers.hyperparameters": "hyperparameters",
    "sweeps.on_multirun_start": "Hydra's callback",
    "sweeps.on_multirun_end": "Hydra's callback",
    "sweeps._compare": "Hydra's callback",
    "sweeps._refusal": "Hydra's callback",
    "origin.read_origin": "identity",
    "metrics.own_code": "provenance",
}


@contextmanager
def recorded() -> Iterator[set[str]]:
    """The functions of attnlab that get a whole configuration once one has been checked."""
    found: set[str] = set()
    checked: list[FrameType] = []

    def returned(frame: FrameType, event: str, _: Any) -> TraceFunction:
        if event == "return":
            checked.append(frame)
        return returned

    def called(frame: FrameType, event: str, _: Any) -> TraceFunction | None:
        code = frame.f_code
        if not code.co_filename.startswith(SOURCE):
            return None
        name = f"{Path(code.co_filename).stem}.{code.co_name}"
        if name == "main.train":
            checked.clear()  # of the run before
        if checked:
            count = code.co_argcount + code.co_kwonlyargcount
            given = [frame.f_locals.get(name) for name in code.co_varnames[:count]]
            # As Hydra composed it, or as plain values.
            if any(
                isinstance(x, DictConfig | dict) and {"attn", "trainer"} <= x.keys() for x in given
            ):
                found.add(name)
        return returned if name == "config.read_config" else None

    before = sys.gettrace()
    sys.settrace(called)
    try:
        yield found
    finally:
        sys.settrace(before)


@pytest.mark.slow
def test_only_code_that_stores_or_compares_takes_the_whole_configuration(
    tmp_path: Path, text_file: Path
) -> None:
    command = [*SMALL, f"data.path={text_file}", f"outputs={tmp_path}", "logger=[tensorboard,csv]"]
    with recorded() as found:
        first = train_py(*command)
        (status,) = tmp_path.rglob("status.json")
        status.write_text(status.read_text().replace("finished", "interrupted"))
        resumed = train_py("-m", "hydra/launcher=basic", *command, "seed=0")
    assert (first.code, resumed.code) == (0, 0), resumed
    assert found == ALLOWED.keys()
