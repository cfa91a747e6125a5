"""Self-attention: any kernel, with the settings that act before, inside and after the mix.

Letters: B batch, T time, C channels, H heads, D = C // H.
"""

import math
from inspect import signature
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from attnlab.attention import kernels, masks
from attnlab.attention.cache import KVCache, Memo
from attnlab.attention.layer import Attention
from attnlab.attention.masks import name_of
from attnlab.attention.positions import rotate
from attnlab.attention.properties import SOFTMAX, Properties, properties_of
from attnlab.attention.rms_norm import rms_normalize
from attnlab.attention.variant import AttentionConfig
from attnlab.rng import Rule, ones


class SelfAttention(Attention):
    """Multi-head self-attention with any kernel (Vaswani et al. 2017, section 3.2).

    It supports every setting of `AttentionConfig`. A forward pass calls `split`, `values`, `mask`,
    `options`, `mix` and `merge`, each of which a subclass may override. Raises the errors of
    `Attention`, and ValueError for settings that do not fit together, such as rotary positions and
    an odd D.
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
        self.kernel, self.window = config.kernel, config.window
        self.adjusts = self.softcap is not None or self.score_mod is not None
        if self.adjusts:
            self.require_option("mod", "softcap and score_mod")
        self.gain = nn.Parameter(torch.ones(self.n_head)) if config.qk_norm else None
        of_kernel = properties_of(self.kernel)
        of_mod = SOFTMAX if self.score_mod is None else properties_of(self.score_mod)
        self._declare(of_kernel, of_mod)
        self._kernel_scores = (of_kernel and of_kernel.scores) or kernels.scores
        plain = self._kernel_scores is kernels.scores and not self.adjusts and rotary is None
        self.bilinear = self.properties is not None and plain and not config.qk_norm

    def require_option(self, option: str, settings: str) -> None:
        """Raise ValueError if the kernel does not name the option that some settings need."""
        if option not in signature(self.kernel).parameters:
            raise ValueError(
                f"the kernel {name_of(self.kernel)} does not support {settings}; remove them, or "
                f"use kernel = manual"
            )

    def split(self, x: Tensor, cache: KVCache | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys as the kernel gets them, and values: three of (B, H, T, D).

        The rows of x (B, T, C) follow the cached ones.
        """
        start = 0 if cache is None else len(cache)
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

    def forward(self, x: Tensor, memo: Memo | None = None) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        return self._attend(x, None, memo)

    def extend(self, x: Tensor, cache: KVCache, memo: Memo | None = None) -> Tensor:
        y = self._attend(x, cache, memo)
        cache.advance(x.shape[1])
        return y

    def _attend(self, x: Tensor, cache: KVCache | None, memo: Memo | None) -> Tensor:
        q, k, v = self.split(x, cache)
        if memo is not None:
            memo.setdefault("values", v)
        v = self.values(v, memo)
        options, mask = self.options(x, cache), self.mask(x)
        keys, of_keys = k, v
        if cache is not None:
            keys, of_keys = self._with_cached(k, v, cache)
            start, stop = len(cache), len(cache) + x.shape[1]
            if start:
                whole = self.mask(x.new_empty(1, self.block_size, 0))
                mask = whole[..., start:stop, stop - keys.shape[2] : stop]
        dropout = self.dropout if self.training else 0.0
        mixed = self.mix(q, keys, of_keys, mask=mask, dropout=dropout, options=options)
        return self.proj(self.merge(mixed, x, v))

    def _with_cached(self, k: Tensor, v: Tensor, cache: KVCache) -> tuple[Tensor, Tensor]:
        """The keys and values (B, H, S, D) up to the new positions; shared ones are cached once,
        and only as many as a window needs."""
        group = self.n_head // self.n_kv_head
        most = None if self.window is None else self.window - 1
        keys, values = cache.append(k[:, ::group], v[:, ::group], most=most)
        return self._repeat(keys), self._repeat(values)

    def values(self, v: Tensor, memo: Memo | None) -> Tensor:
        """The values (B, H, T, D) that are averaged, and cached: v, those of `split`.

        A subclass may mix in `memo["values"]`, those of the first layer, or use `memo["ids"]`.
        """
        return v

    def scores(self, x: Tensor) -> Tensor:
        """The scores before mask and softmax: (B, T, C) -> (B, H, T, T), fp32 at least."""
        q, k, _ = self.split(x)
        return self.scores_of(q, k, self.mod(x))

    def scores_of(self, q: Tensor, k: Tensor, mod: kernels.Mod) -> Tensor:
        """The scores of queries and keys (B, H, T, D): (B, H, T, T)."""
        return self._kernel_scores(q, k, scale=self.scale, mod=mod)

    def mod(self, x: Tensor, cache: KVCache | None = None) -> kernels.Mod:
        """The function that changes the scaled scores (B, H, T, S) of x (B, T, C), whose rows
        follow the cached ones: softcap, then score_mod; None if nothing does."""
        if not self.adjusts:
            return None
        stop = x.shape[1] + (0 if cache is None else len(cache))

        def change(scores: Tensor) -> Tensor:
            if self.softcap is not None:
                scores = self.softcap * (scores / self.softcap).tanh()
            if self.score_mod is not None:
                T, S = scores.shape[-2:]
                k = torch.arange(stop - S, stop, device=scores.device)[None, :]
                q = torch.arange(stop - T, stop, device=scores.device)[:, None]
                scores = self.score_mod(scores, q, k)
            return scores

        return change

    def options(self, x: Tensor, cache: KVCache | None = None) -> dict[str, Any]:
        """What the kernel gets by name besides mask, scale and dropout, such as `mod`."""
        mod = self.mod(x, cache)
        return {} if mod is None else {"mod": mod}

    def mix(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor,
        dropout: float,
        options: dict[str, Any],
    ) -> Tensor:
        """The kernel: queries (B, H, T, D), keys and values (B, H, S, D) -> (B, H, T, D)."""
        return self.kernel(q, k, v, mask=mask, scale=self.scale, dropout=dropout, **options)

    def pattern(self, x: Tensor) -> Tensor:
        """The weights of the kernel, read off by passing the identity as the values."""
        q, k, _ = self.split(x)
        B, _, T, _ = q.shape
        one_hot = torch.eye(T, dtype=q.dtype, device=q.device).expand(B, self.n_head, T, T)
        options = self.options(x)
        return self.mix(q, k, one_hot, mask=self.mask(x), dropout=0.0, options=options)


def _hides(kernel: kernels.Kernel) -> bool:
    """Whether a kernel gives something else than NaN for a query without keys."""
    one = torch.zeros(1, 1, 1, 1)
    return not kernel(one, one, one, mask=one[0, 0] > 0, scale=1.0, dropout=0.0).isnan().all()
