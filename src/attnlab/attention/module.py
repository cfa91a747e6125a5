"""The attention layer: projections and heads around a swappable kernel.

Letters: B batch, T time, C channels, H heads, D = C // H.
"""

import math
from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from attnlab.attention import heads as head_rules
from attnlab.attention import kernels
from attnlab.attention.masks import (
    LEAVES_QUERIES_WITHOUT_KEYS,
    Predicate,
    build_mask,
    causal,
    name_of,
)
from attnlab.attention.rms import rms_normalise
from attnlab.attention.rotary import rotate
from attnlab.rules import Rule, ones

HeadRule = Callable[["Attention"], None]
Scale = float | Literal["1/D"] | None


class Attention(nn.Module):
    """What every variant has: `qkv`, `proj`, a scale, a mask and a rule for its heads.

    A subclass adds `forward(x)` (B, T, C) -> (B, T, C) and `pattern(x)` -> (B, H, T, T). One that
    owns further parameters names them in `init_rules`, as `attnlab.init` says.

    Args:
        n_embd: C.
        n_head: the model's number of heads.
        block_size: the largest T; the mask is tried at this size at once.
        bias: whether `qkv` and `proj` have biases.
        dropout: probability of dropping an entry of the pattern, in training only.
        scale: multiplies the scores; None means 1/sqrt(D) (Vaswani et al. 2017, equation 1), and
            "1/D" the power of D that Yang et al. (2022, definition 4.1) derive.
        may_attend: the mask, see `attnlab.attention.masks`.
        head_init: see `attnlab.attention.heads`.
        heads: H where the variant fixes it; None means the model's `n_head`.

    Raises:
        ValueError: the heads do not divide the width, a number is out of its range, or the mask
            leaves a query without keys.
    """

    init_rules: ClassVar[dict[str, Rule]] = {}

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        *,
        block_size: int,
        bias: bool = True,
        dropout: float = 0.0,
        scale: Scale = None,
        may_attend: Predicate = causal,
        head_init: HeadRule = head_rules.independent,
        heads: int | None = None,
    ) -> None:
        super().__init__()
        self.n_head = n_head if heads is None else heads
        if self.n_head < 1:
            raise ValueError(f"n_head = {self.n_head}: there must be at least one head")
        if n_embd % self.n_head:
            raise ValueError(
                f"n_head = {self.n_head} does not divide n_embd = {n_embd}; "
                f"it must be one of {_divisors(n_embd)}"
            )
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout = {dropout} must be at least 0 and less than 1")
        self.head_size = n_embd // self.n_head
        self.scale = _number(scale, self.head_size)
        build_mask(may_attend, block_size)
        self.dropout = dropout
        self.may_attend = may_attend
        self.head_init = head_init
        self.qkv = nn.Linear(n_embd, 3 * n_embd, bias=bias)
        self.proj = nn.Linear(n_embd, n_embd, bias=bias)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project to queries, keys and values: (B, T, C) -> three of (B, H, T, D)."""
        qkv = self.qkv(x).unflatten(-1, (3, self.n_head, self.head_size))  # (B, T, 3, H, D)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # each (B, H, T, D)
        return q, k, v

    def scores(self, x: Tensor) -> Tensor:
        """The scaled scores before mask and softmax: (B, T, C) -> (B, H, T, T), fp32 at least."""
        q, k, _ = self.split(x)
        return kernels.scores(q, k, scale=self.scale)

    def mask(self, x: Tensor) -> Tensor:
        """The (T, T) mask for x (B, T, C), True = may attend."""
        return build_mask(self.may_attend, x.shape[1], x.device)

    def pattern(self, x: Tensor) -> Tensor:
        """The weights that average the values, without dropout: (B, T, C) -> (B, H, T, T)."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return (
            f"n_head={self.n_head}, scale={self.scale:g}, may_attend={name_of(self.may_attend)}, "
            f"dropout={self.dropout}"
        )


