"""Runs on bytes and on subwords: trained, resumed, sampled, evaluated, explored and exported."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attnlab.commands.evaluation import evaluate
from attnlab.data.corpora import Corpus, decode, encode
from attnlab.errors import BadInput
from attnlab.interop import export
from attnlab.training.checkpoints import load_model
from tests.command_line import attnlab, train_py
from tests.data.test_tokenizers import SUBWORDS, bpe

KINDS = ["characters", "bytes", "subwords"]


@pytest.fixture
def setting(tmp_path: Path) -> Callable[[str], str]:
    """The override for one of `KINDS`."""

    def named(kind: str) -> str:
        file = tmp_path / "tokenizer.json"
        bpe().save(str(file))
        return f"data.tokenizer={file if kind == 'subwords' else kind}"

    return named


@pytest.mark.parametrize("kind", KINDS)
def test_bits_per_byte_are_the_nats_of_all_predictions_over_all_bytes(
    kind: str, train: Callable[..., Any], setting: Callable[[str], str], text_file: Path
) -> None:
    """The text is ASCII, so each symbol has as many bytes as characters."""
    result = train(setting(kind), folder=kind)
    _, alphabet = load_model(result.folder)
    val = text_file.read_text()[3600:]
    ids = encode(val, alphabet)
    predicted = len(val) - len(decode(ids[:1], alphabet))
    nats = result.metrics["val_loss"] * (len(ids) - 1)
    expected = nats / (math.log(2) * predicted)
    assert result.metrics["val_bits_per_byte"] == pytest.approx(expected, rel=1e-9)
    unit = {"characters": "character", "bytes": "byte", "subwords": "token"}[kind]
    assert result.metrics["unit"] == unit and result.metrics["corpus"]["characters"] == 4000
    found = evaluate(result.folder, ["data=text", f"data.path={text_file}"])
    assert found["bits_per_byte"] == pytest.approx(expected, rel=1e-6)
    assert found["loss"] == pytest.approx(result.metrics["val_loss"], rel=1e-6)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_run_needs_its_tokenizer_only_to_train(
    kind: str, train: Callable[..., Any], setting: Callable[[str], str], tmp_path: Path
) -> None:
    folder = str(train(setting(kind), "probes=default", folder="run").folder)
    (tmp_path / "tokenizer.json").unlink()
    said = attnlab("sample", folder, "--prompt", "Größe", "--chars", "9")
    assert said.code == 0, said.error
    looked = attnlab("look", folder, "--text", "the fox", "--out", str(tmp_path / "look.png"))
    assert looked.code == 0 and ("byte" if kind == "bytes" else "token") in looked.out
    for text in ([], ["--text", "the fox"]):
        page = tmp_path / "page.html"
        explored = attnlab("explore", folder, *text, "--out", str(page))
        assert explored.code == 0, explored.error
    history = json.loads((Path(folder) / "history.json").read_text())
    first = "".join(history["tokens"])
    assert len(history["tokens"]) <= 16 and first.isascii()


@pytest.mark.parametrize("kind", KINDS[1:])
def test_the_exported_tokenizer_gives_the_same_ids(
    kind: str, train: Callable[..., Any], setting: Callable[[str], str], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    net, alphabet = load_model(train(setting(kind)).folder)
    export(net, alphabet, tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in ("the quick fox\n\n", "Größe 😀"):
        assert theirs(text)["input_ids"] == encode(text, alphabet).tolist()
        assert theirs.decode(encode(text, alphabet)) == text
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ids = encode("the fox", alphabet)[None]
    torch.testing.assert_close(model(ids).logits, net(ids), atol=1e-5, rtol=0)


def test_the_tokenizer_is_part_of_the_identity(
    train: Callable[..., Any], setting: Callable[[str], str], tmp_path: Path
) -> None:
    assert train(setting("subwords")).fresh
    assert not train(setting("subwords")).fresh
    with pytest.raises(BadInput, match=r"data\.tokenizer"):
        train(setting("bytes"))
    file = tmp_path / "tokenizer.json"
    override = setting("subwords")
    bpe(280).save(str(file))  # another content under the same path
    with pytest.raises(BadInput, match="another corpus"):
        train(override)


def test_a_missing_file_is_one_sentence(text_file: Path, tmp_path: Path) -> None:
    data = ["data=text", f"data.path={text_file}", f"data.tokenizer={tmp_path / 'none.json'}"]
    ended = train_py(*data, f"outputs={tmp_path}")
    assert ended.code == 2 and "Traceback" not in ended.error
    assert "must be characters, bytes, a tokenizer.json, or its directory: " in ended.error
    assert not list(tmp_path.iterdir())


def test_a_task_has_no_text_for_a_tokenizer(
    train: Callable[..., Any], setting: Callable[[str], str]
) -> None:
    folder = train(setting("bytes")).folder
    with pytest.raises(BadInput, match="the model's tokenizer needs"):
        evaluate(folder, ["data=copy"])


def test_a_library_model_of_subwords_is_small_in_memory() -> None:
    """A text of 100 pieces is encoded piece by piece, into two bytes a token."""
    corpus = Corpus.from_pieces("any", ["to be, or not to be\n" * 500] * 100, SUBWORDS)
    assert corpus.train.dtype == torch.uint16
    assert corpus.text.count("to be, or not to be\n") == 50_000
