"""Kernels that are wrong on purpose, each with one mistake that was found in published code.

They have the signature of `attnlab.attention.kernels`; the commented line is the mistake.
"""

from torch import Tensor

from attnlab.attention.kernels import manual, mix, scores
from attnlab.attention.properties import Properties, declare


def zero_fill(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """Blocked scores become 0, so a blocked key still gets the weight e^0."""
    filled = scores(q, k, scale=scale).masked_fill(~mask, 0.0)  # not -inf
    return mix(filled.softmax(-1), v, dropout=dropout)


declare(zero_fill, Properties(rows_sum_to_1=True, nonnegative=True))


def finite_fill(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """Blocked scores become -1e4, which masks only while all visible scores are far above it."""
    filled = scores(q, k, scale=scale).masked_fill(~mask, -1e4)  # not -inf
    return mix(filled.softmax(-1), v, dropout=dropout)


declare(finite_fill, Properties(rows_sum_to_1=True, nonnegative=True))


def post_softmax_mask(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """The mask comes after the softmax: rows sum to less than 1, and the sums leak the future."""
    pattern = scores(q, k, scale=scale).softmax(-1) * mask  # the denominator has seen every key
    return mix(pattern, v, dropout=dropout)


declare(post_softmax_mask, Properties(nonnegative=True))


def softmax_over_queries(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """The softmax runs along the wrong axis: a key's weights over the queries sum to 1."""
    masked = scores(q, k, scale=scale).masked_fill(~mask, float("-inf"))
    return mix(masked.softmax(-2), v, dropout=dropout)  # not dim -1


declare(softmax_over_queries, Properties(nonnegative=True))


def unmerged_heads(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """(B, H, T, E) is reshaped to (B, T, H * E) without the transpose of H and T.

    The layer that calls it transposes and flattens correctly, so the kernel reshapes and applies
    the inverse of that: row t of the output starts with a row of head floor(t * H / T).
    """
    B, H, T, _ = q.shape
    y = manual(q, k, v, mask=mask, scale=scale, dropout=dropout)
    return y.reshape(B, T, H, -1).transpose(1, 2)  # not y.transpose(1, 2)


declare(unmerged_heads, Properties(rows_sum_to_1=True, nonnegative=True))
