"""Texts, their symbols, and batches: what is predicted once, and what is refused."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from attnlab.data.alphabets import Bytes, Characters, Subwords, from_plain, to_plain
from attnlab.data.corpus import Corpus, TrainBatches, hub, text
from attnlab.errors import BadInput

WORDS = "Größe 😀 to be, or not to be,\nthat is the question:\n\n  whether 'tis nobler\n"
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)


def bpe() -> Tokenizer:
    """A tiny tokenizer of GPT-2's kind."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        min_frequency=1,
    )
    tokenizer.train_from_iterator([WORDS] * 3, trainer)
    return tokenizer


SUBWORDS = Subwords(bpe().to_str())


def of_numbers(N: int) -> Corpus:
    """A corpus of N training and N validation symbols that count up."""
    return Corpus("n", Bytes(), torch.arange(N), torch.arange(N), N - 1, "")


# ---- symbols


@given(ANY_TEXT)
def test_bytes_and_tokens_give_any_text_back(written: str) -> None:
    for alphabet in (Characters("".join(sorted(set(written)))), Bytes(), SUBWORDS):
        ids = alphabet.encode(written)
        again = from_plain(json.loads(json.dumps(to_plain(alphabet))))  # as in a checkpoint
        assert alphabet.decode(ids) == again.decode(ids) == written
        assert type(again) is type(alphabet) and all(0 <= i < len(alphabet) for i in ids)
        assert sum(alphabet.size_of(i) for i in ids) == len(written.encode())
    assert Bytes().encode(written) == list(written.encode())
    assert SUBWORDS.encode(written) == bpe().encode(written).ids


def test_symbols_have_labels_and_unknown_ones_are_named() -> None:
    assert (Bytes()[97], Bytes()[128], SUBWORDS[SUBWORDS.encode("t")[0]]) == ("a", r"\x80", "t")
    with pytest.raises(BadInput, match="'x', 'é'"):
        Characters("abc").encode("abxé")
    with pytest.raises(BadInput, match="kind"):
        from_plain({"kind": "Corpus", "content": ""})


# The validation text begins with "ö", which a token of one of its two bytes begins.
@pytest.mark.parametrize(("tokenizer", "first"), [("characters", 2), ("bytes", 1), ("", 1)])
def test_bits_per_byte_count_the_predicted_bytes(
    tokenizer: str, first: int, tmp_path: Path
) -> None:
    whole = "to be " * 15 + "öffnen und "[:10]
    bpe().save(str(tmp_path / "tokenizer.json"))
    corpus = Corpus.of("any", whole, tokenizer or str(tmp_path / "tokenizer.json"))
    assert corpus.alphabet.decode(corpus.train.tolist()) == whole[:90]
    assert corpus.alphabet.decode(corpus.val.tolist()) == whole[90:]
    assert corpus.val_bytes == 11 - first
    bits = 1.25 * (len(corpus.val) - 1) / math.log(2) / (11 - first)
    assert corpus.bits_per_byte(1.25) == pytest.approx(bits, rel=1e-12)


# ---- batches


def test_a_batch_is_a_function_of_seed_and_step_which_ranks_share() -> None:
    def batches(**given: int) -> list[Any]:
        whole = {"batch_size": 8, "seed": 0, "steps": 12, **given}
        return [x for x, _ in TrainBatches(of_numbers(1000).train_draw(16), **whole)]

    whole, rest = batches(), batches(start=7)
    assert len(whole) == 12 and all(map(torch.equal, whole[7:], rest))
    assert not torch.equal(whole[7], batches(seed=1)[7]) and not torch.equal(whole[7], whole[8])
    shares = [batches(rank=r, world_size=4) for r in range(4)]
    for step, x in enumerate(whole):
        together = torch.stack([share[step] for share in shares], dim=1).flatten(0, 1)
        assert torch.equal(together, x)


@given(N=st.integers(2, 200), T=st.integers(1, 40), B=st.integers(1, 9))
def test_validation_predicts_every_symbol_but_the_first_once(N: int, T: int, B: int) -> None:
    for part in ("val", "train"):
        pairs = of_numbers(N).held_out(part, T, B)
        targets = torch.cat([y.flatten() for _, y in pairs])
        assert torch.equal(targets.sort()[0], torch.arange(1, N))
        assert all(torch.equal(y, x + 1) and x.shape[1] <= T and len(x) <= B for x, y in pairs)