class SelfAttention(Attention):
    """Multi-head self-attention by any kernel (Vaswani et al. 2017, section 3.2).

    Args:
        kernel: see `attnlab.attention.kernels`.
        qk_norm: queries and keys are divided by their root mean square, and the scores multiplied
            by a learned `gain` of each head: the cosine of query and key, times a learned scale
            that starts at D * `scale` (Henry et al. 2020, section 2).
        rotary: the base of rotary positions (Su et al. 2021): queries and keys are turned by
            angles that grow with their positions, so that scores depend on distances; None: not.
        others: see `Attention`.
    """

    init_rules: ClassVar[dict[str, Rule]] = {"gain": ones}

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        *,
        block_size: int,
        bias: bool = True,
        dropout: float = 0.0,
        kernel: kernels.Kernel | Callable[..., Tensor] = kernels.sdpa,
        scale: Scale = None,
        may_attend: Predicate = causal,
        head_init: HeadRule = head_rules.independent,
        heads: int | None = None,
        qk_norm: bool = False,
        rotary: float | None = None,
    ) -> None:
        super().__init__(
            n_embd,
            n_head,
            block_size=block_size,
            bias=bias,
            dropout=dropout,
            scale=scale,
            may_attend=may_attend,
            head_init=head_init,
            heads=heads,
        )
        if rotary is not None and not (1 <= rotary < math.inf):
            raise ValueError(f"rotary = {rotary} must be a base of at least 1, or null")
        if rotary is not None and self.head_size % 2:
            raise ValueError(
                f"rotary positions turn pairs of channels, so the width of a head, "
                f"n_embd / n_head = {n_embd} / {self.n_head} = {self.head_size}, must be even"
            )
        if kernel is kernels.sdpa and may_attend in LEAVES_QUERIES_WITHOUT_KEYS:
            raise ValueError(
                f"the kernel sdpa answers a query without keys by zeros, in silence, so the mask "
                f"{name_of(may_attend)} needs another one, attnlab.attention.kernels.manual say"
            )
        self.kernel = kernel
        self.rotary = rotary
        self.gain = nn.Parameter(torch.ones(self.n_head)) if qk_norm else None

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys as the kernel gets them, and values: three of (B, H, T, D)."""
        qkv = self.qkv(x).unflatten(-1, (3, self.n_head, self.head_size))  # (B, T, 3, H, D)
        qkv = qkv.permute(2, 0, 3, 1, 4)  # (3, B, H, T, D)
        qk, v = qkv[:2], qkv[2]
        if self.gain is not None:
            qk = rms_normalise(qk)
        if self.rotary is not None:
            qk = rotate(qk, self.rotary)
        q, k = qk.unbind(0)
        if self.gain is not None:
            q = q * self.gain[:, None, None].to(q.dtype)  # (H, 1, 1)
        return q, k, v

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        q, k, v = self.split(x)
        dropout = self.dropout if self.training else 0.0
        y = self.kernel(q, k, v, mask=self.mask(x), scale=self.scale, dropout=dropout)
        return self.proj(y.transpose(1, 2).flatten(2))  # (B, H, T, D) -> (B, T, C)

    def pattern(self, x: Tensor) -> Tensor:
        """What the kernel really does with the values, read off by giving it the identity as v.

        Every kernel is linear in v, so one formula serves them all, wrong ones too.
        """
        q, k, _ = self.split(x)
        B, _, T, _ = q.shape
        one_hot = torch.eye(T, dtype=q.dtype, device=q.device).expand(B, self.n_head, T, T)
        return self.kernel(q, k, one_hot, mask=self.mask(x), scale=self.scale, dropout=0.0)


def _number(scale: Scale, D: int) -> float:
    if scale is None:
        return 1 / math.sqrt(D)
    if scale == "1/D":
        return 1 / D
    if isinstance(scale, str) or not math.isfinite(scale):
        raise ValueError(f"scale = {scale} must be a finite number, 1/D, or null for 1/sqrt(D)")
    return float(scale)


def _divisors(n: int) -> str:
    return ", ".join(str(d) for d in range(1, n + 1) if n % d == 0)
