"""Measures with known answers."""

import sys

import pytest
import torch
import translation_measures as measures
from tavi import Pair

from attnlab.errors import BadInput


def test_bleu_of_the_same_text_is_100_and_of_another_0() -> None:
    said = ["a b c d e", "f g h i"]
    assert measures.bleu(said, said) == pytest.approx(100)
    assert measures.bleu(["x y z w", "u v x y"], said) == pytest.approx(0)


def test_bleu_against_its_definition() -> None:
    """The last of six words is wrong: precisions 5/6, 4/5, 3/4, 2/3, no brevity penalty."""
    expected = 100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25
    assert measures.bleu(["a b c d e X"], ["a b c d e f"]) == pytest.approx(expected)


def test_exact_match_counts_whole_sentences() -> None:
    assert measures.exact_match(["a b", "c", "d"], ["a b", "c d", "d"]) == pytest.approx(2 / 3)


def test_alignment_accuracy_counts_only_content_words() -> None:
    pair = Pair(("the", "dog"), ("kela", "li"), (1, 0), (True, False))
    right = torch.tensor([[0.1, 0.8, 0.1], [0.9, 0.1, 0.0], [0.0, 0.0, 1.0]])
    wrong = right[:, [1, 0, 2]]
    assert measures.alignment_accuracy([pair], [right]) == 1.0
    assert measures.alignment_accuracy([pair], [wrong]) == 0.0
    assert measures.alignment_accuracy([pair, pair], [right, wrong]) == 0.5


def test_without_sacrebleu_one_sentence_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(BadInput, match=r"pip install sacrebleu"):
        measures.bleu(["a"], ["a"])