@pytest.mark.parametrize("T", [1, 8, 19])
def test_windows_lie_in_the_text_and_reach_both_ends(T: int) -> None:
    corpus = of_numbers(20)
    starts = set(corpus.train_draw(T)(500, torch.Generator().manual_seed(0))[0][:, 0].tolist())
    assert starts == set(range(20 - T))
    x, y = corpus.windows("val", T, 5)
    assert torch.equal(y, x + 1) and x[0, 0] == 0 and y[-1, -1] == 19


# ---- files and data sets


def test_a_file_is_read_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    content = "to be\r\n\ufeff" * 9 + "no line break at its end"
    (tmp_path / "my [text].txt").write_bytes(content.encode())
    corpus = text("~/my [text].txt")
    ids = torch.cat([corpus.train, corpus.val]).tolist()
    assert corpus.alphabet.decode(ids) == content and corpus.name == "my [text].txt"
    one_line = Corpus.of("one line", "abc" * 40, "characters")
    assert one_line.at_length(8) is one_line and len(one_line.alphabet) == 3


def test_a_byte_order_mark_is_left_out_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "marked.txt").write_bytes(b"\xef\xbb\xbf" + b"to be " * 9)
    with pytest.warns(UserWarning, match="byte order mark"):
        corpus = text(str(tmp_path / "marked.txt"))
    assert "".join(corpus.alphabet) == " beot"


def test_a_tokenizer_with_gaps_has_a_symbol_for_its_largest_id() -> None:
    words = {"to": 0, " be": 3, "?": 9}
    alphabet = Subwords(Tokenizer(models.WordLevel(words, "?")).to_str())
    assert len(alphabet) == 10 and len([*alphabet]) == 10
    assert max(alphabet.encode("?")) < len(alphabet)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [json.dumps({"line": line, "number": 1}) for line in ("To be,", "or not")]
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "rows.jsonl").write_text("\n".join(rows))
    (tmp_path / "latin").write_bytes(b"Gr\xf6\xdfe")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "many").write_text("".join(map(chr, range(1000, 2001))))
    unknown = Tokenizer(models.WordLevel({"?": 0}, "?"))  # it does not give a text back
    (tmp_path / "unknown.json").write_text(unknown.to_str())
    (tmp_path / "words").write_text("To be, or not to be\n" * 30)
    return tmp_path


@pytest.mark.parametrize(("limit", "wanted"), [(99, "To be,\nor not\n"), (8, "To be,\no")])
def test_a_column_of_a_directory(folder: Path, limit: int, wanted: str) -> None:
    corpus = hub(str(folder / "rows"), column="line", limit=limit)
    assert corpus.alphabet.decode(torch.cat([corpus.train, corpus.val]).tolist()) == wanted


def test_empty_rows_of_a_column_are_left_out(tmp_path: Path) -> None:
    lines = ["To be,", None, "or not", None]
    rows = [json.dumps({"line": line, "never": None}) for line in lines]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    corpus = hub(str(tmp_path), column="line")
    read = corpus.alphabet.decode(torch.cat([corpus.train, corpus.val]).tolist())
    assert read == "To be,\nor not\n"
    with pytest.raises(BadInput, match=r"data\.column = never"):
        hub(str(tmp_path), column="never")


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda d: text(f"{d}/none"), "data.path"),
        (lambda d: text(f"{d}/latin"), "data.path"),
        (lambda d: text(f"{d}/empty"), "empty"),
        (lambda d: text(f"{d}/many"), "data.tokenizer=bytes"),
        (lambda d: text(f"{d}/words", f"{d}/rows/rows.jsonl"), "data.tokenizer"),
        (lambda d: text(f"{d}/words", f"{d}/unknown.json"), "data.tokenizer"),
        (lambda d: text(f"{d}/words").check_length(60), "model.block_size = 60"),
        (lambda d: hub(f"{d}/nowhere"), "data.dataset"),
        (lambda d: hub(f"{d}/rows", column="txt"), "data.column = txt"),
        (lambda d: hub(f"{d}/rows", column="number"), "data.column = number"),
        (lambda d: hub(f"{d}/rows", column="line", split="test"), "data.dataset"),
    ],
)
def test_what_cannot_be_read_is_named(
    make: Callable[[Path], Corpus], named: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(BadInput) as caught:
        make(folder)
    assert named in str(caught.value) and "\n" not in str(caught.value)


def test_a_limit_reads_little_more_than_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are streamed: those behind the limit are not taken."""
    taken = []

    def stream(*args: Any, **options: Any) -> Any:
        assert options["streaming"]
        return ({"text": taken.append(n) or "x" * 9} for n in range(1000))

    monkeypatch.setattr("datasets.load_dataset", stream)
    assert len(hub("any", limit=95).train) == int(0.9 * 95) and len(taken) == 10
