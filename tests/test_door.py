"""What a run ends with on the terminal."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnlab.training.door import show
from attnlab.training.run import Result


def ending(result: Result, capsys: pytest.CaptureFixture[str], *overrides: str) -> list[str]:
    capsys.readouterr()
    show(result, overrides)
    return capsys.readouterr().out.splitlines()


def test_the_folder_is_never_broken(
    train: Callable[..., Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    result = train(folder="a_folder_with_a_name_that_is_longer_than_forty_columns_are")
    lines = ending(result, capsys)
    assert f" run folder        {result.folder}" in lines
    assert any(line.startswith("  ") and f"sample {result.folder}" in line for line in lines)


@pytest.mark.parametrize(
    ("typed", "next_"),
    [
        ([], "train.py attn=unscaled"),
        (["attn=sdpa"], "train.py attn=unscaled"),
        (["attn=rotary", "seed=3", "force=true"], "train.py attn=sdpa seed=3"),
        (["attn=unscaled", "optim.lr=0.1"], "train.py attn=sdpa optim.lr=0.1"),
        (["seed=1", "optim.lr=0.1", "seed=2"], "train.py attn=unscaled seed=2 optim.lr=0.1"),
        (["attn.scale=0.5", "+attn.heads=2"], "train.py attn=sdpa"),
        (["preset=fast", "name=a b"], "train.py attn=unscaled preset=fast 'name=a b'"),
    ],
)
def test_the_next_run_changes_one_thing(
    typed: list[str], next_: str, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = {
        "status": "finished",
        "val_loss": 1.9,
        "corpus": {"name": "plays"},
        "tokens_per_second": 9.0,
        "device": "cpu",
        "precision": "32-true",
    }
    lines = ending(Result(Path("o/lab/run/seed=0"), metrics), capsys, *typed)
    assert lines[-1].endswith(next_)
