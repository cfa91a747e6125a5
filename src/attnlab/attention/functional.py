"""Attention as one function of queries, keys and values, for any score and any mask.

Letters: B batch, H heads, T queries, S keys, D channels of a query, E channels of a value.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from attnlab.attention import kernels
from attnlab.attention.scores import Score


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    may_attend: Tensor | None = None,
    blocked: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    score: Score | None = None,
    empty: Literal["raise", "zeros"] = "raise",
) -> tuple[Tensor, Tensor]:
    """Average the values by the softmax of the scores (Vaswani et al. 2017, equation 1).

    q is (T, D), (B, T, D) or (B, H, T, D), k (..., S, D), and v (..., S, E). `scale` multiplies
    the scores; None means 1/sqrt(D) for dot products, and 1 for `score`, a function of q and k
    that gives scores (..., T, S), see `attnlab.attention.scores`. The name of a mask says what
    True, or 1, means in it; its dtype may be any. `bias` is added to the scores, and its -inf
    block. Masks and bias broadcast to the scores by PyTorch's rules and can be combined. Pass a
    padding mask (B, S) as (B, 1, S), or as (B, 1, 1, S) with heads. A query that sees no key is an
    error; with empty="zeros", its output and its row of the pattern are 0.

    Returns the output (..., T, E) in the dtype of v, and the pattern (..., T, S), whose rows sum
    to 1, in fp32, or in fp64 if q or k is. Raises ValueError if shapes do not fit, a mask holds
    values other than 0 and 1, a bias is bool, NaN or +inf, or a query sees no key.
    """
    if empty not in ("raise", "zeros"):
        raise ValueError(f"empty = {empty} must be raise or zeros")
    _check_inputs(q, k, v, same_width=score is None)
    scores = _scores(q, k, scale, score)
    if bias is not None:
        bias = _as_bias(bias, scores)
        scores = (scores + bias).masked_fill(bias == -math.inf, -math.inf)
    may = scores != -math.inf  # NaN scores are not blocked, so they stay visible
    if may_attend is not None:
        may = may & _as_bool("may_attend", may_attend, scores)
    if blocked is not None:
        may = may & ~_as_bool("blocked", blocked, scores)
    lonely = ~may.any(-1, keepdim=True)  # (..., T, 1)
    if empty == "raise" and lonely.any():
        query = int(lonely.nonzero()[0, -2])
        raise ValueError(
            f"query {query} of {lonely.shape[-2]} sees no key; let it see one, or pass "
            f"empty='zeros'"
        )
    # The softmax of a row of -inf is 0/0, and its gradient NaN.
    masked = scores.masked_fill(~may, -math.inf).masked_fill(lonely, 0.0)
    pattern = masked.softmax(-1).masked_fill(lonely, 0.0)
    return kernels.mix(pattern, v, dropout=0.0), pattern


def _scores(q: Tensor, k: Tensor, scale: float | None, score: Score | None) -> Tensor:
    """(..., T, S), fp32 at least."""
    if score is None:
        dtype = torch.promote_types(q.dtype, k.dtype)
        scale = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale
        return kernels.scores(q.to(dtype), k.to(dtype), scale=scale)
    scores = score(q, k)
    expected = (*q.shape[:-1], k.shape[-2])
    if scores.shape != expected:
        raise ValueError(f"the score gave the shape {tuple(scores.shape)}, not {expected}")
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return scores if scale is None else scores * scale


def _check_inputs(q: Tensor, k: Tensor, v: Tensor, *, same_width: bool) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = f"a tensor of {x.dtype}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
            raise TypeError(f"{name} must be a tensor of floating-point numbers, not {kind}")
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not 2 <= q.ndim <= 4:
        raise ValueError(f"{shapes}: they must be (T, D), (B, T, D) or (B, H, T, D)")
    if not (q.shape[:-2] == k.shape[:-2] == v.shape[:-2]):
        raise ValueError(f"{shapes}: the dimensions before (T, D) must be equal")
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(f"{shapes}: there must be as many keys as values")
    if same_width and q.shape[-1] != k.shape[-1]:
        raise ValueError(f"{shapes}: queries and keys must be of one width for dot products")


def _as_bool(name: str, mask: Tensor, scores: Tensor) -> Tensor:
    _check_broadcast(name, mask, scores)
    wrong = mask[(mask != 0) & (mask != 1)]
    if len(wrong):
        raise ValueError(
            f"{name} holds {float(wrong[0])}; a mask must hold True and False, or 0 and 1; "
            f"pass numbers to be added as bias"
        )
    return mask.bool()


def _as_bias(bias: Tensor, scores: Tensor) -> Tensor:
    _check_broadcast("bias", bias, scores)
    if bias.dtype == torch.bool:
        raise ValueError("bias is bool; pass a mask as may_attend or blocked")
    bias = bias.to(scores.dtype)
    wrong = bias[bias.isnan() | (bias == math.inf)]
    if len(wrong):
        raise ValueError(f"bias holds {float(wrong[0])}; it must be finite, or -inf to block")
    return bias


def _check_broadcast(name: str, mask: Tensor, scores: Tensor) -> None:
    try:
        mask.expand(scores.shape)
    except RuntimeError as error:
        raise ValueError(
            f"{name} of shape {tuple(mask.shape)} does not broadcast to the scores "
            f"{tuple(scores.shape)}; a mask of padded keys is "
            f"{(*scores.shape[:1], *(1,) * (scores.ndim - 2), scores.shape[-1])}"
        ) from error
