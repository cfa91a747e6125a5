"""Kernels: pure functions from queries, keys and values to mixed values.

Letters: B batch, H heads, T time, D channels of a head.

Every kernel has the signature `(q, k, v, *, mask, scale, dropout)`: q, k (B, H, T, D); v
(B, H, T, E), where E is D in a layer; mask (T, T) bool with True = may attend; scale multiplies
the scores; dropout is the probability of dropping an entry of the pattern. It returns (B, H, T, E)
and is linear in v, so that `SelfAttention.pattern` can read off the pattern of any kernel.

A kernel may also take `mod`, a function of the scaled scores (B, H, T, T) that acts before the
mask. Only such kernels can be combined with `score_mod` and `softcap`.

Each kernel declares its `Properties`.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from attnlab.attention.masks import build_mask, causal
from attnlab.attention.properties import SOFTMAX, Properties, declare


class Kernel(Protocol):
    """The signature of a kernel."""

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
    ) -> Tensor: ...


Mod = Callable[[Tensor], Tensor] | None


def scores(q: Tensor, k: Tensor, *, scale: float, mod: Mod = None) -> Tensor:
    """Scaled dot products, (B, H, T queries, T keys) (Vaswani et al. 2017, in equation 1).

    They are fp32, or fp64 where the inputs are: a sum of D products in bf16 is off by several
    hundredths, which a softmax of large scores turns into another pattern.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        scaled = (q.to(dtype) * scale) @ k.to(dtype).mT
        return scaled if mod is None else mod(scaled)


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """The pattern of scores (..., T, S): blocked ones become -inf, then the softmax over keys."""
    return scores.masked_fill(~mask, float("-inf")).softmax(-1)


def mix(pattern: Tensor, v: Tensor, *, dropout: float) -> Tensor:
    """Average the values by the pattern: (B, H, T, T), (B, H, T, E) -> (B, H, T, E)."""
    return F.dropout(pattern.to(v.dtype), dropout) @ v


def one_hot(k: Tensor) -> Tensor:
    """The values (B, H, S, S) whose mix is the pattern of the keys k (B, H, S, D)."""
    B, H, S, _ = k.shape
    return torch.eye(S, dtype=k.dtype, device=k.device).expand(B, H, S, S)


def manual(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float, mod: Mod = None
) -> Tensor:
    """Attention written out: scores, -inf where blocked, softmax over the keys, average."""
    pattern = masked_softmax(scores(q, k, scale=scale, mod=mod), mask)
    return mix(pattern, v, dropout=dropout)


declare(manual, SOFTMAX)


def softmax1(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor,
    scale: float,
    dropout: float,
    mod: Mod = None,
    sink: Tensor | None = None,
) -> Tensor:
    """exp(s) / (exp(b) + sum exp(s)): a head can attend to nothing (Miller 2023, with b = 0).

    It is a softmax with one more key, of score b and value 0, an attention sink (Xiao et al. 2024,
    equation 2). `sink` holds b of each head (H,), as in gpt-oss (OpenAI 2025). b is neither scaled
    nor masked. Rows sum to less than 1.
    """
    masked = scores(q, k, scale=scale, mod=mod).masked_fill(~mask, float("-inf"))
    b = masked.new_zeros(1) if sink is None else sink.to(masked.dtype)
    none = b[:, None, None].expand(*masked.shape[:-1], 1)  # (B, H, T, 1)
    pattern = torch.cat([masked, none], dim=-1).softmax(-1)[..., :-1]
    return mix(pattern, v, dropout=dropout)


declare(softmax1, Properties(nonnegative=True, cacheable=True))


def sigmoid(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float, mod: Mod = None
) -> Tensor:
    """sigmoid(s - ln n) for each key, n the number of visible keys (Ramapuram et al. 2024, eq. 3).

    In the paper n is the length of the sequence. Keys do not compete: rows need not sum to 1.
    """
    s = scores(q, k, scale=scale, mod=mod)
    n = mask.sum(-1, keepdim=True).clamp(min=1).to(s.dtype)  # (T, 1)
    pattern = (s - n.log()).sigmoid() * mask
    return mix(pattern, v, dropout=dropout)


declare(sigmoid, Properties(nonnegative=True, cacheable=True))


