"""`attnlab evaluate` and `attnlab patch`: the figures of a run, and bad input."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from attnlab.commands.evaluation import evaluate
from attnlab.errors import BadInput
from attnlab.training.config import read_config
from attnlab.training.run import run
from tests.command_line import attnlab
from tests.conftest import SMALL, settings
from tests.security import hostile


def test_a_run_on_its_own_text_has_its_own_loss(
    train: Callable[..., Any], text_file: Path
) -> None:
    result = train("probes=light")
    found = evaluate(result.folder, ["data=text", f"data.path={text_file}"])
    assert found["loss"] == pytest.approx(result.metrics["val_loss"], abs=1e-6)
    assert found["predictions"] == 399
    assert found["bits_per_byte"] == pytest.approx(found["loss"] / math.log(2))
    assert found["by_position"] == pytest.approx(
        result.metrics["probes"]["loss_by_position"], abs=1e-4
    )


@pytest.fixture
def task(tmp_path: Path) -> Any:
    """A run on a task, whose model has no learned positions."""
    own = {"data=text", "probes=none"}
    cfg = settings(
        *(o for o in SMALL if o not in own), "data=mqar", "data.pairs=3", "probes=none",
        "model.learned_positions=false",
    )  # fmt: skip
    return run(read_config(cfg), tmp_path / "task", variant="sdpa")


def test_a_task_is_evaluated_on_its_own_data(task: Any) -> None:
    found = evaluate(task.folder, [])
    assert found["corpus"] == "mqar" and found["bits_per_byte"] is None
    assert found["loss"] == pytest.approx(task.metrics["val_loss"], abs=1e-6)
    assert found["accuracy"] == task.metrics["val_accuracy"]
    assert [math.isnan(x) for x in found["by_position"]] == [True] * 6 + [False] * 10
    more = evaluate(task.folder, ["data.pairs=5", "length=24"])
    assert [math.isnan(x) for x in more["by_position"]] == [True] * 10 + [False] * 14
    assert more["trained_length"] == 16 and more["predictions"] == 512 * 14
    shown = attnlab("evaluate", str(task.folder), "length=24").out
    assert "at position 16" in shown and "(beyond the trained length)" in shown
    assert "at position 8 " in shown and "at position 0" not in shown  # nothing is predicted


def test_the_text_of_a_run_is_read_only_with_trust(
    train: Callable[..., Any], text_file: Path
) -> None:
    """A run directory may come from anybody, and names a file."""
    result = train()
    with pytest.raises(
        BadInput, match=r"outside of attnlab \(attnlab\.data\.corpora\.text\).*--trust"
    ):
        evaluate(result.folder, [])
    assert evaluate(result.folder, [], trust=True)["loss"] == pytest.approx(
        result.metrics["val_loss"], abs=1e-6
    )


def test_a_text_that_has_changed_is_named(train: Callable[..., Any], tmp_path: Path) -> None:
    (file := tmp_path / "own.txt").write_text("the fox\n" * 50)
    result = train(f"data.path={file}")
    file.write_text("fox the\n" * 50)
    with pytest.warns(UserWarning, match=r"own\.txt have changed since the training"):
        evaluate(result.folder, [], trust=True)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"_target_": "os.system", "command": "x"}, r"outside of attnlab \(os\.system\)"),
        ({"_target_": "attnlab.data.plays.plays", "length": 10**12}, r"data\.length is too large"),
        ({"_target_": 3}, "does not say its data"),
    ],
)
def test_hostile_data_of_a_run_are_refused(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    content = hostile.checkpoint()
    content["attnlab"]["recipe"]["config"]["data"] = changes
    folder = hostile.run(tmp_path / "run", hostile.saved(content))
    with pytest.raises(BadInput, match=sentence):
        evaluate(folder, [])


def test_a_run_that_did_not_finish_is_named(train: Callable[..., Any], text_file: Path) -> None:
    folder = train().folder
    status = folder / "status.json"
    status.write_text(status.read_text().replace("finished", "interrupted"))
    with pytest.warns(UserWarning, match="is interrupted; its last checkpoint is evaluated"):
        evaluate(folder, ["data=text", f"data.path={text_file}"])


@pytest.mark.parametrize("typed", ["data.length=[", "data.length=${x}"])
def test_data_that_cannot_be_read_are_one_sentence(typed: str, train: Callable[..., Any]) -> None:
    with pytest.raises(BadInput, match=r"data\.length=.* cannot be read"):
        evaluate(train().folder, [typed], trust=True)


def test_another_text_with_wide_characters(train: Callable[..., Any], tmp_path: Path) -> None:
    """Ids are those of the model, not of the data; a character of three bytes counts as three."""
    (tmp_path / "own.txt").write_text("the fox→\n" * 50)
    result = train(f"data.path={tmp_path / 'own.txt'}", folder="wide")
    (tmp_path / "other.txt").write_text("fox→" * 60)
    found = evaluate(result.folder, ["data=text", f"data.path={tmp_path / 'other.txt'}"])
    assert found["predictions"] == 23
    nats = found["bits_per_byte"] * math.log(2) * (23 + 2 * 6)  # six arrows
    assert nats == pytest.approx(found["loss"] * 23)


def test_the_models_characters_encode_a_text_whatever_the_tokenizer_of_the_data(
    train: Callable[..., Any], text_file: Path, tmp_path: Path
) -> None:
    words = sorted(set(text_file.read_text().split()))
    library = Tokenizer(models.WordLevel({word: i for i, word in enumerate([*words, " ", "\n"])}))
    library.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s"), "isolated")
    library.decoder = decoders.Fuse()
    library.save(str(tmp_path / "tokenizer.json"))
    folder, data = train().folder, ["data=text", f"data.path={text_file}"]
    others = [evaluate(folder, [*data, f"data.tokenizer={x}"]) for x in ("bytes", tmp_path)]
    assert others == [evaluate(folder, data)] * 2


def test_the_commands(train: Callable[..., Any], text_file: Path) -> None:
    folder = str(train().folder)
    data = ["data=text", f"data.path={text_file}"]
    shown = attnlab("evaluate", folder, *data)
    assert shown.code == 0 and "bits per byte" in shown.out
    content = json.loads(attnlab("evaluate", folder, *data, "--json").out)
    assert set(content) == {
        *("corpus", "length", "trained_length", "predictions", "loss", "accuracy"),
        *("bits_per_byte", "by_position", "accuracy_by_position"),
    }
    texts = ["--clean", "the fox", "--corrupt", "the dog", "--answers", "ab"]
    shown = attnlab("patch", folder, *texts)
    assert shown.code == 0 and "L1H1" in shown.out
    heads = json.loads(attnlab("patch", folder, *texts, "--json").out)["heads"]
    assert {(each["layer"], each["head"]) for each in heads} == {(0, 0), (0, 1), (1, 0), (1, 1)}


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["optim.lr=1"], "optim.lr=1 does not choose data"),
        (["data=tinyshakespeare"], "alphabet lacks"),
        (["data=nowhere"], "there is no data=nowhere; there are "),
        (["length=-3"], "length = -3 must be a whole number"),
        (["length=17"], r"length = 17 is beyond model\.block_size = 16"),
    ],
)
def test_data_with_unknown_symbols_is_refused(
    train: Callable[..., Any], overrides: list[str], sentence: str
) -> None:
    with pytest.raises(BadInput, match=sentence):
        evaluate(train().folder, overrides)
