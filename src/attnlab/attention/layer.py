"""The attention layer: projections and heads around a swappable kernel.

Letters: B batch, T time, C channels, H heads, D = C // H.
"""

import math
from inspect import signature
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from attnlab.attention import kernels, masks
from attnlab.attention.masks import build_mask, name_of
from attnlab.attention.positions import rotate
from attnlab.attention.properties import SOFTMAX, Properties, combined, properties_of
from attnlab.attention.rms_norm import rms_normalize
from attnlab.attention.variant import AttentionConfig, check_divides, check_dropout, check_sizes
from attnlab.rng import Rule, ones


class KVCache:
    """The keys and values of the text so far in one layer, for at most `size` positions."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._kept: tuple[Tensor, ...] = ()

    def __len__(self) -> int:
        """The number of positions in it."""
        return self._kept[0].shape[2] if self._kept else 0

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add keys and values (B, H, T, D), and return those of all positions so far."""
        if self._kept:
            k, v = (torch.cat(pair, dim=2) for pair in zip(self._kept, (k, v), strict=True))
        if k.shape[2] > self.size:
            raise ValueError(f"{k.shape[2]} positions do not fit into a cache of {self.size}")
        self._kept = k, v
        return k, v


class Attention(nn.Module):
    """The base of all variants: `qkv`, `proj`, a scale, a mask and a rule for the heads.

    A subclass adds `forward(x)` (B, T, C) -> (B, T, C) and `pattern(x)` -> (B, H, T, T). If it
    has parameters of its own, it names them in `init_rules`, see `attnlab.init`. If it has a mask
    of its own, it overrides `mask`. It refuses the settings that it does not support, see
    `AttentionConfig.require_default`. It may declare `properties`, which its subclasses do not
    inherit, since they may compute something else.

    The matrices of the textbooks are views of the parameters: writing to one, under
    `torch.no_grad()`, changes the layer. A textbook writes x W, while nn.Linear stores W
    transposed as (out, in). `W_q`, `W_k`, `W_v` and `W_o` are (in, out): `x @ layer.W_q` are the
    queries of all heads without the bias, and columns h D to (h + 1) D belong to head h.

    Raises ValueError if the heads do not divide the width, a number is out of its range, or the
    mask leaves a query without keys at `block_size`.
    """

    init_rules: ClassVar[dict[str, Rule]] = {}
    properties: Properties | None = None  # of a class: its own; of a layer: with its kernel's
    bilinear = True  # scores are x W_q W_k^T x

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        self.properties = self._declared()
        C = config.n_embd
        self.n_head = config.n_head if config.heads is None else config.heads
        check_sizes({"n_head": self.n_head, "n_embd": C, "block_size": config.block_size})
        check_dropout(config.dropout)
        self.n_kv_head = self.n_head if config.n_kv_head is None else config.n_kv_head
        check_divides("n_head", self.n_head, "n_embd", C)
        check_divides("n_kv_head", self.n_kv_head, "n_head", self.n_head)
        if config.shared not in (None, "qk", "qkv"):
            raise ValueError(f"shared = {config.shared} must be qk, qkv or null")
        if config.shared and self.n_kv_head != self.n_head:
            raise ValueError(
                f"shared = {config.shared} needs as many heads of keys as of queries; "
                f"remove n_kv_head = {self.n_kv_head}"
            )
        self.head_size = D = C // self.n_head
        scale = 1 / math.sqrt(D) if config.scale is None else config.scale
        scale = 1 / D if scale == "1/D" else scale
        if not isinstance(scale, float | int) or not math.isfinite(scale):
            raise ValueError(
                f"scale = {scale} must be a finite number, 1/D, or null for 1/sqrt(D)"
            )
        self.scale = float(scale)
        self.block_size = config.block_size
        self.may_attend = config.may_attend
        if config.window is not None:
            check_sizes({"window": config.window})
            self.may_attend = masks.window(config.may_attend, config.window)
        build_mask(self.may_attend, config.block_size)
        self.dropout = config.dropout
        self.head_init = config.head_init
        self.shared = config.shared
        kv = self.n_kv_head * D
        # How many rows of qkv are queries, keys and values; fewer parts where they are shared.
        self.qkv_sizes = {None: [C, kv, kv], "qk": [C, C], "qkv": [C]}[config.shared]
        self.qkv = nn.Linear(C, sum(self.qkv_sizes), bias=config.bias)
        self.proj = nn.Linear(C, C, bias=config.bias)

    def _declared(self) -> Properties | None:
        return vars(type(self)).get("properties")

    def split_qkv(self, rows: Tensor, dim: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """The views for queries, keys and values of a tensor with the rows of `qkv`."""
        parts = rows.split(self.qkv_sizes, dim)
        return parts[0], parts[0 if self.shared else 1], parts[-1]

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project to queries, keys and values: (B, T, C) -> three of (B, H, T, D)."""
        q, k, v = (self._heads(part) for part in self.split_qkv(self.qkv(x), dim=-1))
        return q, self._repeat(k), self._repeat(v)

    def _heads(self, x: Tensor) -> Tensor:
        """Channels to heads: (B, T, h D) -> (B, h, T, D)."""
        return x.unflatten(-1, (-1, self.head_size)).transpose(1, 2)

    def merge(self, mixed: Tensor, x: Tensor, v: Tensor) -> Tensor:
        """The mixed values of the heads as `proj` gets them: (B, H, T, D) -> (B, T, C).

        A subclass may use the input x (B, T, C) and the values v (B, H, T, D) of the same
        positions, as gates and norms after the mix do.
        """
        return mixed.transpose(1, 2).flatten(2)

    def _repeat(self, grouped: Tensor, dim: int = 1) -> Tensor:
        """Keys or values (B, n_kv_head, T, D) for every head of queries: (B, H, T, D)."""
        group = self.n_head // self.n_kv_head
        return grouped if group == 1 else grouped.repeat_interleave(group, dim)

    def qkv_of_heads(self) -> Tensor:
        """The weight (3C, C) of queries, keys and values, rows of shared heads repeated."""
        parts = self.split_qkv(self.qkv.weight)
        q, k, v = (part.unflatten(0, (-1, self.head_size)) for part in parts)  # (H, D, C)
        return torch.cat([q, self._repeat(k, 0), self._repeat(v, 0)]).flatten(0, 1)

    @property
    def W_q(self) -> Tensor:  # noqa: N802
        """The query matrix (C, C) of x W_q, a view."""
        return self.split_qkv(self.qkv.weight)[0].T

    @property
    def W_k(self) -> Tensor:  # noqa: N802
        """The key matrix (C, n_kv_head * D) of x W_k, a view."""
        return self.split_qkv(self.qkv.weight)[1].T

    @property
    def W_v(self) -> Tensor:  # noqa: N802
        """The value matrix (C, n_kv_head * D) of x W_v, a view."""
        return self.split_qkv(self.qkv.weight)[2].T

    @property
    def W_o(self) -> Tensor:  # noqa: N802
        """The output matrix (C, C) of concat(heads) W_o, a view."""
        return self.proj.weight.T

    def scores(self, x: Tensor) -> Tensor:
        """The scores before mask and softmax: (B, T, C) -> (B, H, T, T), fp32 at least."""
        q, k, _ = self.split(x)
        return self._scores(q, k)

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
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
    """Multi-head self-attention with any kernel (Vaswani et al. 2017, section 3.2).

    It supports every setting of `AttentionConfig`. Raises the errors of `Attention`, and
    ValueError for settings that do not fit together, such as rotary positions and an odd D.
    """

    init_rules: ClassVar[dict[str, Rule]] = {"gain": ones}
    properties: Properties | None = SOFTMAX  # of a kernel that is one

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self.rotary = rotary = config.rotary
        if rotary is not None and not (1 <= rotary < math.inf):
            raise ValueError(f"rotary = {rotary} must be a base of at least 1, or null")
        if rotary is not None and self.head_size % 2:
            raise ValueError(
                f"rotary = {rotary:g} rotates pairs of channels, so n_embd / n_head = "
                f"{config.n_embd} / {self.n_head} = {self.head_size} must be even"
            )
        if config.may_attend in masks.LEAVES_QUERIES_WITHOUT_KEYS and _hides(config.kernel):
            raise ValueError(
                f"the mask {name_of(config.may_attend)} leaves a query without keys, for which "
                f"the kernel {name_of(config.kernel)} silently returns zeros; use kernel = manual"
            )
        self.softcap, self.score_mod = config.softcap, config.score_mod
        if self.softcap is not None and not 1e-30 <= self.softcap <= 1e30:  # finite in fp32
            raise ValueError(f"softcap = {self.softcap:g} must be from 1e-30 to 1e30, or null")
        self.adjusts = self.softcap is not None or self.score_mod is not None
        if self.adjusts and "mod" not in signature(config.kernel).parameters:
            raise ValueError(
                f"the kernel {name_of(config.kernel)} does not support softcap and score_mod; "
                f"remove them, or use kernel = manual"
            )
        self.kernel = config.kernel
        self.gain = nn.Parameter(torch.ones(self.n_head)) if config.qk_norm else None
        of_kernel = properties_of(self.kernel)
        of_mod = SOFTMAX if self.score_mod is None else properties_of(self.score_mod)
        self.properties = declared = combined(of_kernel, of_mod, self._declared())
        self._kernel_scores = (of_kernel and of_kernel.scores) or kernels.scores
        plain = self._kernel_scores is kernels.scores and not self.adjusts and rotary is None
        self.bilinear = declared is not None and plain and not config.qk_norm
        back = declared is not None and masks.looks_back(self.may_attend, self.block_size)
        if declared is not None and declared.causal_only and not back:
            raise ValueError(
                f"{type(self).__name__} with the kernel {name_of(self.kernel)} needs a mask "
                f"without later keys; remove may_attend = {name_of(self.may_attend)}"
            )
        # Whether earlier outputs stay the same when a text grows.
        self.cacheable = declared is not None and declared.cacheable and back

    def split(self, x: Tensor, start: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys as the kernel gets them, and values: three of (B, H, T, D).

        The first row of x is at position `start`.
        """
        if self.gain is None and self.rotary is None:
            return super().split(x)
        q, k, v = (self._heads(part) for part in self.split_qkv(self.qkv(x), dim=-1))
        exact = torch.promote_types(q.dtype, torch.float32)  # there and back once for all three
        q, k = q.to(exact), k.to(exact)
        if self.gain is not None:
            q, k = rms_normalize(q), rms_normalize(k)
        if self.rotary is not None:
            q, k = rotate(q, self.rotary, start), rotate(k, self.rotary, start)
        if self.gain is not None:
            q = q * self.gain[:, None, None]  # (H, 1, 1)
        return q.to(v.dtype), self._repeat(k.to(v.dtype)), self._repeat(v)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        return self._mix(x, *self.split(x), mask=self.mask(x))

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        return self._kernel_scores(q, k, scale=self.scale, mod=self._mod())

    def _mod(self, start: int = 0) -> kernels.Mod:
        """The function that applies softcap and score_mod, for queries from `start` on."""
        if not self.adjusts:
            return None

        def mod(scores: Tensor) -> Tensor:
            if self.softcap is not None:
                scores = self.softcap * (scores / self.softcap).tanh()
            if self.score_mod is not None:
                k = torch.arange(scores.shape[-1], device=scores.device)[None, :]
                q = torch.arange(scores.shape[-2], device=scores.device)[:, None] + start
                scores = self.score_mod(scores, q, k)
            return scores

        return mod

    def extend(self, x: Tensor, cache: KVCache) -> Tensor:
        """The output of `forward` at the positions of x (B, T, C), which follow the cached ones.

        Their keys and values are added to the cache, which only this layer may use. The layer must
        be `cacheable`.
        """
        start, stop = len(cache), len(cache) + x.shape[1]
        whole = build_mask(self.may_attend, self.block_size, x.device)
        mask = whole[start:stop, :stop] if start else self.mask(x)
        q, k, v = self.split(x, start)
        return self._mix(x, q, *cache.append(k, v), mask=mask, start=start)

    def _mix(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, start: int = 0
    ) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        y = self._call_kernel(q, k, v, mask=mask, dropout=dropout, start=start)
        return self.proj(self.merge(y, x, v[:, :, start:]))

    def _call_kernel(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, dropout: float, start: int = 0
    ) -> Tensor:
        options: dict[str, Any] = {"mod": self._mod(start)} if self.adjusts else {}
        return self.kernel(q, k, v, mask=mask, scale=self.scale, dropout=dropout, **options)

    def pattern(self, x: Tensor) -> Tensor:
        """The weights of the kernel, read off by passing the identity as the values."""
        q, k, _ = self.split(x)
        B, _, T, _ = q.shape
        one_hot = torch.eye(T, dtype=q.dtype, device=q.device).expand(B, self.n_head, T, T)
        return self._call_kernel(q, k, one_hot, mask=self.mask(x), dropout=0.0)


def _hides(kernel: kernels.Kernel) -> bool:
    """Whether a kernel gives something else than NaN for a query without keys."""
    one = torch.zeros(1, 1, 1, 1)
    return not kernel(one, one, one, mask=one[0, 0] > 0, scale=1.0, dropout=0.0).isnan().all()
