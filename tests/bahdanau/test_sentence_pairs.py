"""Sentence pairs: deterministic, disjoint, and read from a user's file with clear errors."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentence_pairs import END, PAD, SPECIAL, START, UNKNOWN, decode, encode, pairs
from tavi import Pair

from attnlab.errors import BadInput


def test_generated_pairs_are_a_function_of_their_seed() -> None:
    a, b, other = pairs(train=50, val=10), pairs(train=50, val=10), pairs(train=50, val=10, seed=1)
    assert (a.train, a.val, a.sha256) == (b.train, b.val, b.sha256)
    assert a.sha256 != other.sha256


def test_no_sentence_is_in_both_parts_and_none_twice() -> None:
    data = pairs()
    sources = [pair.source for pair in (*data.train, *data.val)]
    assert (len(data.train), len(data.val)) == (4000, 500)
    assert len(set(sources)) == 4500


def test_the_training_part_contains_every_validation_word() -> None:
    data = pairs()
    words = {word for pair in data.val for word in (*pair.source, *pair.target)}
    assert words <= set(data.alphabet)
    assert data.alphabet[:4] == SPECIAL
    assert data.is_aligned


@given(st.lists(st.sampled_from(pairs(train=50, val=10).alphabet[4:]), max_size=20))
def test_ids_and_back(words: list[str]) -> None:
    alphabet = pairs(train=50, val=10).alphabet
    ids = encode(words, alphabet)
    assert not {PAD, START, END, UNKNOWN} & set(ids)
    assert decode([*ids, END, PAD, PAD], alphabet) == words


def test_an_unseen_word_becomes_unknown() -> None:
    assert encode(["zzz"], pairs(train=50, val=10).alphabet) == [UNKNOWN]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"train": 0}, r"data\.train = 0 must be at least 1"),
        ({"val": 0}, r"data\.val = 0 must be at least 1"),
        ({"seed": -1}, r"data\.seed = -1 must be at least 0"),
        ({"train": 200_000}, r"data\.train = 200000 .* more than 100,000"),
    ],
)
def test_numbers_out_of_range(changed: dict[str, int], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        pairs(**changed)


def write(folder: Path, content: str | bytes) -> str:
    file = folder / "mine.tsv"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(file)


def test_a_users_file_with_a_third_column_and_several_translations(tmp_path: Path) -> None:
    lines = [f"go {n} .\tva {n} !\tCC-BY" for n in range(20)]
    lines.insert(10, "go 9 .\tmarche 9 !")
    data = pairs(write(tmp_path, "\n".join(lines) + "\n\n"))
    assert data.name == "mine.tsv"
    assert [pair.source for pair in data.val] == [("go", n, ".") for n in ("9", "9", "19")]
    assert not {p.source for p in data.val} & {p.source for p in data.train}
    assert Pair(("go", "0", "."), ("va", "0", "!")) in data.train
    assert not data.is_aligned


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("a\tb\nno tab here\n", "line 2 of data.path = .* has no tab"),
        ("a\tb\na\t \n", "line 2 .* its translation has 0 words"),
        ("\tb\n", "line 1 .* its source has 0 words"),
        (" ".join("x" * 61) + "\tb\n", "line 1 .* its source has 61 words; it must have 1 to 60"),
        ("a\tb\n", "has 1 different sentences; at least 10"),
        (b"\xff\xfe", "is not UTF-8: byte 0"),
    ],
)
def test_bad_files_of_pairs_are_refused(
    content: str | bytes, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=sentence):
        pairs(write(tmp_path, content))


def test_a_missing_file_of_pairs_is_refused() -> None:
    with pytest.raises(BadInput, match=r"data\.path = nowhere\.tsv cannot be read: No such file"):
        pairs("nowhere.tsv")
