"""Models by name: what is refused, and in which words."""

import sys
from pathlib import Path

import huggingface_hub
import pytest
from transformers import LlamaConfig
from typer.testing import CliRunner

from attnlab.cli import app
from attnlab.errors import BadInput
from attnlab.interop import load_attention_model, load_language_model
from tests.commands import attnlab
from tests.interop.folders import bert_folder


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


def test_a_hub_name_without_a_network_is_one_sentence() -> None:
    with pytest.raises(BadInput) as told:
        load_attention_model("google-bert/bert-base-uncased")
    sentence = str(told.value)
    assert sentence.startswith("google-bert/bert-base-uncased is not a local directory")
    assert "\n" not in sentence


@pytest.mark.parametrize("name", ["no/such/folder", "two words", "/nowhere/at/all"])
def test_an_invalid_name_is_one_sentence(name: str) -> None:
    for verb in ("look", "sample"):
        result = CliRunner().invoke(app, [verb, f"hf:{name}"])
        assert isinstance(result.exception, BadInput)
        assert str(result.exception).startswith(f"{name} is not a local directory")


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not contain a model"):
        load_attention_model(str(tmp_path))


def test_another_family(tmp_path: Path) -> None:
    LlamaConfig().save_pretrained(tmp_path / "llama")
    with pytest.raises(BadInput, match="llama is a llama; it must be a bert or gpt2"):
        load_attention_model(str(tmp_path / "llama"))
    bert = bert_folder(tmp_path / "b")
    with pytest.raises(BadInput, match="b is a bert; it must be a gpt2"):
        load_language_model(str(bert))


def test_a_missing_extra_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    ended = attnlab("look", f"hf:{tmp_path}")
    assert (ended.code, ended.out) == (2, "")
    assert ended.error == "error: this needs transformers: pip install transformers\n"
