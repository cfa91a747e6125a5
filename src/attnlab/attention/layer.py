"""The attention layer: projections and heads around a swappable kernel.

Letters: B batch, T time, C channels, H heads, D = C // H.
"""

import math
from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from attnlab.attention import head_init as head_rules
from attnlab.attention import kernels
from attnlab.attention.kv_cache import KVCache
from attnlab.attention.masks import (
    LEAVES_QUERIES_WITHOUT_KEYS,
    Predicate,
    build_mask,
    causal,
    looks_back,
    name_of,
)
from attnlab.attention.positions import rotate
from attnlab.attention.rms_norm import rms_normalize
from attnlab.initializers import Rule, ones

HeadRule = Callable[[head_rules.Heads], None]
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
        head_init: see `attnlab.attention.head_init`.
        heads: H where the variant fixes it; None means the model's `n_head`.
        n_kv_head: how many heads of keys and values there are, each of which serves H / n_kv_head
            neighboring heads of queries: 1 is multi-query attention (Shazeer 2019), between 1
            and H grouped-query attention (Ainslie et al. 2023), H or None the usual one. `qkv`
            then has C + 2 n_kv_head D rows.

    The matrices of the textbooks are views of the parameters, so that writing through one, under
    `torch.no_grad()`, changes the layer. A textbook writes x W, while nn.Linear keeps W transposed
    as (out, in): `W_q`, `W_k`, `W_v` and `W_o` are (in, out), `x @ layer.W_q` are the queries of
    all heads but for the bias, and columns h D to (h + 1) D of it belong to head h. The biases are
    the thirds of `qkv.bias`, and `proj.bias`.

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
        n_kv_head: int | None = None,
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
        self.n_kv_head = self.n_head if n_kv_head is None else n_kv_head
        if self.n_kv_head < 1 or self.n_head % self.n_kv_head:
            raise ValueError(
                f"n_kv_head = {self.n_kv_head} does not divide n_head = {self.n_head}; "
                f"it must be one of {_divisors(self.n_head)}"
            )
        self.head_size = n_embd // self.n_head
        self.scale = _number(scale, self.head_size)
        self.block_size = block_size
        build_mask(may_attend, block_size)
        self.dropout = dropout
        self.may_attend = may_attend
        self.head_init = head_init
        kv = self.n_kv_head * self.head_size
        self.qkv_sizes = [n_embd, kv, kv]  # how many rows of qkv are queries, keys, values
        self.qkv = nn.Linear(n_embd, sum(self.qkv_sizes), bias=bias)
        self.proj = nn.Linear(n_embd, n_embd, bias=bias)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project to queries, keys and values: (B, T, C) -> three of (B, H, T, D).

        Keys and values that serve several heads are repeated for them.
        """
        q, k, v = (self._heads(part) for part in self.qkv(x).split(self.qkv_sizes, dim=-1))
        return q, self._repeat(k), self._repeat(v)

    def _heads(self, x: Tensor) -> Tensor:
        """Channels to heads: (B, T, h D) -> (B, h, T, D)."""
        return x.unflatten(-1, (-1, self.head_size)).transpose(1, 2)

    def _repeat(self, shared: Tensor) -> Tensor:
        """Keys or values (B, n_kv_head, T, D) for every head of queries: (B, H, T, D)."""
        group = self.n_head // self.n_kv_head
        return shared if group == 1 else shared.repeat_interleave(group, dim=1)

    def qkv_of_heads(self) -> Tensor:
        """The weight (3C, C) that `split` amounts to, rows of shared heads repeated."""
        parts = self.qkv.weight.split(self.qkv_sizes)
        group = self.n_head // self.n_kv_head
        q, k, v = (part.unflatten(0, (-1, self.head_size)) for part in parts)  # (H, D, C)
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        return torch.cat([q, k, v]).flatten(0, 1)

    @property
    def W_q(self) -> Tensor:  # noqa: N802
        """The query matrix (C, C) of x W_q, a view."""
        return self.qkv.weight.split(self.qkv_sizes)[0].T

    @property
    def W_k(self) -> Tensor:  # noqa: N802
        """The key matrix (C, n_kv_head * D) of x W_k, a view."""
        return self.qkv.weight.split(self.qkv_sizes)[1].T

    @property
    def W_v(self) -> Tensor:  # noqa: N802
        """The value matrix (C, n_kv_head * D) of x W_v, a view."""
        return self.qkv.weight.split(self.qkv_sizes)[2].T

    @property
    def W_o(self) -> Tensor:  # noqa: N802
        """The output matrix (C, C) of concat(heads) W_o, a view."""
        return self.proj.weight.T

    @property
    def bilinear(self) -> bool:
        """Whether scores are x W_q W_k^T x, so that this product says all of them."""
        return True

    def scores(self, x: Tensor) -> Tensor:
        """The scaled scores before mask and softmax: (B, T, C) -> (B, H, T, T), fp32 at least."""
        q, k, _ = self.split(x)
        return kernels.scores(q, k, scale=self.scale)

    def mask(self, x: Tensor) -> Tensor:
        """The (T, T) mask for x (B, T, C), True = may attend."""
        return build_mask(self.may_attend, x.shape[1], x.device)

    @property
    def cacheable(self) -> bool:
        """Whether `extend` is there, so that a growing text need not be read again from its start.

        A class says so for itself; one that does not is asked for the whole text each time.
        """
        return False

    def extend(self, x: Tensor, cache: KVCache) -> Tensor:
        """What `forward` would give at the positions of x, which follow those in the cache.

        Args:
            x: (B, T, C); its keys and values join the cache.
            cache: of this layer alone.

        Returns:
            (B, T, C).
        """
        raise NotImplementedError

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
        n_kv_head: int | None = None,
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
            n_kv_head=n_kv_head,
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

    def split(self, x: Tensor, start: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys as the kernel gets them, and values: three of (B, H, T, D).

        The first row of x stands at position `start`.
        """
        if self.gain is None and self.rotary is None:
            return super().split(x)
        H, shared, D = self.n_head, self.n_kv_head, self.head_size
        both, v = self.qkv(x).split([(H + shared) * D, shared * D], dim=-1)
        qk, v = self._heads(both), self._heads(v)  # queries and keys share what is done to them
        exact = torch.promote_types(qk.dtype, torch.float32)  # there and back once for all three
        if self.gain is not None:
            qk = rms_normalize(qk.to(exact))
        if self.rotary is not None:
            qk = rotate(qk.to(exact), self.rotary, start)
        q, k = qk.split([H, shared], dim=1)
        if self.gain is not None:
            q = q * self.gain[:, None, None]  # (H, 1, 1)
        q, k = q.to(v.dtype), k.to(v.dtype)
        return q, self._repeat(k), self._repeat(v)

    @property
    def bilinear(self) -> bool:
        """Not where queries and keys are normalized, or turned by their positions."""
        return self.gain is None and self.rotary is None

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        return self._mixed(*self.split(x), mask=self.mask(x))

    @property
    def cacheable(self) -> bool:
        """Whether kernel and mask leave earlier outputs as they are; a subclass may not."""
        return (
            type(self) is SelfAttention
            and self.kernel in kernels.ROWWISE
            and looks_back(self.may_attend, self.block_size)
        )

    def extend(self, x: Tensor, cache: KVCache) -> Tensor:
        """What `forward` would give at the positions of x, see `Attention.extend`."""
        start = len(cache)
        if start == 0:
            mask = self.mask(x)
        else:  # the rows of the new queries, over all keys so far
            whole = build_mask(self.may_attend, self.block_size, x.device)
            mask = whole[start : start + x.shape[1], : start + x.shape[1]]
        q, k, v = self.split(x, start)
        return self._mixed(q, *cache.append(k, v), mask=mask)

    def _mixed(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        y = self.kernel(q, k, v, mask=mask, scale=self.scale, dropout=dropout)
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
