"""The base class of the attention layers: projections and heads around a pattern.

Letters: B batch, T time, C channels, H heads, D = C // H.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from attnlab.attention import kernels, masks
from attnlab.attention.cache import KVCache
from attnlab.attention.masks import build_mask, name_of
from attnlab.attention.properties import SOFTMAX, Properties, combined
from attnlab.attention.variant import AttentionConfig, check_divides, check_dropout, check_sizes
from attnlab.rng import Rule


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
    cacheable = False  # of a layer: `extend` gives the outputs of `forward`

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
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
        self._declare()

    def _declare(self, kernel: Properties | None = SOFTMAX, *parts: Properties | None) -> None:
        """Set the properties to those that the class, the kernel and other parts declare."""
        self.properties = combined(kernel, *parts, vars(type(self)).get("properties"))
        self.cacheable = False
        if self.properties is not None:
            back = masks.looks_back(self.may_attend, self.block_size)
            self.cacheable = self.properties.cacheable and back
            if self.properties.causal_only and not back:
                raise ValueError(
                    f"{type(self).__name__} needs a mask without later keys; "
                    f"remove may_attend = {name_of(self.may_attend)}"
                )

    def initial(self, qk_std: float) -> dict[str, Rule]:
        """Rules that depend on the settings, or on the standard deviation of query and key
        weights, by parameter name; `init_rules` holds the others."""
        return {}

    def split_qkv(self, rows: Tensor, dim: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """The views for queries, keys and values of a tensor with the rows of `qkv`."""
        parts = rows.split(self.qkv_sizes, dim)
        return parts[0], parts[0 if self.shared else 1], parts[-1]

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project to queries, keys and values: (B, T, C) -> three of (B, H, T, D)."""
        q, k, v = (self.to_heads(part) for part in self.split_qkv(self.qkv(x), dim=-1))
        return q, self._repeat(k), self._repeat(v)

    def to_heads(self, x: Tensor) -> Tensor:
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

    def shared_once(self, repeated: Tensor) -> Tensor:
        """The inverse of `_repeat`: (B, H, T, D) -> (B, n_kv_head, T, D)."""
        return repeated[:, :: self.n_head // self.n_kv_head]

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
        return kernels.scores(q, k, scale=self.scale)

    def mask(self, x: Tensor) -> Tensor:
        """The (T, T) mask for x (B, T, C), True = may attend."""
        return build_mask(self.may_attend, x.shape[1], x.device)

    def pattern(self, x: Tensor) -> Tensor:
        """The weights that average the values, without dropout: (B, T, C) -> (B, H, T, T)."""
        raise NotImplementedError

    def flops(self, T: int) -> int:
        """FLOPs of the algorithm for one position of a text of T, forward: two for each
        multiplication of a matrix product. A query has the keys of its mask; the causal mask
        counts T."""
        linear = (m.weight.numel() for m in self.modules() if isinstance(m, nn.Linear))
        keys = int(self.mask(self.qkv.weight.new_empty(1, T, 0)).sum(-1).max())
        return 2 * sum(linear) + self.mix_flops(keys)

    def mix_flops(self, keys: int) -> int:
        """FLOPs of the scores and the average of `keys` values, for a query and all heads."""
        return 4 * self.n_head * self.head_size * keys

    def extend(self, x: Tensor, cache: KVCache) -> Tensor:
        """The output of `forward` at the positions of x (B, T, C), which follow the cached ones.

        It adds them to the cache, which only this layer may use, and advances it. Only a
        `cacheable` layer has it. Like `forward`, it gets the `Memo` if it names `memo`.
        """
        raise NotImplementedError

    def extra_repr(self) -> str:
        return (
            f"n_head={self.n_head}, scale={self.scale:g}, may_attend={name_of(self.may_attend)}, "
            f"dropout={self.dropout}"
        )
