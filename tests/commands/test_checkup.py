"""`attnlab checkup`: it opens a run, and attncheck examines the model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli import attnlab


def test_a_run_and_its_checkpoint_are_examined(tmp_path: Path, train: Callable[..., Any]) -> None:
    for name, code in (("sdpa", 0), ("peek_one", 1)):
        train(f"attn={name}", folder=name)
        for target in (tmp_path / name, *(tmp_path / name).rglob("*.ckpt")):
            done = attnlab("checkup", str(target))
            assert done.code == code, done


@pytest.mark.parametrize(
    ("name", "option", "code"),
    [
        ("peek_one", "", 1),
        ("peek_one", "--accept causal", 0),
        ("bidirectional", "--encoder", 0),
        ("finite_fill", "", 0),
        ("finite_fill", "--strict", 1),
        ("sdpa", "--strict --block-size 8 --rows 2 --prefix 0 --vocab-size 5", 0),
    ],
)
def test_what_is_meant_is_an_option(
    tmp_path: Path, train: Callable[..., Any], name: str, option: str, code: int
) -> None:
    train(f"attn={name}")
    done = attnlab("checkup", *option.split(), str(tmp_path / "run"))
    assert done.code == code, done


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nowhere", "nowhere"),
        ("models.py:Model", "try attncheck models.py:Model"),
        ("models:Model", "try attncheck models:Model"),
    ],
)
def test_what_is_no_run_is_bad_input(target: str, words: str) -> None:
    done = attnlab("checkup", target)
    assert done.code == 2 and words in done.err and "Traceback" not in done.err, done
