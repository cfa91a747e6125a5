"""`attncheck MODEL`: what a model is named by, exit codes, JSON."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import attncheck as package
from examined.small import MEAN

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
class Talks(Mean):
    def forward(self, ids):
        print("a token")
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
def test_a_target_is_examined(
    file: str, attncheck: Callable[..., Any], target: str, code: int, words: str
) -> None:
    done = attncheck(*target.split())
    assert done.code == code and words in " ".join(done.out.split()), done


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nowhere", "nowhere:NAME"),
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
def test_a_target_that_is_no_model_is_bad_input(
    file: str, attncheck: Callable[..., Any], target: str, words: str
) -> None:
    done = attncheck(target)
    assert done.code == 2 and words in done.err and "Traceback (most" not in done.err


@pytest.mark.parametrize(
    ("name", "error"), [("broken", "RuntimeError: no weights"), ("Crashes", "KeyError: 'missing'")]
)
def test_a_crash_in_the_users_code_has_its_file_and_line(
    file: str, attncheck: Callable[..., Any], name: str, error: str
) -> None:
    done = attncheck(f"{file}:{name}")
    assert done.code == 2 and error in done.err
    assert f'{file}", line' in done.err and "subject.py" not in done.err


@pytest.mark.parametrize(
    ("name", "code"), [("model", 0), ("leaky", 1), ("Fails", 3), ("other", 2)]
)
def test_json_is_what_the_report_says(
    file: str, attncheck: Callable[..., Any], name: str, code: int
) -> None:
    plain = attncheck(f"{file}:{name}")
    done = attncheck(f"{file}:{name}", "--json")
    assert plain.code == done.code == code
    told = json.loads(done.out)
    assert (told.pop("schema"), told.pop("attncheck")) == (1, package.__version__)
    assert told["exit_code"] == code
    if code == 2:
        assert told.keys() == {"exit_code", "error"} and told["error"] in plain.err
        return
    assert told["healthy"] == (code == 0)
    words = " ".join(plain.out.split())
    for result in told["results"]:
        assert f"{result['property']} {result['status']}" in words
        assert " ".join(result["message"].split()) in words


def test_what_a_model_prints_is_no_part_of_the_answer(
    file: str, attncheck: Callable[..., Any]
) -> None:
    done = attncheck(f"{file}:Talks", "--json")
    assert json.loads(done.out)["healthy"] and "a token" in done.err


def test_the_command_and_the_module_are_the_same(file: str) -> None:
    module = [sys.executable, "-m", "attncheck", f"{file}:leaky"]
    done = subprocess.run(module, capture_output=True, text=True)
    assert done.returncode == 1 and "up to t + 1" in done.stdout, done


FLAGS = """
import torch
from torch import nn

class Encoder(nn.Module):
    vocab_size, block_size = 11, 13
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)
    def forward(self, ids): return self.head(self.embed(ids) + self.embed(ids).mean(1)[:, None])

class Mixes(Encoder):
    def forward(self, ids): return self.head(self.embed(ids).cumsum(1) + self.embed(ids).mean(0))

class Finite(Encoder):
    def forward(self, ids):
        x = self.embed(ids)
        later = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        return self.head((self.q(x) @ self.k(x).mT).masked_fill(later, -1e4).softmax(-1) @ x)
"""


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("Encoder", 1),
        ("Encoder --encoder", 0),
        ("Encoder --prefix 12", 1),
        ("Encoder --prefix 13", 0),
        ("Mixes", 1),
        ("Mixes --accept rows", 0),
        ("Mixes --accept padding", 2),
        ("Finite", 0),
        ("Finite --strict", 1),
    ],
)
def test_what_is_meant_is_an_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attncheck: Callable[..., Any], target: str,
    code: int,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flags.py").write_text(FLAGS)
    done = attncheck(*f"flags.py:{target}".split())
    assert done.code == code, done
