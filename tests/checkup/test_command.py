"""`attnlab checkup`: targets, exit codes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.checkup.small import MEAN
from tests.cli import attnlab

MODELS = f"""{MEAN}
model, number = Mean(), 3
def leaky(): return Mean(1)
def broken(): raise RuntimeError("no weights")
def function(ids): return nn.functional.one_hot(ids, 11).double().cumsum(1)
class Fails(Mean):
    def forward(self, ids):
        if len(ids) == 1: raise OSError("one row")
        return super().forward(ids)
class FailsInTraining(Mean):
    def forward(self, ids):
        if self.training: raise KeyError("not in training")
        return super().forward(ids)
class Crashes(Mean):
    def forward(self, ids):
        return dict()["missing"]
class Configured(Mean):
    def __init__(self, config):
        super().__init__()
def make(config, seed): return Mean()
class Masked(Mean):
    def forward(self, ids, mask):
        return super().forward(ids)
class Small(Mean):
    vocab_size = 40
class Vectors(nn.Linear):
    def __init__(self): super().__init__(8, 8)
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models_here.py").write_text(MODELS)
    return "models_here.py"


SIZES = "--vocab-size 11 --block-size 9"


@pytest.mark.parametrize(
    ("target", "code", "words"),
    [
        ("models_here.py:model", 0, "healthy"),
        ("models_here:Mean", 0, "healthy"),
        (f"models_here.py:function {SIZES}", 0, "sequences of 9"),
        ("models_here.py:leaky", 1, "up to t + 1"),
        ("models_here.py:Fails", 3, "one row"),
        ("models_here.py:FailsInTraining", 3, "KeyError: 'not in training' (models_here.py"),
    ],
)
def test_a_target_is_examined(file: str, target: str, code: int, words: str) -> None:
    done = attnlab("checkup", *target.split())
    assert done.code == code and words in " ".join(done.out.split()), done


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nowhere", "nowhere"),
        ("nothing.py:model", "nothing.py"),
        ("models_here.py", "models_here.py:NAME"),
        ("models_here.py:other", "no attribute 'other'"),
        ("models_here.py:Configured", "def make(): return Configured(config=...)"),
        ("models_here.py:make", "def make(): return make(config=..., seed=...)"),
        ("models_here.py:Masked", "call=lambda model, ids: model(ids, mask=...)"),
        ("models_here.py:Small", "give vocab_size=11"),
        ("models_here.py:Vectors", "checkup(model, torch.randn(4, 24, C))"),
        ("models_here.py:number", "int"),
        ("models_here.py:function", "vocab_size"),
        ("not_there:model", "not_there"),
    ],
)
def test_a_target_that_is_no_model_is_bad_input(file: str, target: str, words: str) -> None:
    done = attnlab("checkup", target)
    assert done.code == 2 and words in done.err and "Traceback (most" not in done.err


@pytest.mark.parametrize(
    ("name", "error"), [("broken", "RuntimeError: no weights"), ("Crashes", "KeyError: 'missing'")]
)
def test_a_crash_in_the_users_code_has_its_file_and_line(file: str, name: str, error: str) -> None:
    done = attnlab("checkup", f"{file}:{name}")
    assert done.code == 2 and error in done.err
    assert f'{file}", line' in done.err and "subject.py" not in done.err


def test_a_run_and_its_checkpoint_are_examined(tmp_path: Path, train: Callable[..., Any]) -> None:
    for name, code in (("sdpa", 0), ("peek_one", 1)):
        train(f"attn={name}", folder=name)
        for target in (tmp_path / name, *(tmp_path / name).rglob("*.ckpt")):
            done = attnlab("checkup", str(target))
            assert done.code == code, done
