"""Self-attention: any kernel, with the settings that act before, inside and after the mix.

Letters: B batch, T time, C channels, H heads, D = C // H.
"""

from dataclasses import replace
from inspect import signature
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention import kernels, masks
from attnlab.attention.additions import additions, rotated_channels
from attnlab.attention.cache import KVCache, Memo
from attnlab.attention.convolution import convolve
from attnlab.attention.layer import Attention
from attnlab.attention.masks import name_of
from attnlab.attention.positions import rotate
from attnlab.attention.properties import SOFTMAX, Properties, properties_of
from attnlab.attention.rms_norm import rms_normalize
from attnlab.attention.variant import AttentionConfig, check_sizes
from attnlab.rng import Rule, ones

Options = dict[str, Any]  # of a kernel, by name


class SelfAttention(Attention):
    """Multi-head self-attention with any kernel (Vaswani et al. 2017, section 3.2).

    It supports every setting of `AttentionConfig`. A forward pass calls `split`, `values`, `mask`,
    `options`, `mix` and `merge`, each of which a subclass may override. Raises the errors of
    `Attention`, and ValueError for settings that do not fit together, such as rotary positions and
    an odd D.
    """

    init_rules: ClassVar[dict[str, Rule]] = {"gain": ones}
    properties: Properties | None = SOFTMAX  # of a kernel that is one

    # There if their setting is on; see `additions`.
    gate: nn.Linear
    forget: nn.Linear
    value_embeddings: nn.Embedding
    value_mix: nn.Parameter
    sink: nn.Parameter
    conv: nn.Parameter
    length_gain: nn.Parameter

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self.rotary = rotary = config.rotary
        self.rotated = rotated_channels(config, self.head_size)
        if config.may_attend in masks.LEAVES_QUERIES_WITHOUT_KEYS and _hides(config.kernel):
            raise ValueError(
                f"the mask {name_of(config.may_attend)} leaves a query without keys, for which "
                f"the kernel {name_of(config.kernel)} silently returns zeros; use kernel = manual"
            )
        self.softcap, self.score_mod = config.softcap, config.score_mod
        if self.softcap is not None and not 1e-30 <= self.softcap <= 1e30:  # finite in fp32
            raise ValueError(f"softcap = {self.softcap:g} must be from 1e-30 to 1e30, or null")
        self.kernel, self.window = config.kernel, config.window
        self.kept = None if config.window is None else config.window - 1  # positions in a cache
        self.gain = nn.Parameter(torch.ones(self.n_head)) if config.qk_norm else None
        self.exclusive, self.top_k = config.exclusive, config.top_k
        self.first = config.layer == 0
        parts, self.added_rules = additions(config, self.n_head, sum(self.qkv_sizes))
        for name, part in parts.items():
            setattr(self, name, part)
        # A subclass may have parameters of the same names: only these act here.
        self.added = frozenset(parts)
        if config.sink:
            self.require_option("sink", "sink", use="softmax1")
        if config.top_k is not None:
            check_sizes({"top_k": config.top_k})
            self.require_option("top_k", "top_k", use="top_k")
        if self.kernel is kernels.linear:  # no dot products that they could multiply
            config.require_default("qk_norm", "length_scale", by="the kernel linear")
        forgets = "forget" in self.added
        self.adjusts = self.softcap is not None or self.score_mod is not None or forgets
        if self.adjusts:
            self.require_option("mod", "forget" if forgets else "softcap and score_mod")
        of_kernel = properties_of(self.kernel)
        of_mod = SOFTMAX if self.score_mod is None else properties_of(self.score_mod)
        self._declare(of_kernel, of_mod, replace(SOFTMAX, causal_only=forgets))
        self._kernel_scores = (of_kernel and of_kernel.scores) or kernels.scores
        plain = self._kernel_scores is kernels.scores and not self.adjusts and rotary is None
        unchanged = self.gain is None and not self.added & {"length_gain", "conv"}
        self.bilinear = self.properties is not None and plain and unchanged

    def initial(self, qk_std: float) -> dict[str, Rule]:
        return self.added_rules

    def require_option(self, option: str, settings: str, *, use: str = "manual") -> None:
        """Raise ValueError if the kernel does not name the option that some settings need."""
        if option not in signature(self.kernel).parameters:
            raise ValueError(
                f"the kernel {name_of(self.kernel)} does not support {settings}; remove them, or "
                f"use kernel = {use}"
            )

    def split(self, x: Tensor, cache: KVCache | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys as the kernel gets them, and values: three of (B, H, T, D).

        The rows of x (B, T, C) follow the cached ones.
        """
        rows = self.qkv(x)
        if "conv" in self.added:
            rows = rows + convolve(rows, self.conv, cache)
        q, k, v = (self.to_heads(part) for part in self.split_qkv(rows, dim=-1))
        if self.gain is not None or self.rotary is not None or "length_gain" in self.added:
            q, k = self._placed(q, k, 0 if cache is None else len(cache))
        return q, self._repeat(k), self._repeat(v)

    def _placed(self, q: Tensor, k: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Normalized, rotated and multiplied queries and keys (B, h, T, D), from `start` on."""
        dtype, r = q.dtype, self.rotated
        exact = torch.promote_types(dtype, torch.float32)  # there and back once for all
        q, k = q.to(exact), k.to(exact)
        if self.gain is not None:
            q, k = rms_normalize(q), rms_normalize(k)
        if self.rotary is not None and r == self.head_size:
            q, k = rotate(q, self.rotary, start), rotate(k, self.rotary, start)
        elif self.rotary is not None:
            q, k = (
                torch.cat([rotate(u[..., :r], self.rotary, start), u[..., r:]], -1) for u in (q, k)
            )
        if self.gain is not None:
            q = q * self.gain[:, None, None]  # (H, 1, 1)
        if "length_gain" in self.added:
            n = torch.arange(start + 1, start + q.shape[2] + 1, device=q.device)
            q = q * self.length_gain[:, None, None] * n.to(exact).log()[:, None]
        return q.to(dtype), k.to(dtype)

    def forward(self, x: Tensor, memo: Memo | None = None) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        return self._attend(x, None, memo)

    def extend(self, x: Tensor, cache: KVCache, memo: Memo | None = None) -> Tensor:
        y = self._attend(x, cache, memo)
        cache.advance(x.shape[1])
        return y

    def _attend(self, x: Tensor, cache: KVCache | None, memo: Memo | None) -> Tensor:
        q, k, v = self.split(x, cache)
        if memo is not None and self.first:
            memo["values"] = self.shared_once(v)
        v = self.values(v, memo)
        options, mask = self.options(x, cache), self.mask(x)
        keys, of_keys = k, v
        if cache is not None:
            keys, of_keys = self.cached(x, k, v, cache)
            start, stop = len(cache), len(cache) + x.shape[1]
            if start:
                whole = self.mask(x.new_empty(1, self.block_size, 0))
                mask = whole[..., start:stop, stop - keys.shape[2] : stop]
        options["dropout"] = self.dropout if self.training else 0.0
        return self.proj(self.merge(self.mix(q, keys, of_keys, mask, options), x, v))

    def cached(self, x: Tensor, k: Tensor, v: Tensor, cache: KVCache) -> tuple[Tensor, Tensor]:
        """The keys and values (B, H, S, D) up to the new positions; shared ones are cached once,
        and only as many as a window needs."""
        keys, values = cache.append(self.shared_once(k), self.shared_once(v), most=self.kept)
        return self._repeat(keys), self._repeat(values)

    def values(self, v: Tensor, memo: Memo | None) -> Tensor:
        """The values (B, H, T, D) that are averaged, and cached: v, those of `split`.

        With `value_residual` and `value_embeddings`, v is mixed with `memo["values"]`, those of
        the first layer, or with an embedding of `memo["ids"]`.
        """
        if "value_mix" not in self.added:
            return v
        if memo is None:
            raise ValueError("value_residual and value_embeddings need the memo of a model")
        if "value_embeddings" in self.added:
            other = self.to_heads(self.value_embeddings(memo["ids"]))
        elif "values" in memo and memo["values"].shape == self.shared_once(v).shape:
            other = memo["values"]
        else:
            raise ValueError("value_residual: the first layer gives no values of as many heads")
        return v + self.value_mix * (self._repeat(other) - v)

    def merge(self, mixed: Tensor, x: Tensor, v: Tensor) -> Tensor:
        if self.exclusive:  # |v| = 0 only where the mix has no part along v
            along = (mixed * v).sum(-1, keepdim=True) / v.square().sum(-1, keepdim=True).clamp(
                min=1e-8
            )
            mixed = mixed - along * v
        if "gate" in self.added:
            gate = self.gate(x).sigmoid().unflatten(-1, (self.n_head, -1))  # (B, T, H, 1 or D)
            mixed = mixed * gate.transpose(1, 2)
        return super().merge(mixed, x, v)

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
        kept = self._log_kept(x, cache)

        def change(scores: Tensor) -> Tensor:
            if self.softcap is not None:
                scores = self.softcap * (scores / self.softcap).tanh()
            if self.score_mod is not None:
                T, S = scores.shape[-2:]
                k = torch.arange(stop - S, stop, device=scores.device)[None, :]
                q = torch.arange(stop - T, stop, device=scores.device)[:, None]
                scores = self.score_mod(scores, q, k)
            if kept is not None:
                T, S = scores.shape[-2:]
                scores = scores + kept[..., -T:, None] - kept[..., None, -S:]
            return scores

        return change

    def _log_kept(self, x: Tensor, cache: KVCache | None) -> Tensor | None:
        """The sum of the logarithms of all forget gates up to each position: (B, H, S)."""
        if "forget" not in self.added:
            return None
        exact = torch.promote_types(x.dtype, torch.float32)
        gates = F.logsigmoid(self.forget(x).to(exact)).mT  # (B, H, T)
        if cache is None:
            return gates.cumsum(-1)
        before = cache.carried.get("log_kept", gates[..., :0])
        last = before[..., -1:] if before.shape[-1] else 0.0
        sums = torch.cat([before, last + gates.cumsum(-1)], -1)
        first = 0 if self.kept is None else max(0, sums.shape[-1] - self.kept)
        cache.carried["log_kept"] = sums[..., first:]
        return sums

    def options(self, x: Tensor, cache: KVCache | None = None) -> Options:
        """What the kernel gets by name besides mask and scale, with the dropout of a pattern."""
        options: Options = {"dropout": 0.0, "mod": self.mod(x, cache), "top_k": self.top_k}
        options["sink"] = self.sink if "sink" in self.added else None
        return {name: option for name, option in options.items() if option is not None}

    def mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, options: Options) -> Tensor:
        """The kernel: queries (B, H, T, D), keys and values (B, H, S, D) -> (B, H, T, D)."""
        return self.kernel(q, k, v, mask=mask, scale=self.scale, **options)

    def mix_flops(self, keys: int) -> int:
        declared = properties_of(self.kernel)
        if declared is None or declared.flops is None:
            return super().mix_flops(keys)
        return self.n_head * declared.flops(self.head_size)

    def pattern(self, x: Tensor) -> Tensor:
        """The weights of the kernel, read off by passing the identity as the values."""
        q, k, _ = self.split(x)
        return self.mix(q, k, kernels.one_hot(k), self.mask(x), self.options(x))


def _hides(kernel: kernels.Kernel) -> bool:
    """Whether a kernel gives something else than NaN for a query without keys."""
    one = torch.zeros(1, 1, 1, 1)
    return not kernel(one, one, one, mask=one[0, 0] > 0, scale=1.0, dropout=0.0).isnan().all()
