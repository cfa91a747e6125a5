"""Text generation by a run, and by a GPT-2 of transformers with its own tokenizer."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, GPT2LMHeadModel
from typer.testing import CliRunner

from attnlab.attention import SelfAttention
from attnlab.commands import text_generation
from attnlab.commands.cli import app
from attnlab.commands.text_generation import TextGenerator, open_generator
from attnlab.data.corpora import decode, encode
from attnlab.data.tokenizers import Subwords
from attnlab.errors import BadInput
from attnlab.model import GPT
from tests.interop.folders import gpt2_folder


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpt2_folder(tmp_path_factory.mktemp("hf") / "gpt2")


def test_a_run_writes_the_same_text_with_and_without_its_cache(train: Callable[..., Any]) -> None:
    folder = str(train().folder)
    command = ["sample", folder, "--prompt", "the ", "--chars", "40"]
    cached, whole = (CliRunner().invoke(app, [*command, o]) for o in ("--cache", "--no-cache"))
    assert cached.exit_code == 0, cached.output
    assert cached.output == whole.output
    assert cached.output.startswith("the ") and len(cached.output) == 4 + 40 + 1
    for chars in (0, 1):
        result = CliRunner().invoke(
            app, ["sample", folder, "--prompt", "fox", "--chars", str(chars)]
        )
        assert len(result.output) == 3 + chars + 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [(["--chars", "-1"], "chars = -1"), (["--prompt", "#"], "lacks"), (["--prompt", ""], "empty")],
)
def test_bad_input_prints_nothing(
    arguments: list[str], sentence: str, train: Callable[..., Any]
) -> None:
    result = CliRunner().invoke(app, ["sample", str(train().folder), *arguments])
    assert isinstance(result.exception, BadInput) and sentence in str(result.exception)
    assert result.output == ""


def test_a_gpt2_generates_the_same_text_as_in_transformers(gpt2: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(gpt2)
    model = GPT2LMHeadModel.from_pretrained(gpt2).eval()
    ids = tokenizer("to be", return_tensors="pt")
    drawn = model.generate(**ids, max_new_tokens=40, do_sample=False, pad_token_id=0)[0]
    theirs = tokenizer.decode(drawn, skip_special_tokens=True).replace("\ufffd", "")
    command = ["sample", f"hf:{gpt2}", "--prompt", "to be", "--temperature", "0"]
    result = CliRunner().invoke(app, [*command, "--chars", "20"])
    assert result.exit_code == 0, result.output
    assert len(theirs) > 25
    assert theirs.startswith(result.output.removesuffix("\n").replace("\ufffd", ""))
    assert len(result.output) == len("to be") + 20 + 1


def writer_of(
    monkeypatch: pytest.MonkeyPatch, drawn: Sequence[int], **given: Any
) -> TextGenerator:
    """A writer whose model draws these bytes of UTF-8."""

    def pretended(net: GPT, ids: torch.Tensor, length: int, **options: Any) -> Iterator[int]:
        return iter(drawn[:length])

    monkeypatch.setattr(text_generation, "sample", pretended)
    net = GPT(SelfAttention, 256, block_size=4, n_layer=1, n_head=1, n_embd=4)
    return TextGenerator(
        net,
        lambda text: torch.tensor(list(text.encode())),
        lambda ids: bytes(ids).decode(errors="replace"),
        **given,
    )


def test_a_character_of_several_tokens_is_printed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = writer_of(monkeypatch, list("aé🙂b".encode()))
    assert list(writer.generate("x", 9, temperature=1.0, seed=0)) == ["a", "é", "🙂", "b"]
    assert list(writer.generate("x", 3, temperature=1.0, seed=0)) == ["a", "é", "🙂"]


def test_undecodable_tokens_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = writer_of(monkeypatch, [0x80] * 4 + [97])
    assert "".join(writer.generate("x", 9, temperature=1.0, seed=0)) == "\ufffd" * 4 + "a"


def test_spaces_between_tokens_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder such as SentencePiece's drops the space of the first token that it is given."""
    library = Tokenizer(models.WordLevel({"▁to": 0, "▁be": 1, "▁or": 2}))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    alphabet = Subwords(library.to_str())
    writer = replace(
        writer_of(monkeypatch, [2, 0, 1]),
        encode=partial(encode, alphabet=alphabet),
        decode=partial(decode, alphabet=alphabet),
    )
    assert "".join(writer.generate("to be", 9, temperature=1.0, seed=0)) == " or to be"


def test_the_end_of_a_text_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = writer_of(monkeypatch, [97, 98, 0, 99], end=0)
    assert list(writer.generate("x", 9, temperature=1.0, seed=0)) == ["a", "b"]


def test_no_such_run(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no run directory or checkpoint"):
        open_generator(str(tmp_path / "no"))