def linear(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """f(q) . f(k) over its sum, with f = elu + 1 (Katharopoulos et al. 2020, equations 7 and 9).

    It computes the (T, T) pattern, so any mask works: the function is that of linear attention,
    the cost is not.
    """
    return mix(masked_softmax(linear_scores(q, k, scale=scale), mask), v, dropout=dropout)


def linear_scores(q: Tensor, k: Tensor, *, scale: float, mod: Mod = None) -> Tensor:
    """ln(f(q) . f(k)), of which linear attention is the softmax: (B, H, T, T), fp32 at least.

    Its queries and keys are not scaled. Raises ValueError for another scale than 1/sqrt(D).
    """
    if not math.isclose(scale, 1 / math.sqrt(q.shape[-1])):
        raise ValueError(f"the kernel linear has no scale; remove scale = {scale:g}")
    dtype = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        similar = (F.elu(q.to(dtype)) + 1) @ (F.elu(k.to(dtype)) + 1).mT
        logs = similar.clamp(min=torch.finfo(dtype).tiny).log()
        return logs if mod is None else mod(logs)


def linear_state(D: int) -> int:
    """A matrix (D, D) and a sum (D,) of keys."""
    return D * D + D


def linear_flops(D: int) -> int:
    """Each position adds a product to the state, and each query reads the state and the sum."""
    return 4 * D * D + 2 * D


declare(linear, replace(SOFTMAX, scores=linear_scores, flops=linear_flops, state=linear_state))


def sdpa(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float, mod: Mod = None
) -> Tensor:
    """PyTorch's fused kernel, with its causal fast path for every mask that equals the causal one.

    It silently returns zeros for a query without keys; `SelfAttention` refuses such a mask. With
    `mod`, `manual` computes.
    """
    if mod is not None:
        return manual(q, k, v, mask=mask, scale=scale, dropout=dropout, mod=mod)
    # build_mask gives one object for all masks that equal the causal one. The fast path multiplies
    # after masking on a CPU, and -inf * 0 is NaN (seen in torch 2.13), hence the positive scale.
    is_causal = scale > 0 and mask is build_mask(causal, q.shape[-2], q.device)
    allowed = None if is_causal else mask
    with torch.autocast(q.device.type, enabled=False):
        q, k, x = (each.to(sdpa_dtype(q)) for each in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, x, allowed, dropout, is_causal, scale=scale)
    return y.to(v.dtype)


def sdpa_dtype(q: Tensor) -> torch.dtype:
    """What `sdpa` computes in: fp32 for short bf16 sequences on a CPU, else the dtype of q.

    The fused backward pass in bf16 is slow there; benchmarks/attention.py measures it.
    """
    if q.device.type == "cpu" and q.dtype == torch.bfloat16 and q.shape[-2] <= 256:
        return torch.float32
    return q.dtype


declare(sdpa, replace(SOFTMAX, dtype=sdpa_dtype))


def flex(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float) -> Tensor:
    """PyTorch's FlexAttention (Dong et al. 2024), which skips blocks of keys that are masked.

    `manual` computes what PyTorch cannot: dropout, gradients on a CPU, a mask of each sequence.
    Training runs that need them are refused. Like `sdpa`, it gives zeros for a query without keys.
    """
    trains = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    if dropout or mask.ndim > 2 or (trains and q.device.type != "cuda"):
        return manual(q, k, v, mask=mask, scale=scale, dropout=dropout)
    # Compiled kernels need values as wide as queries; the identity that reads a pattern is not.
    attend = _flex_attention(compiled=q.device.type == "cuda" and v.shape[-1] == q.shape[-1])
    y: Tensor = attend(q, k, v, block_mask=_block_mask(mask), scale=scale)
    return y


declare(flex, replace(SOFTMAX, cuda_only=True))


@cache  # compiled at the first call, never at import
def _flex_attention(*, compiled: bool) -> Any:
    warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
    return torch.compile(flex_attention) if compiled else flex_attention


@lru_cache(maxsize=64)  # by the tensor object, of which `build_mask` gives one
def _block_mask(mask: Tensor) -> BlockMask:
    def may_attend(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return mask[i, j]

    with torch.inference_mode(False):  # see `build_mask`
        return create_block_mask(may_attend, None, None, len(mask), mask.shape[1], mask.device)
