"""Checks of the exercises on scores, softmax, and counterexamples.

Letters: B batch, H heads, T queries, S keys, C channels, D channels of a head.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from attnlab.attention import attention, build_mask, causal, finite_fill

from .comparison import KEYS_LAST, Wrong, as_tensor, called, close, compare, normal

WIDTH = "D is the width of a query, q.shape[-1]."


def check_scores(answer: Callable[..., Any]) -> None:
    """scores(q, k): scaled dot products."""
    for shape in ((5, 3), (2, 3, 5, 3)):  # the second has heads
        q, k = normal(*shape), normal(*shape[:-2], 7, shape[-1], seed=1)
        dots = q @ k.mT
        T = shape[-2]
        D = shape[-1]
        mistakes = [
            (dots, "The scores are not scaled: divide them by sqrt(D)."),
            (dots / D, "They are divided by D: divide by sqrt(D), and only once."),
            (dots * math.sqrt(D), "They are multiplied by sqrt(D): divide."),
            (dots / math.sqrt(7), f"They are divided by sqrt(S), the number of keys. {WIDTH}"),
            (dots / math.sqrt(T), f"They are divided by sqrt(T), the number of queries. {WIDTH}"),
            (dots.mT / math.sqrt(D), "Queries and keys are exchanged: queries belong in rows."),
            ((dots / math.sqrt(D)).softmax(-1), "This is the softmax: return the scores."),
        ]
        compare(called(answer, q, k), dots / math.sqrt(D), mistakes)


def check_softmax(answer: Callable[..., Any]) -> None:
    """softmax(scores): over the keys, without overflow."""
    for shape in ((4, 6), (2, 3, 4, 6)):
        s = normal(*shape)
        e = s.exp()
        mistakes = [
            (s.softmax(-2), f"The softmax runs over the queries. {KEYS_LAST}"),
            (s.softmax(0), f"The softmax runs over the first axis. {KEYS_LAST}"),
            (s.softmax(1), f"The softmax runs over the second axis. {KEYS_LAST}"),
            (
                e / e.sum(),
                "All numbers together sum to 1, but each row must sum to 1: sum over dim=-1.",
            ),
            (e, "Rows do not sum to 1: divide by the sum over dim=-1, with keepdim=True."),
            (s / s.sum(-1, keepdim=True), "Take exp before you divide by the sum."),
        ]
        compare(called(answer, s), s.softmax(-1), mistakes)
    large = torch.tensor([[1000.0, 999.0, 0.0]])
    if not close(called(answer, large), large.softmax(-1)):
        raise Wrong("A score of 1000 overflows in exp: subtract the largest score of a row first.")


def check_attention(answer: Callable[..., Any]) -> None:
    """attention(q, k, v): no mask."""
    q, k, v = (normal(2, 3, 5, 5, seed=seed) for seed in range(3))  # T = D, so no shape is wrong
    s, D = q @ k.mT, 5
    scaled = s / math.sqrt(D)
    mistakes = [
        (s.softmax(-1) @ v, "The scores are not scaled: divide them by sqrt(D)."),
        (scaled.softmax(-2) @ v, f"The softmax runs over the queries. {KEYS_LAST}"),
        (scaled.softmax(1) @ v, f"The softmax runs over the heads. {KEYS_LAST}"),
        (
            s.softmax(-1) / math.sqrt(D) @ v,
            "The scale comes after the softmax: divide the scores, not the weights.",
        ),
        ((s / D).softmax(-1) @ v, "The scores are divided by D: divide by sqrt(D), only once."),
        (scaled.softmax(-1).mT @ v, "The pattern is transposed: pattern @ v, queries in rows."),
        (scaled.softmax(-1) @ k, "The keys are averaged instead of the values."),
        (scaled @ v, "The softmax is missing."),
        (scaled.mT.softmax(-1) @ v, "Queries and keys are exchanged: q @ k.mT."),
        (scaled.softmax(-1), "This is the pattern: return the average of the values."),
    ]
    compare(called(answer, q, k, v), attention(q, k, v)[0], mistakes)


def check_additive_scores(answer: Callable[..., Any]) -> None:
    """additive_scores(q, k, W, U, v): Bahdanau's scores."""
    q, k = normal(2, 5, 4), normal(2, 6, 3, seed=1)
    W, U, v = normal(7, 4, seed=2), normal(7, 3, seed=3), normal(7, seed=4)
    a, b = (q @ W.mT)[:, :, None], (k @ U.mT)[:, None]
    mistakes = [
        (
            (a + b) @ v,
            "The tanh is missing. Without it, the query adds the same number to all scores of its "
            "row, which cancels in the softmax.",
        ),
        (((a + b) @ v).tanh(), "The tanh comes before v: v . tanh(...), not tanh(v . ...)."),
        ((a.tanh() + b.tanh()) @ v, "Add W q and U k first, then take one tanh of the sum."),
        ((a + b).tanh().sum(-1), "v is missing: it weights the sum over the hidden channels."),
        ((a * b).tanh() @ v, "W q and U k are multiplied: add them."),
    ]
    compare(called(answer, q, k, W, U, v), (a + b).tanh() @ v, mistakes)


