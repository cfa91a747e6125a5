"""`attnlab evaluate` measures what the run measured, for every text and task."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from attnlab.errors import BadInput
from attnlab.trained.evaluation import evaluate, included_data
from tests.cli import attnlab
from tests.conftest import CONF
from tests.data.test_corpus import bpe

Train = Callable[..., Any]
OF_A_FILE = {"attnlab.data.corpus.text", "attnlab.data.corpus.hub"}
# What the groups need to fit into a window of 16 symbols.
SIZES = {
    "copy": ["data.length=16"],
    "induction": ["data.length=16"],
    "mqar": ["data.length=16", "data.pairs=4"],
    "noisy_recall": ["data.length=16", "data.pairs=3", "data.noise=4"],
    "parity": ["data.length=16"],
    "permutations": ["data.length=16"],
    "plays": ["data.length=3000"],
    "tinyshakespeare": ["trainer.max_steps=1", "trainer.val_check_interval=1"],
}


def test_all_data_of_attnlab_are_included_but_files_and_downloads() -> None:
    targets = {yaml.safe_load(f.read_text())["_target_"] for f in (CONF / "data").glob("*.yaml")}
    assert included_data() == targets - OF_A_FILE
    assert SIZES.keys() == {name.rpartition(".")[2] for name in included_data()}


@pytest.mark.parametrize("data", SIZES)
def test_evaluate_measures_what_the_run_measured(data: str, train: Train) -> None:
    result = train(f"data={data}", *SIZES[data], "train_loss=false")
    measured = evaluate(result.folder, None, None)
    assert measured["loss"] == pytest.approx(result.metrics["val_loss"], rel=1e-6)
    assert measured["data"] == data
    if "val_accuracy" in result.metrics:
        assert measured["accuracy"] == result.metrics["val_accuracy"]
        assert measured["bits_per_byte"] is None
    done = attnlab("evaluate", str(result.folder))
    assert done.code == 0 and f"{result.metrics['val_loss']:.4f} nats" in done.out


def test_a_text_may_have_a_part_of_the_characters(train: Train, tmp_path: Path) -> None:
    folder = train("data=plays", "data.length=3000").folder
    (tmp_path / "few.txt").write_text("the end of the tale " * 40)
    whole = evaluate(folder, tmp_path / "few.txt", None)
    assert whole["predictions"] == 79 and 0 < whole["loss"] < 10
    (tmp_path / "other.txt").write_text("the end § " * 40)
    with pytest.raises(BadInput, match="§"):
        evaluate(folder, tmp_path / "other.txt", None)


def test_a_task_reads_no_text(train: Train, text_file: Path) -> None:
    with pytest.raises(BadInput, match="task"):
        evaluate(train("data=parity", "data.length=16").folder, text_file, None)


@pytest.mark.parametrize("gaps", [False, True])
def test_the_tokenizer_of_a_run_comes_from_its_checkpoint(
    gaps: bool, train: Train, text_file: Path, tmp_path: Path
) -> None:
    tokenizer = json.loads(bpe().to_str())
    if gaps:  # as tools leave them that delete unused tokens
        vocab = tokenizer["model"]["vocab"]
        tokenizer["model"]["vocab"] = {token: 3 * i for token, i in vocab.items()}
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(tokenizer))
    result = train(f"data.tokenizer={file}")
    file.unlink()
    measured = evaluate(result.folder, None, None, trust=True)
    assert measured["loss"] == pytest.approx(result.metrics["val_loss"], rel=1e-6)
    assert measured["bits_per_byte"] == pytest.approx(result.metrics["bits_per_byte"], rel=1e-6)
    assert evaluate(result.folder, text_file, None)["loss"] == measured["loss"]


def test_a_strangers_data_need_trust(train: Train, text_file: Path) -> None:
    done = attnlab("evaluate", str(train().folder))
    assert done.code == 2 and "--trust" in done.err
