"""Scores of queries and keys, and layers with other scores: additive, general, differential.

Letters: B batch, H heads, T queries, S keys, C channels, D channels of a head, A the hidden width
of the additive score.

Every score is called as `score(q, k)`: q (..., T, D_q), k (..., S, D_k) -> (..., T, S), fp32 at
least. Scores with weights are modules. Their queries and keys may have different widths, as in a
decoder with an encoder.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attnlab.attention import kernels
from attnlab.attention.cache import KVCache
from attnlab.attention.properties import SOFTMAX, Properties
from attnlab.attention.rms_norm import rms_normalize
from attnlab.attention.self_attention import Options, SelfAttention
from attnlab.attention.variant import AttentionConfig, check_sizes
from attnlab.rng import Rule, normal

Score = Callable[[Tensor, Tensor], Tensor]

# The largest tensor inside the tanh of the additive score: 64 MiB in fp32.
BUDGET = 2**24


def dot(q: Tensor, k: Tensor) -> Tensor:
    """q . k (Luong et al. 2015, section 3.1): of variance D where q and k have variance 1."""
    return kernels.scores(q, k, scale=1.0)


def scaled_dot(q: Tensor, k: Tensor) -> Tensor:
    """q . k / sqrt(D) (Vaswani et al. 2017, equation 1)."""
    return kernels.scores(q, k, scale=1 / math.sqrt(q.shape[-1]))


class Additive(nn.Module):
    """v . tanh(W q + U k) (Bahdanau et al. 2015, appendix A.1.2).

    For queries and keys of variance 1, initial scores have a variance of at most 1, like scaled
    dot products: W and U start by PyTorch's rule, v at 1/sqrt(A). A positive v is no restriction:
    tanh is odd, so the signs are in the rows of W and U. The sizes are D_q, D_k and A.
    """

    def __init__(self, query_size: int, key_size: int, hidden_size: int) -> None:
        super().__init__()
        check_sizes({"query_size": query_size, "key_size": key_size, "hidden_size": hidden_size})
        self.query = nn.Linear(query_size, hidden_size, bias=False)  # W
        self.key = nn.Linear(key_size, hidden_size, bias=False)  # U
        self.v = nn.Parameter(torch.full((hidden_size,), hidden_size**-0.5))

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """(..., T, D_q), (..., S, D_k) -> (..., T, S)."""
        return additive(self.query(q), self.key(k), self.v)


def additive(a: Tensor, b: Tensor, v: Tensor) -> Tensor:
    """v . tanh(a_t + b_s) for every pair, in bounded memory: (..., T, S), fp32 at least.

    The projected queries a are (..., T, A), the keys b (..., S, A), and v is (A,), or (H, A) where
    a and b are (B, H, ..., A). If the T * S * A inputs of the tanh exceed `BUDGET`, queries are
    processed in chunks, which the backward pass recomputes instead of storing.
    """
    dtype = torch.promote_types(a.dtype, torch.float32)
    a, b, v = a.to(dtype), b.to(dtype), v.to(dtype)
    v = v[:, None] if v.ndim == 1 else v[:, None, :, None]  # (A, 1) or (H, 1, A, 1)
    chunk = max(1, BUDGET // max(1, b.numel()))  # b has as many numbers as the tanh of one query
    if a.shape[-2] <= chunk:
        return _additive(a, b, v)
    parts = [
        checkpoint(_additive, part, b, v, use_reentrant=False, preserve_rng_state=False)
        for part in a.split(chunk, dim=-2)
    ]
    return torch.cat(parts, dim=-2)


def _additive(a: Tensor, b: Tensor, v: Tensor) -> Tensor:
    with torch.autocast(a.device.type, enabled=False):
        hidden = (a.unsqueeze(-2) + b.unsqueeze(-3)).tanh()  # (..., T, S, A)
        return (hidden @ v).squeeze(-1)


def unit_variance(weight: Tensor, stream: torch.Generator) -> None:
    """Fill (H, D) with 1/sqrt(D), so that scores have a variance of at most 1."""
    weight.fill_(weight.shape[-1] ** -0.5)


class AdditiveAttention(SelfAttention):
    """A layer with the scores v . tanh(q + k), v (D,) for each head (Bahdanau et al. 2015, A.1.2).

    The projections to q and k are the W and U of the paper, and v starts as that of `Additive`.
    With the small weights of GPT-2's initialization tanh is nearly linear, and every query of a
    head starts with the same preferred keys. Raises the errors of `SelfAttention`, and ValueError
    for a kernel, a scale, shared heads, qk_norm, rotary, score_mod, softcap, forget or
    length_scale.
    """

    init_rules: ClassVar[dict[str, Rule]] = {"v": unit_variance}
    properties = replace(SOFTMAX, cacheable=False)

    def __init__(self, config: AttentionConfig) -> None:
        unsupported = "kernel scale n_kv_head qk_norm rotary score_mod softcap forget".split()
        config.require_default(*unsupported, "length_scale", by="AdditiveAttention")
        super().__init__(replace(config, scale=1.0, kernel=kernels.manual))
        self.bilinear = False
        self.v = nn.Parameter(torch.full((self.n_head, self.head_size), self.head_size**-0.5))

    def scores_of(self, q: Tensor, k: Tensor, mod: kernels.Mod) -> Tensor:
        """v . tanh(q + k): (B, H, T, T)."""
        return additive(q, k, self.v)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, options: Options) -> Tensor:
        """The average of the values (B, H, S, D), weighted by the softmax of the scores."""
        pattern = kernels.masked_softmax(self.scores_of(q, k, None), mask)
        return kernels.mix(pattern, v, dropout=options["dropout"])


def identity(weight: Tensor, stream: torch.Generator) -> None:
    """Make each of (H, D, D) the identity."""
    weight.copy_(torch.eye(weight.shape[-1]))


class GeneralAttention(SelfAttention):
    """A layer with the scores q W k, W (D, D) for each head (Luong et al. 2015, section 3.1).

    q W takes the place of q, so any kernel works. W starts as the identity, with which the layer
    is bit-identical to `SelfAttention`. Since q and k are projections already, W adds no function
    to the layer, only another way to train it.
    Raises the errors of `SelfAttention`, and ValueError for shared heads, qk_norm or rotary.
    """

    init_rules: ClassVar[dict[str, Rule]] = {"W": identity}
    properties = replace(SOFTMAX, cacheable=False)

    def __init__(self, config: AttentionConfig) -> None:
        config.require_default("n_kv_head", "qk_norm", "rotary", by="GeneralAttention")
        super().__init__(config)
        D = self.head_size
        self.W = nn.Parameter(torch.eye(D).repeat(self.n_head, 1, 1))  # (H, D, D)

    def split(self, x: Tensor, cache: KVCache | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries times W, keys and values: three of (B, H, T, D)."""
        q, k, v = super().split(x, cache)
        return q @ self.W.to(q.dtype), k, v

    def flops(self, T: int) -> int:
        return super().flops(T) + 2 * self.W.numel()

    def qkv_of_heads(self) -> Tensor:
        """The weight (3C, C) of queries, keys and values, W included."""
        q, k, v = super().qkv_of_heads().unflatten(0, (3, self.n_head, -1))  # each (H, D, C)
        return torch.stack([self.W.mT @ q, k, v]).flatten(0, 2)


