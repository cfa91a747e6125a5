"""The quality of a translator: BLEU, exact matches, and accuracy of its alignments."""

from collections.abc import Sequence
from typing import Any

import torch
from pair_batches import batch_of
from sentence_pairs import LONGEST, Pairs, decode
from tavi import Pair
from torch import Tensor
from translator import Translator

from attnlab.errors import BadInput


def sacrebleu() -> Any:
    """The package, which is an extra.

    Raises:
        BadInput: it is not installed.
    """
    try:
        import sacrebleu
    except ImportError as error:
        raise BadInput(
            "BLEU is measured by sacrebleu, which is missing: pip install sacrebleu"
        ) from error
    return sacrebleu


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU (Papineni et al. 2002) from 0 to 100, by sacrebleu (Post 2018).

    Sentences are already words separated by blanks, so sacrebleu does not tokenize them.

    Raises:
        BadInput: sacrebleu is not installed.
    """
    metric = sacrebleu().metrics.BLEU(tokenize="none")
    return float(metric.corpus_score(list(hypotheses), [list(references)]).score)


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Share of sentences without an error."""
    right = sum(h == r for h, r in zip(hypotheses, references, strict=True))
    return right / len(references)


def quality(net: Translator, pairs: Pairs) -> dict[str, float]:
    """BLEU, exact matches, and, for pairs with alignments, their accuracy, over the whole
    validation part.

    Args:
        net: the model, in evaluation mode.
        pairs: the pairs that it was trained on.

    Raises:
        BadInput: sacrebleu is not installed.
    """
    said = translations(net, pairs.val, pairs.alphabet)
    meant = [" ".join(pair.target) for pair in pairs.val]
    found = {"bleu": bleu(said, meant), "exact_match": exact_match(said, meant)}
    if pairs.is_aligned:
        patterns = alignments(net, pairs.val, pairs.alphabet)
        found["alignment_accuracy"] = alignment_accuracy(pairs.val, patterns)
    return found


def translations(
    net: Translator, pairs: Sequence[Pair], alphabet: tuple[str, ...], batch_size: int = 100
) -> list[str]:
    """Greedy translations of the source sentences, with words separated by blanks.

    Args:
        net: the model, in evaluation mode.
        pairs: the pairs to translate.
        alphabet: the alphabet of the model.
        batch_size: number of sentences at once.
    """
    device = net.head.weight.device
    said = []
    for start in range(0, len(pairs), batch_size):
        batch = batch_of(pairs[start : start + batch_size], alphabet)
        ids = net.translate(batch.source.to(device), LONGEST)
        said += [" ".join(decode(row, alphabet)) for row in ids.tolist()]
    return said


@torch.no_grad()
def alignments(
    net: Translator, pairs: Sequence[Pair], alphabet: tuple[str, ...], batch_size: int = 100
) -> list[Tensor]:
    """For each pair, the attention weights with which each word of its translation is predicted.

    Returns:
        one tensor (words of the target + 1, words of the source + 1) per pair; the last word is
        `END`.
    """
    device = net.head.weight.device
    found = []
    for start in range(0, len(pairs), batch_size):
        some = pairs[start : start + batch_size]
        batch = batch_of(some, alphabet)
        pattern = net.align(batch.source.to(device), batch.given.to(device)).float().cpu()
        found += [
            one[: len(pair.target) + 1, : len(pair.source) + 1]
            for one, pair in zip(pattern, some, strict=True)
        ]
    return found


def alignment_accuracy(pairs: Sequence[Pair], patterns: Sequence[Tensor]) -> float:
    """Share of content words whose largest weight is on the source word that they translate.

    Args:
        pairs: pairs with alignments.
        patterns: the result of `alignments`.
    """
    right = total = 0
    for pair, pattern in zip(pairs, patterns, strict=True):
        looked = pattern.argmax(-1).tolist()
        for t, (of, counts) in enumerate(zip(pair.alignment, pair.content, strict=True)):
            right += counts and looked[t] == of
            total += counts
    return right / total