def check_finite_fill_leak(answer: Callable[..., Any]) -> None:
    """finite_fill_leak(): queries and keys for which a fill of -1e4 does not mask."""
    q, k = map(as_tensor, answer())
    if not (q.shape == k.shape and q.ndim == 2 and len(q) > 1):
        raise Wrong("Return q and k, each (T, D), with T of at least 2.")
    one_hot = torch.eye(len(q), dtype=q.dtype)[None, None]
    pattern = finite_fill(
        q[None, None], k[None, None], one_hot, mask=build_mask(causal, len(q)),
        scale=q.shape[-1] ** -0.5, dropout=0.0,
    )[0, 0]  # fmt: skip
    ahead = float(pattern.triu(1).sum(-1).max())
    if not ahead > 0.5:
        raise Wrong(
            f"At most {ahead:.2g} of a row's weight is on the future; more than 0.5 is "
            "required. The fill gets the weight where all allowed scores are far below -1e4: make "
            "q . k very negative."
        )


def check_same_without_scale(answer: Callable[..., Any]) -> None:
    """same_without_scale(q, k): new q and k, which with scale 1 give the pattern of q and k."""
    q, k = normal(5, 16), normal(6, 16, seed=1)
    v = torch.eye(6, dtype=q.dtype)
    pair = answer(q, k)
    if not (isinstance(pair, tuple) and len(pair) == 2):
        raise Wrong("Return two tensors, the new q and k.")
    compare(
        attention(*map(as_tensor, pair), v, scale=1.0)[1],
        attention(q, k, v)[1],
        [
            (attention(q, k, v, scale=1.0)[1], "q and k are unchanged: make them smaller."),
            (
                attention(q, k, v, scale=1 / 16)[1],
                "The scores are divided by D, because q and k are each divided by sqrt(D): divide "
                "each by D^(1/4).",
            ),
            (attention(q, k, v, scale=4.0)[1], "You multiplied by the factor: divide by it."),
        ],
    )


def check_late_mask_leak(answer: Callable[..., Any]) -> None:
    """late_mask_leak(): scores that differ only in the future, but give different patterns."""
    first, second = map(as_tensor, answer())
    if not (first.shape == second.shape and first.ndim == 2):
        raise Wrong("Return two tensors of scores, each (T, T).")
    mask = build_mask(causal, len(first))
    if not torch.equal(first[mask], second[mask]):
        raise Wrong("The scores may differ only above the diagonal, in the future.")
    seen = [(s.softmax(-1) * mask) for s in (first, second)]
    if not float((seen[0] - seen[1]).abs().max()) > 0.01:
        raise Wrong("The masked weights are the same: make a score of the future much larger.")