class DifferentialAttention(SelfAttention):
    """Each head subtracts a second softmax, times a learned lambda (Ye et al. 2024, eq. 1 to 3).

    Queries and keys are two halves of D/2 channels, whose scores are scaled by 1/sqrt(D/2). The
    pattern is P1 - lambda P2, so weights may be negative and rows sum to 1 - lambda. Mixed values
    are divided by their root mean square, without a gain, and multiplied by 1 - lambda_init.
    For all heads, lambda is exp(a . b) - exp(c . d) + lambda_init, with the rows a to d of
    `lambdas` (4, D/2), and lambda_init = 0.8 - 0.6 exp(-0.3 l) in layer l = 0, 1, ...
    Raises the errors of `SelfAttention`, and ValueError for an odd D, qk_norm or rotary.
    """

    init_rules: ClassVar[dict[str, Rule]] = {"lambdas": normal(0.1)}
    properties = Properties(cacheable=True)

    def __init__(self, config: AttentionConfig) -> None:
        config.require_default("qk_norm", "rotary", by="DifferentialAttention")
        super().__init__(config)
        D = self.head_size
        if D % 2:
            raise ValueError(f"DifferentialAttention halves a head, so its width {D} must be even")
        if config.scale in (None, "1/D"):  # of D/2 channels
            self.scale *= 2 if config.scale else math.sqrt(2)
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * config.layer)
        self.lambdas = nn.Parameter(torch.zeros(4, D // 2))
        self.bilinear = False

    def scores(self, x: Tensor) -> Tensor:
        """The scores of the first softmax, before its mask: (B, T, C) -> (B, H, T, T)."""
        q, k, _ = self.split(x)
        return self.scores_of(q.chunk(2, dim=-1)[0], k.chunk(2, dim=-1)[0], self.mod(x))

    def merge(self, mixed: Tensor, x: Tensor, v: Tensor) -> Tensor:
        """The normalized heads as `proj` gets them: (B, H, T, D) -> (B, T, C)."""
        return super().merge(rms_normalize(mixed) * (1 - self.lambda_init), x, v)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, options: Options) -> Tensor:
        """The difference of two kernels, each with half of the channels of q and k."""
        (q1, q2), (k1, k2) = q.chunk(2, dim=-1), k.chunk(2, dim=-1)
        attend = partial(super().mix, mask=mask, options=options)
        ab, cd = (self.lambdas[::2] * self.lambdas[1::2]).sum(-1)  # a . b and c . d
        return attend(q1, k1, v) - (ab.exp() - cd.exp() + self.lambda_init) * attend(q2, k2, v)


class DifferentialAttentionV2(SelfAttention):
    """Each head subtracts a second one, times a learned number of its input (Ye et al. 2026, V2).

    Two heads of queries, from `qkv` and from `second`, share a head of keys and values. The
    pattern is P1 - lambda P2 with lambda = sigmoid(w x) of each head and query, so weights may be
    negative, and rows sum to 1 - lambda. Unlike `DifferentialAttention`, it has whole heads, no
    norm and no lambda_init. Raises ValueError for n_kv_head, qk_norm, shared, conv or
    length_scale.
    """

    init_rules: ClassVar[dict[str, Rule]] = {"lambdas.weight": normal(0.02)}
    properties = Properties(cacheable=True)

    def __init__(self, config: AttentionConfig) -> None:
        unsupported = ("n_kv_head", "qk_norm", "shared", "conv", "length_scale")
        config.require_default(*unsupported, by="DifferentialAttentionV2")
        super().__init__(config)
        C = config.n_embd
        self.second = nn.Linear(C, C, bias=config.bias)
        self.lambdas = nn.Linear(C, self.n_head, bias=False)
        self.bilinear = False

    def initial(self, qk_std: float) -> dict[str, Rule]:
        return super().initial(qk_std) | {"second.weight": normal(qk_std)}

    def split(self, x: Tensor, cache: KVCache | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of both heads (B, 2 H, T, D), and keys and values (B, H, T, D)."""
        q, k, v = super().split(x, cache)
        second = self.to_heads(self.second(x))
        if self.rotary is not None:
            second, _ = self._placed(second, k, 0 if cache is None else len(cache))
        return torch.cat([q, second], dim=1), k, v

    def options(self, x: Tensor, cache: KVCache | None = None) -> Options:
        return super().options(x, cache) | {"lambda": self.lambdas(x).sigmoid().mT[..., None]}

    def scores(self, x: Tensor) -> Tensor:
        """The scores of the first softmax, before its mask: (B, T, C) -> (B, H, T, T)."""
        q, k, _ = self.split(x)
        return self.scores_of(q.chunk(2, dim=1)[0], k, self.mod(x))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, options: Options) -> Tensor:
        """The difference of the kernel with the first and with the second queries."""
        first, second = q.chunk(2, dim=1)
        others = {name: option for name, option in options.items() if name != "lambda"}
        attend = partial(super().mix, mask=mask, options=others)
        return attend(first, k, v) - options["lambda"] * attend(second, k, v)

    def mix_flops(self, keys: int) -> int:
        return 2 * super().mix_flops(keys)
