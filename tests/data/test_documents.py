"""Documents of a text, each in a row of its own."""

from functools import partial

import pytest
import torch
from torch import Tensor

from attnlab.attention import SelfAttention
from attnlab.data.alphabets import Characters
from attnlab.data.contract import IGNORED, Batch
from attnlab.data.corpus import Corpus, one_by_one
from attnlab.data.plays import plays
from attnlab.errors import BadInput
from attnlab.init import init_weights
from attnlab.model import GPT

T, V = 9, 7
BEGINS = torch.zeros(3, T, dtype=torch.bool)
BEGINS[0, [0, 4]] = True
BEGINS[1, [1, 2, 8]] = True  # the first symbol is of a document that began before
X = torch.randint(V, (3, T), generator=torch.Generator().manual_seed(0))
Y = X.roll(-1, 1)


def by_hand(x: Tensor, y: Tensor, begins: Tensor, off: int = 0) -> list[list[tuple[int, int]]]:
    """The symbols of each document with their targets, one after the other."""
    found: list[list[tuple[int, int]]] = []
    for b, t in torch.cartesian_prod(torch.arange(len(x)), torch.arange(x.shape[1])).tolist():
        if t == 0 or begins[b, t - off]:
            found.append([])
        found[-1].append((int(x[b, t]), int(y[b, t])))
    return found


def read(batch: Batch) -> list[list[tuple[int, int]]]:
    """Each row up to its padding."""
    rows = []
    for x, y in zip(*batch, strict=True):
        rows.append([(int(a), int(b)) for a, b in zip(x, y, strict=True) if b != IGNORED])
    return rows


def test_documents_are_rows() -> None:
    x, y = one_by_one(X, Y, BEGINS)
    assert read((x, y)) == by_hand(X, Y, BEGINS) and len(x) == 7
    assert read((x, y)) != by_hand(X, Y, BEGINS, off=1)
    for row in y:  # padding only behind
        known = (row != IGNORED).tolist()
        assert known == sorted(known, reverse=True)


def test_a_model_computes_what_a_mask_between_documents_gives() -> None:
    """Without positions, each symbol has the logits of the packed row, of which it sees only its
    own document."""
    number = BEGINS.cumsum(1)
    own, _ = one_by_one(X, Y, BEGINS)
    expected, found = [], net_of()(own)
    for b in range(len(X)):

        def same_document(q: Tensor, k: Tensor, row: Tensor = number[b]) -> Tensor:
            return (k <= q) & (row[k] == row[q])

        expected.append(net_of(may_attend=same_document)(X[b : b + 1])[0])
    packed = torch.cat(expected)
    apart = found[one_by_one(X, Y, BEGINS)[1] != IGNORED]
    torch.testing.assert_close(apart, packed, rtol=0, atol=1e-5)
    seeing_all = net_of()(X).flatten(0, 1)  # the planted error
    assert (seeing_all - packed).abs().max() > 1e-3


def net_of(**settings: object) -> GPT:
    attn = partial(SelfAttention, **settings)  # type: ignore[arg-type]
    net = GPT(attn, V, block_size=T, n_layer=2, n_head=2, n_embd=8, positions="none")
    init_weights(net, 0, qk_std=1.0)
    return net.eval()


TEXT = "".join(f"<{'abc'[n % 3] * (n % 5 + 1)}" for n in range(80))
APART = Corpus.of("n", TEXT, Characters("<abc"), beginning="<")
PACKED = Corpus.of("n", TEXT, Characters("<abc"))


def targets(batches: list[Batch]) -> list[int]:
    found = torch.cat([y.flatten() for _, y in batches])
    return found[found != IGNORED].tolist()


def test_the_same_symbols_are_predicted_with_and_without_documents() -> None:
    for part in ("val", "train"):
        assert targets(APART.held_out(part, 8)) == targets(PACKED.held_out(part, 8))
    draws = [
        corpus.train_draw(8)(20, torch.Generator().manual_seed(1)) for corpus in (APART, PACKED)
    ]
    assert targets(draws[:1]) == targets(draws[1:])
    assert APART.sha256 == PACKED.sha256 and APART.bits_per_byte(1.0) == PACKED.bits_per_byte(1.0)


def crossings(corpus: Corpus, length: int) -> int:
    """How often a document begins inside a row."""
    begins = corpus.alphabet.encode({"n": "<", "plays": "SCENE: "}[corpus.name])
    drawn = corpus.train_draw(length)(300, torch.Generator().manual_seed(2))
    batches = [drawn, corpus.windows("val", length, 9), *corpus.held_out("val", length)]
    rows: list[list[int]] = []
    for batch in batches:
        rows += [[x for x, _ in row] for row in read(batch)]
    return sum(row[t:][: len(begins)] == begins for row in rows for t in range(1, length))


def test_no_row_holds_two_documents() -> None:
    assert crossings(APART, 5) == 0 and crossings(PACKED, 5) > 100
    assert crossings(plays(20_000, documents=True), 40) == 0
    assert crossings(plays(20_000), 40) > 10


def test_a_document_as_long_as_a_window_is_needed() -> None:
    APART.check_length(5)
    with pytest.raises(BadInput, match="no document"):
        APART.check_length(7)
