"""Checks of the exercises on heads and layers.

Letters: B batch, H heads, T queries, S keys, C channels, D channels of a head.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attncheck import assert_causal, assert_past_used, assert_rows_independent
from attnlab.attention import attention, build_mask, causal

from .comparison import Wrong, as_tensor, compare, examine, normal


def check_split_heads(answer: Callable[..., Any]) -> None:
    """split_heads(x, n_head)."""
    B, T, H, D = 2, 5, 3, 4
    x = normal(B, T, H * D)
    right = x.view(B, T, H, D).transpose(1, 2)
    mistakes = [
        (
            x.reshape(B, H, T, D),
            "The shape is right, but tokens are mixed: view as (B, T, H, D) and transpose(1, 2).",
        ),
        (x.view(B, T, H, D), "The transpose is missing: (B, T, H, D) -> (B, H, T, D)."),
        (
            x.view(B, T, D, H).permute(0, 3, 1, 2),
            "Channels are interleaved: head h has the channels h D to (h + 1) D, so view as "
            "(B, T, H, D), not as (B, T, D, H).",
        ),
        (right[:, :1].expand(B, H, T, D), "All heads have the channels of the first."),
    ]
    compare(answer(x, H), right, mistakes)


def check_merge_heads(answer: Callable[..., Any]) -> None:
    """merge_heads(y)."""
    B, H, T, D = 2, 3, 5, 4
    y = normal(B, H, T, D)
    mistakes = [
        (
            y.reshape(B, T, H * D),
            "The shape is right, but tokens and heads are mixed: transpose(1, 2) before merging.",
        ),
        (
            y.permute(0, 2, 3, 1).flatten(2),
            "Channels are interleaved: flatten (B, T, H, D), not (B, T, D, H).",
        ),
        (y.mean(1), "The heads are averaged: put their channels side by side."),
        (y.sum(1), "The heads are added: put their channels side by side."),
    ]
    compare(answer(y), y.transpose(1, 2).flatten(2), mistakes)


def check_repeat_kv(answer: Callable[..., Any]) -> None:
    """repeat_kv(k, n_head): for grouped-query attention."""
    k = normal(2, 3, 5, 4)
    mistakes = [
        (
            k.repeat(1, 2, 1, 1),
            "The heads are tiled, 0 1 2 0 1 2, but query head h uses key-value head "
            "h // (H / H_kv), 0 0 1 1 2 2: use repeat_interleave.",
        ),
        (k.repeat_interleave(2, dim=0), "The batch is repeated, not the heads: dim=1."),
        (k.repeat_interleave(2, dim=2), "The positions are repeated, not the heads: dim=1."),
        (k.repeat_interleave(6, dim=1), "Repeat each head H / H_kv times, not H times."),
        (k, "Nothing is repeated: return H heads."),
        (k[:, :1].expand(2, 6, 5, 4), "All query heads have the first key-value head."),
    ]
    compare(answer(k, 6), k.repeat_interleave(2, dim=1), mistakes)


def check_multi_head(answer: Callable[..., Any]) -> None:
    """multi_head(x, W_q, W_k, W_v, W_o, n_head): causal."""
    B, T, H, C = 2, 5, 3, 12
    x = normal(B, T, C)
    W_q, W_k, W_v, W_o = (normal(C, C, seed=seed) / math.sqrt(C) for seed in range(1, 5))
    qkv = [x @ W for W in (W_q, W_k, W_v)]
    turned = [x @ W.mT for W in (W_q, W_k, W_v)]
    right = _merge(_mix(*_split(qkv, H)))
    wrong = [*_wrong_scores(*_split(qkv, H)), *_wrong_heads(qkv, H)]
    mistakes = [(y @ W_o, sentence) for y, sentence in wrong]
    mistakes += [
        (right, "The output projection W_o is missing."),
        (
            _merge(_mix(*_split(turned, H))) @ W_o.mT,
            "The weights are transposed: here Q = X W_q, not X W_q^T as in nn.Linear.",
        ),
    ]
    compare(answer(x, W_q, W_k, W_v, W_o, H), right @ W_o, mistakes)


def _split(qkv: list[Tensor], H: int) -> list[Tensor]:
    """(B, T, C) -> (B, H, T, D), each."""
    return [y.unflatten(2, (H, -1)).transpose(1, 2) for y in qkv]


def _merge(y: Tensor) -> Tensor:
    """(B, H, T, D) -> (B, T, C)."""
    return y.transpose(1, 2).flatten(2)


def _mix(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
    """Causal attention, (..., T, D)."""
    return attention(q, k, v, may_attend=build_mask(causal, q.shape[-2]), scale=scale)[0]


def _wrong_scores(q: Tensor, k: Tensor, v: Tensor) -> list[tuple[Tensor, str]]:
    """What mistakes in the scores give before the output projection, (B, T, C)."""
    _, H, T, D = q.shape
    flipped = build_mask(causal, T).mT
    return [
        (
            _merge(_mix(q, k, v, (H * D) ** -0.5)),
            "The scores are divided by sqrt(C), with the width of all heads: D is C // H.",
        ),
        (_merge(_mix(q, k, v, 1.0)), "The scores are not scaled: divide them by sqrt(D)."),
        (_merge(_mix(q, k, v, 1 / D)), "The scores are divided by D: divide by sqrt(D)."),
        (_merge(attention(q, k, v)[0]), "The causal mask is missing."),
        (
            _merge(attention(q, k, v, may_attend=flipped)[0]),
            "The causal mask is transposed: queries see the future.",
        ),
    ]


def _wrong_heads(qkv: list[Tensor], H: int) -> list[tuple[Tensor, str]]:
    """What wrong heads give before the output projection, (B, T, C)."""
    B, T, C = qkv[0].shape
    q, k, v = _split(qkv, H)
    mixed = _mix(q, k, v)
    D = C // H
    first = [y[:, :1].expand(y.shape) for y in (q, k)]
    viewed = [y.reshape(B, H, T, D) for y in qkv]
    return [
        (_mix(*qkv, C**-0.5), "There is one head of full width: split the channels."),
        (_mix(*qkv, D**-0.5), "There is one head of full width: split the channels."),
        (
            _merge(_mix(*first, v)),
            "All heads share the pattern of the first: each has queries and keys of its own.",
        ),
        (
            _merge(mixed[:, :1].expand(mixed.shape)),
            "All heads are the first: each has its own slice of the channels.",
        ),
        (
            _merge(_mix(*viewed)),
            "The heads are split without the transpose: view as (B, T, H, D), then "
            "transpose(1, 2).",
        ),
        (
            mixed.reshape(B, T, C),
            "The heads are merged without the transpose: transpose(1, 2), then reshape.",
        ),
        (
            _mix(*viewed).reshape(B, T, C),
            "The heads are split and merged without the transpose.",
        ),
    ]


def check_layer(answer: Callable[..., Any]) -> None:
    """Layer(n_embd, n_head, dropout): a module, examined by the checkup."""
    torch.manual_seed(0)
    layer = answer(24, 3, 0.2)
    if not isinstance(layer, torch.nn.Module):
        raise Wrong("Layer must be a torch.nn.Module.")
    x = torch.randn(2, 7, 24)
    layer.eval()
    if (got := as_tensor(layer(x))).shape != x.shape:
        raise Wrong(f"It returns the shape {tuple(got.shape)}, not {tuple(x.shape)}.")
    if not torch.equal(layer(x), layer(x)):
        raise Wrong(
            "It is random in eval mode: dropout must be off. Use nn.Dropout, or "
            "F.dropout(..., training=self.training)."
        )
    numbers = sum(p.numel() for p in layer.parameters())
    if numbers < 4 * 24 * 24:
        raise Wrong(
            f"It has {numbers} parameters; four projections of C = 24 have {4 * 24 * 24}. Do "
            "heads or projections share weights, or is one a plain tensor or in a plain list?"
        )
    for check in (assert_rows_independent, assert_causal, assert_past_used):
        examine(check, layer, torch.randn(4, 16, 24))
    layer.train()
    if torch.equal(layer(x), layer(x)):
        raise Wrong("Dropout has no effect in training mode: drop entries of the pattern.")
