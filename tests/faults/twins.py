"""Recent kinds of attention, each with the mistake that lets it read ahead.

Letters: B batch, H heads, T time, D channels of a head. Queries and keys are (B, H, T, D), scores
are (B, H, T, T) and scaled, and what is visible is (T, T) bool.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def top_k_first(q: Tensor, k: Tensor, scores: Tensor, visible: Tensor) -> Tensor:
    """The largest scores of a row are chosen before the mask, so that later keys compete."""
    least = scores.topk(min(8, len(visible))).values[..., -1:]
    own = torch.eye(len(visible), dtype=torch.bool)
    kept = visible & ((scores >= least) | own)
    return scores.masked_fill(~kept, -math.inf).softmax(-1)


def own_block_by_mean(q: Tensor, k: Tensor, scores: Tensor, visible: Tensor) -> Tensor:
    """Blocks are chosen by their mean key, also the query's own, which holds later keys."""
    T, size = len(visible), 4
    means = F.pad(k, (0, 0, 0, -T % size)).unflatten(2, (-1, size)).mean(3)  # (B, H, n, D)
    block, n = torch.arange(T) // size, means.shape[2]
    later = torch.arange(n) > block[:, None]  # (T, n)
    liking = (q @ means.mT).masked_fill(later, -math.inf)  # (B, H, T, n)
    chosen = torch.zeros_like(liking).scatter(-1, liking.topk(min(2, n)).indices, 1.0)
    kept = chosen.gather(-1, block.expand(scores.shape)) > 0
    return scores.masked_fill(~(visible & kept), -math.inf).softmax(-1)


def mixed_before_mask(q: Tensor, k: Tensor, scores: Tensor, visible: Tensor) -> Tensor:
    """Multi-token attention that masks only after its convolution over the scores."""
    return _convolved(scores).masked_fill(~visible, -math.inf).softmax(-1)


def mixed_after_softmax(q: Tensor, k: Tensor, scores: Tensor, visible: Tensor) -> Tensor:
    """Multi-token attention that does not mask again after its convolution over the weights."""
    return _convolved(scores.masked_fill(~visible, -math.inf).softmax(-1))


def _convolved(x: Tensor) -> Tensor:
    """A centered convolution along the keys."""
    padded = F.pad(x, (1, 1))
    return x + 0.3 * (padded[..., 2:] + padded[..., :-2])


def normed_over_time(y: Tensor) -> Tensor:
    """The output (B, H, T, D), whose norm is taken over time instead of over channels."""
    return y * torch.rsqrt(y.square().mean(2, keepdim=True) + 1e-6)


WEIGHTS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    twin.__name__: twin
    for twin in (top_k_first, own_block_by_mean, mixed_before_mask, mixed_after_softmax)
}
