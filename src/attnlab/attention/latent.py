"""Multi-head latent attention: keys and values are projected up from one small vector."""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from attnlab.attention import kernels
from attnlab.attention.cache import KVCache
from attnlab.attention.positions import rotate
from attnlab.attention.properties import SOFTMAX
from attnlab.attention.rms_norm import RMSNorm
from attnlab.attention.self_attention import SelfAttention
from attnlab.attention.variant import AttentionConfig, check_sizes
from attnlab.rng import Rule, normal, ones


class LatentAttention(SelfAttention):
    """Multi-head latent attention (DeepSeek-AI 2024, 2405.04434, section 2.1).

    Each position is projected to `latent` numbers c, whose root mean square is made 1, and to
    `rotated` more, which all heads share and which get rotary positions. A head's key is an up
    projection of c beside the rotated part, and its value another up projection of c. Its query
    has D + `rotated` channels, of which the last are rotated; unlike in the paper, it comes from
    the input, without a small vector of its own. The scale is 1/sqrt(D + rotated). Only c and the
    rotated part are cached: latent + rotated numbers per position instead of 2 C.

    `qkv` holds the rows of queries (H (D + rotated)), of c, and of the shared part; `up` those of
    keys and values (2 C, latent). By default, latent is C / 2, and rotated D / 2 rounded down to
    an even number. Raises ValueError for settings that need keys of their own, such as n_kv_head,
    qk_norm, shared, rotary or head_init, and for the kernel linear.
    """

    init_rules: ClassVar[dict[str, Rule]] = {"norm.weight": ones}
    properties = SOFTMAX

    def __init__(
        self,
        config: AttentionConfig,
        *,
        latent: int | None = None,
        rotated: int | None = None,
        base: float = 10_000.0,
    ) -> None:
        unsupported = "n_kv_head qk_norm shared rotary head_init conv length_scale".split()
        unsupported += ["value_residual", "value_embeddings"]  # values come from the cached c
        config.require_default(*unsupported, by="LatentAttention")
        if config.kernel is kernels.linear:  # a rotated part of its features is no position
            raise ValueError("LatentAttention does not support kernel = linear; remove it")
        super().__init__(config)
        C, H, D = config.n_embd, self.n_head, self.head_size
        self.latent = max(1, C // 2) if latent is None else latent
        self.rotated = max(2, D // 4 * 2) if rotated is None else rotated
        check_sizes({"latent": self.latent, "rotated": self.rotated})
        if self.rotated % 2:
            raise ValueError(f"rotated = {rotated} must be even, since pairs are rotated")
        self.base, self.bilinear = base, False
        if config.scale is None:
            self.scale = 1 / math.sqrt(D + self.rotated)
        elif config.scale == "1/D":
            self.scale = 1 / (D + self.rotated)
        self.qkv_sizes = [H * (D + self.rotated), self.latent, self.rotated]
        self.qkv = nn.Linear(C, sum(self.qkv_sizes), bias=config.bias)
        self.norm = RMSNorm(self.latent)
        self.up = nn.Linear(self.latent, 2 * C, bias=False)

    def initial(self, qk_std: float) -> dict[str, Rule]:
        """Queries, keys and values of the variances that they have with full projections."""
        C = self.proj.in_features
        wider = math.sqrt(C / self.latent)  # c has mean square 1, like x, but fewer channels

        def up(weight: Tensor, stream: torch.Generator) -> None:
            k, v = torch.randn(2, C, self.latent, generator=stream)
            weight.copy_(torch.cat([k * qk_std * wider, v * 0.02 * wider]))

        return super().initial(qk_std) | {"qkv.weight": normal(qk_std), "up.weight": up}

    def split(self, x: Tensor, cache: KVCache | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys (B, H, T, D + rotated) and values (B, H, T, D)."""
        start = 0 if cache is None else len(cache)
        q, c, shared = self.qkv(x).split(self.qkv_sizes, -1)
        q = q.unflatten(-1, (self.n_head, -1)).transpose(1, 2)
        plain, turned = q.split([self.head_size, self.rotated], -1)
        q = torch.cat([plain, rotate(turned, self.base, start)], -1)
        return q, *self._keys_and_values(*self._compressed(c, shared, start))

    def _compressed(self, c: Tensor, shared: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """What is cached of T positions: c (B, T, latent) and the rotated part."""
        return self.norm(c), rotate(shared, self.base, start)

    def _keys_and_values(self, c: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        k, v = (self.to_heads(part) for part in self.up(c).chunk(2, -1))
        return torch.cat([k, shared[:, None].expand(-1, self.n_head, -1, -1)], -1), v

    def cached(self, x: Tensor, k: Tensor, v: Tensor, cache: KVCache) -> tuple[Tensor, Tensor]:
        """Keys and values of all positions so far, from the cached c and rotated parts."""
        _, c, shared = self.qkv(x).split(self.qkv_sizes, -1)
        kept = self._compressed(c, shared, len(cache))
        return self._keys_and_values(*cache.append(*kept, most=self.kept))

    def mix_flops(self, keys: int) -> int:
        return super().mix_flops(keys) + 2 * self.n_head * self.rotated * keys

    def qkv_of_heads(self) -> Tensor:
        """The weight (3C, C) of queries, keys and values, without the rotated channels and the
        division of c by its root mean square, which all heads share."""
        q, c, _ = self.qkv.weight.split(self.qkv_sizes)
        q = q.unflatten(0, (self.n_head, -1))[:, : self.head_size].flatten(0, 1)
        return torch.cat([q, self.up.weight @ (self.norm.weight[:, None] * c)])
