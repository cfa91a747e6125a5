"""Checks of the exercises on masks and kernels.

Letters: B batch, H heads, T queries, S keys, C channels, D channels of a head.
"""

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attncheck import assert_kernel_equal
from attnlab.attention import attention, build_mask, causal
from attnlab.attention.core import masked_softmax

from .comparison import KEYS_LAST, Wrong, as_tensor, close, compare, examine, normal


def check_causal_mask(answer: Callable[..., Any]) -> None:
    """causal_mask(T)."""
    for T in (4, 1, 7):
        got = as_tensor(answer(T))
        right = build_mask(causal, T)
        if got.dtype != torch.bool:
            raise Wrong(f"The mask is {got.dtype}: a mask must be bool, True = may attend.")
        everything = torch.ones(T, T, dtype=torch.bool)
        mistakes = [
            (
                right.mT,
                "The mask is transposed: queries, in rows, see the future. Use key <= query.",
            ),
            (~right, "The polarity is inverted: True must mean may attend."),
            (~right.mT, "The diagonal is off by one: a query must see itself, key <= query."),
            (everything.tril(1), "The diagonal is off by one: a query sees one key ahead."),
            (everything, "Nothing is masked."),
        ]
        compare(got, right, mistakes)


def check_masked_softmax(answer: Callable[..., Any]) -> None:
    """masked_softmax(scores, mask)."""
    mask = build_mask(causal, 5)
    for shape in ((5, 5), (2, 3, 5, 5)):
        s = normal(*shape)
        before = s.clone()
        got = answer(s, mask)
        if not torch.equal(s, before):
            raise Wrong("It changes the scores of its caller: masked_fill, not masked_fill_.")
        compare(got, masked_softmax(s, mask), _wrong_softmaxes(s, mask))
    answer(normal(5, 5).half(), mask)  # -1e9 does not fit into fp16
    for size in (2e4, 2e9):
        low = normal(5, 5).float() - size
        ahead = float(as_tensor(answer(low, mask)).triu(1).max())
        if ahead != 0:
            raise Wrong(
                f"With scores near {-size:g}, blocked keys have a weight of {ahead:.2g}: the fill "
                "is a finite number, below which scores can fall. Fill with float('-inf')."
            )
    future = normal(5, 5) + 2000.0 * ~mask
    if not close(as_tensor(answer(future, mask)), masked_softmax(future, mask)):
        raise Wrong(
            "If a blocked score is large, the allowed weights underflow before the mask acts. "
            "Mask the scores, not the weights."
        )


def _wrong_softmaxes(s: Tensor, mask: Tensor) -> list[tuple[Tensor, str]]:
    """The results of mistakes, and the mistakes."""
    inverted = "The mask is inverted: True means may attend, so fill where it is False."
    return [
        (
            s.softmax(-1) * mask,
            "The mask comes after the softmax: blocked keys are part of the denominator, so "
            "rows do not sum to 1. Mask the scores.",
        ),
        (
            s.masked_fill(~mask, 0.0).softmax(-1),
            "Blocked scores are 0, or close to it, and e^0 = 1: fill with float('-inf').",
        ),
        (
            (s + mask).softmax(-1),
            "The mask is added as 0 and 1: fill with float('-inf') where it is False.",
        ),
        (s.masked_fill(mask, -math.inf).softmax(-1), inverted),
        (s.masked_fill(mask, -1e9).softmax(-1), inverted),
        (
            s.masked_fill(~mask, -math.inf).softmax(-2),
            f"The softmax runs over the queries. {KEYS_LAST}",
        ),
        (s.softmax(-1), "The mask is ignored. Use the tensor that masked_fill returns."),
        (s.masked_fill(~mask, -math.inf), "These are the masked scores: take the softmax."),
    ]


def check_kernel(answer: Callable[..., Any]) -> None:
    """kernel(q, k, v, *, mask, scale, dropout): the interface of attnlab's kernels."""
    missing = {"mask", "scale", "dropout"} - set(inspect.signature(answer).parameters)
    if missing:
        raise Wrong(f"It must take {', '.join(sorted(missing))}, as attnlab's kernels do.")
    q, k, v = (normal(2, 3, 5, 4, seed=seed) for seed in range(3))
    answer(q, k, v, mask=build_mask(causal, 5), scale=0.3, dropout=0.0)  # raises its own error
    examine(
        assert_kernel_equal,
        lambda q, k, v, mask: answer(q, k, v, mask=mask, scale=q.shape[-1] ** -0.5, dropout=0.0),
    )
    dropped = partial(answer, q, k, v, mask=build_mask(causal, 5), scale=0.3, dropout=0.5)
    if torch.equal(as_tensor(dropped()), as_tensor(dropped())):
        raise Wrong("Dropout has no effect: drop entries of the pattern with F.dropout.")


def check_decoder_mask(answer: Callable[..., Any]) -> None:
    """decoder_mask(lengths, T): causal, and no padded key."""
    lengths = torch.tensor([4, 2, 1])
    T = 4
    lower = build_mask(causal, T).expand(3, T, T)
    keys = (torch.arange(T) < lengths[:, None])[:, None, :].expand(3, T, T)
    longer = (torch.arange(T) <= lengths[:, None])[:, None, :]
    mistakes = [
        (lower, "The padding is ignored: all texts have the same mask."),
        (keys.mT & lower, "Queries are masked instead of keys: lengths belong to the last axis."),
        (keys | lower, "The two masks are joined by or: a key must pass both, so use &."),
        (keys, "The causal mask is missing."),
        (longer & lower, "A text of length n has the keys 0 to n - 1: key < length."),
        (~(keys & lower), "The polarity is inverted: True must mean may attend."),
        (keys[:1] & lower, "All texts have the length of the first."),
        (keys & lower.mT, "The causal mask is transposed: key <= query."),
        (keys.flip(-1) & lower, "The padding is at the end of a text, not at its beginning."),
    ]
    compare(answer(lengths, T), keys & lower, mistakes)


def check_cross_attention(answer: Callable[..., Any]) -> None:
    """cross_attention(q, k, v, may_attend): the memory has padding."""
    B = T = 3  # equal on purpose: (B, S) then broadcasts as (T, S) without an error
    q, k, v = normal(B, 2, T, 4), normal(B, 2, 5, 4, seed=1), normal(B, 2, 5, 4, seed=2)
    padding = torch.arange(5) < torch.tensor([5, 3, 1])[:, None]  # (B, S)
    may = padding[:, None, None]
    right, _ = attention(q, k, v, may_attend=may)
    everything, pattern = attention(q, k, v)
    causal_too = torch.ones(T, 5, dtype=torch.bool).tril()
    mistakes = [
        (
            attention(q, k, v, may_attend=padding)[0],
            "The mask (B, S) was broadcast as (T, S), because B = T here: use may[:, None, None].",
        ),
        (everything, "The mask is ignored: padded keys are read."),
        (attention(q, k, v, may_attend=may, scale=1.0)[0], "The scores are not scaled."),
        (pattern * may @ v, "The mask comes after the softmax: rows do not sum to 1."),
        (
            attention(q, k, v, may_attend=may & causal_too)[0],
            "Queries and keys belong to different texts: there is no causal mask between them.",
        ),
    ]
    compare(answer(q, k, v, padding), right, mistakes)
