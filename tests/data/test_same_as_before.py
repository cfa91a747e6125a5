"""Texts, tasks and batches are those of the code before the reduction, to the last bit."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from attnlab.data import corpus as texts
from attnlab.data import plays, sequences
from attnlab.data.corpus import Corpus, TrainBatches
from attnlab.rng import generator
from tests.data.test_corpus import bpe
from tests.old import old_code

TASKS: dict[str, dict[str, int]] = {
    "mqar": {"length": 32, "pairs": 6, "symbols": 20},
    "noisy_recall": {"length": 32, "pairs": 5, "symbols": 9, "noise": 11},
    "copy": {"length": 32},
    "induction": {"length": 32, "symbols": 40},
    "parity": {"length": 24, "symbols": 5},
}
# name -> how both versions make it, with `folder` a directory of files
CORPORA = {
    "characters": "texts.tinyshakespeare()",
    "bytes": "texts.tinyshakespeare('bytes')",
    "file": "texts.text(folder + '/mine.txt')",
    "tokens": "texts.text(folder + '/mine.txt', folder + '/tokenizer.json')",
    "bytes of a file": "texts.text(folder + '/mine.txt', 'bytes')",
    "hub": "hub(folder + '/rows', column='line', limit=5000)",
    "plays": "plays.plays(30_000, seed=3)",
}
SEEN = """
def seen(data, T, TrainBatches):
    draw = data.train_draw(T)
    batches = TrainBatches(draw, batch_size=6, seed=3, steps=9, start=4)
    shared = TrainBatches(draw, batch_size=6, seed=3, steps=6, start=5, rank=1, world_size=2)
    tensors = [z for pair in [*batches, *shared] for z in pair]
    for part in ("val", "train"):
        tensors += [z for pair in data.held_out(part, T) for z in pair]
        tensors += data.windows(part, T, 7)
    numbers = [data.sha256, data.val_floor]
    if hasattr(data, "train"):
        tensors += [data.train, data.val]
        numbers += [data.val_bytes, data.bits_per_byte(1.7)]
    return [z.long() for z in tensors], numbers
"""
OLD = """
import json, sys, torch
from attnlab.data import corpora as texts, plays, sequences
from attnlab.data.batches import TrainBatches
from attnlab.data.hub import hub
folder, corpora, tasks = json.loads(sys.argv[1])
found = {name: seen(eval(how), 20, TrainBatches) for name, how in corpora.items()}
for name, given in tasks.items():
    task = vars(sequences)[name](**given)
    found[name] = seen(task, task.length, TrainBatches)
torch.save(found, folder + "/old.pt")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("data")
    (made / "mine.txt").write_text(
        "Größe 😀 to be, or not to be,\nthat is it:\r\n" * 40, newline=""
    )
    bpe().save(str(made / "tokenizer.json"))
    (made / "rows").mkdir()
    lines = [json.dumps({"line": f"To be, {i}", "act": 3}) for i in range(2000)]
    (made / "rows" / "rows.jsonl").write_text("\n".join(lines))
    return made


@pytest.fixture(scope="module")
def before(folder: Path) -> dict[str, Any]:
    code, given = old_code(), json.dumps([str(folder), CORPORA, TASKS])
    environment = os.environ | {"PYTHONPATH": str(code / "src")}
    subprocess.run([sys.executable, "-c", SEEN + OLD, given], env=environment, check=True)
    found: dict[str, Any] = torch.load(folder / "old.pt")
    return found


def now(name: str, folder: Path) -> Any:
    scope: dict[str, Any] = {"texts": texts, "hub": texts.hub, "plays": plays}
    exec(SEEN, scope)
    if name in TASKS:
        task = vars(sequences)[name](**TASKS[name])
        return scope["seen"](task, task.length, TrainBatches)
    data = eval(CORPORA[name], scope | {"folder": str(folder)})
    return scope["seen"](data, 20, TrainBatches)


def difference(one: Any, other: Any) -> str:
    """What differs between two results of `seen`; empty if nothing does."""
    (tensors, numbers), (others, other_numbers) = one, other
    if numbers != other_numbers:
        return f"{numbers} {other_numbers}"
    same = [torch.equal(a, b) for a, b in zip(tensors, others, strict=True)]
    return "" if all(same) else f"tensors {[n for n, x in enumerate(same) if not x]}"


@pytest.mark.parametrize("name", [*CORPORA, *TASKS])
def test_data_are_those_of_before(name: str, folder: Path, before: dict[str, Any]) -> None:
    assert difference(now(name, folder), before[name]) == ""


@pytest.mark.parametrize("fault", ["seed", "split", "window"])
def test_a_planted_fault_is_seen(
    fault: str, folder: Path, before: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    held_out = Corpus.held_out
    if fault == "seed":
        monkeypatch.setattr(texts, "generator", lambda seed, name, step: generator(seed, name, 0))
    elif fault == "split":
        monkeypatch.setattr(texts, "TRAINING_SHARE", 0.9001)
    else:
        monkeypatch.setattr(Corpus, "held_out", lambda *args: held_out(*args)[:-1])
    name = "characters"
    with pytest.raises((AssertionError, ValueError)):
        assert difference(now(name, folder), before[name]) == ""
