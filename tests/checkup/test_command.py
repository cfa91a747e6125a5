"""`attnlab checkup`: targets, exit codes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli import attnlab

MODELS = '''
import torch
from torch import nn

class Mean(nn.Module):
    """The mean of the tokens up to position t, and of `later` more."""
    vocab_size, block_size = 11, 13
    def __init__(self, later=0):
        super().__init__()
        self.later, self.embed, self.head = later, nn.Embedding(11, 8), nn.Linear(8, 11)
    def forward(self, ids):
        mask = torch.ones(ids.shape[1], ids.shape[1]).tril(self.later)
        return self.head(mask / mask.sum(-1, keepdim=True) @ self.embed(ids))

model, number = Mean(), 3
def leaky(): return Mean(1)
def broken(): raise RuntimeError("no weights")
def function(ids): return nn.functional.one_hot(ids, 11).double().cumsum(1)
class Fails(Mean):
    def forward(self, ids):
        if self.training: raise KeyError("not in training")
        if len(ids) == 1: raise OSError("one row")
        return super().forward(ids)
'''


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models_here.py").write_text(MODELS)
    return "models_here.py"


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("models_here.py:model", 0),
        ("models_here:Mean", 0),
        ("models_here.py:leaky", 1),
        ("models_here.py:Fails", 3),
    ],
)
def test_a_target_is_examined(file: str, target: str, code: int) -> None:
    done = attnlab("checkup", target)
    assert done.code == code, done
    assert {1: "up to t + 1", 3: "one row"}.get(code, "healthy") in done.out


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nowhere", "nowhere"),
        ("nothing.py:model", "nothing.py"),
        ("models_here.py", "models_here.py:NAME"),
        ("models_here.py:other", "no attribute 'other'"),
        ("models_here.py:broken", "RuntimeError: no weights"),
        ("models_here.py:number", "int"),
        ("models_here.py:function", "vocab_size"),
        ("not_there:model", "not_there"),
    ],
)
def test_a_target_that_is_no_model_is_bad_input(file: str, target: str, words: str) -> None:
    done = attnlab("checkup", target)
    assert done.code == 2 and words in done.err and "Traceback" not in done.err


def test_a_function_gets_its_sizes_from_the_command(file: str) -> None:
    sizes = ["--vocab-size", "11", "--block-size", "9"]
    done = attnlab("checkup", "models_here.py:function", *sizes)
    assert done.code == 0 and "sequences of 9" in done.out


def test_a_run_and_its_checkpoint_are_examined(tmp_path: Path, train: Callable[..., Any]) -> None:
    for name, code in (("sdpa", 0), ("peek_one", 1)):
        train(f"attn={name}", folder=name)
        for target in (tmp_path / name, *(tmp_path / name).rglob("*.ckpt")):
            done = attnlab("checkup", str(target))
            assert done.code == code, done
