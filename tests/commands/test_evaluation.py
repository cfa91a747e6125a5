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
from tests.command_line import attnlab


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
    assert set(content) == {"corpus", "predictions", "loss", "bits_per_byte", "by_position"}
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
        (["data=nowhere"], "cannot be composed"),
    ],
)
def test_data_with_unknown_symbols_is_refused(
    train: Callable[..., Any], overrides: list[str], sentence: str
) -> None:
    with pytest.raises(BadInput, match=sentence):
        evaluate(train().folder, overrides)
