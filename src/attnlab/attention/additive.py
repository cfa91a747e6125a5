"""Self-attention with the additive score, under the contract of `Attention`.

Letters: B batch, T time, C channels, H heads, D = C // H.
"""

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from attnlab.attention import kernels
from attnlab.attention.layer import Attention
from attnlab.attention.scores import additive
from attnlab.attention.variant import AttentionConfig
from attnlab.rng import Rule


def unit_variance(weight: Tensor, stream: torch.Generator) -> None:
    """Fill (H, D) with 1/sqrt(D), which bounds the variance of independent channels' sum by 1."""
    weight.fill_(weight.shape[-1] ** -0.5)


class AdditiveAttention(Attention):
    """Scores v . tanh(q + k) with a vector v (D,) of each head (Bahdanau et al. 2015, A.1.2).

    The projections to q and k are the W and U of the paper. v starts at 1/sqrt(D), so that scores
    have a variance of at most 1, as scaled dot products of unit queries and keys have. One sign is
    no restriction: tanh is odd, and the signs are those of the rows of W and U. With the small
    weights of GPT-2's initialization tanh is nearly linear, and a head starts by looking at the
    same keys from everywhere.

    Raises:
        ValueError: see `Attention`; also for a kernel, a scale, shared heads, qk_norm, rotary,
            score_mod or softcap.
    """

    init_rules: ClassVar[dict[str, Rule]] = {"v": unit_variance}
    bilinear = False

    def __init__(self, config: AttentionConfig) -> None:
        unsupported = ("kernel", "scale", "n_kv_head", "qk_norm", "rotary", "score_mod", "softcap")
        config.require_default(*unsupported, by="AdditiveAttention")
        super().__init__(replace(config, scale=1.0))
        self.v = nn.Parameter(torch.full((self.n_head, self.head_size), self.head_size**-0.5))

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        q, k, v = self.split(x)
        pattern = kernels.masked_softmax(additive(q, k, self.v), self.mask(x))
        y = kernels.mix(pattern, v, dropout=self.dropout if self.training else 0.0)
        return self.proj(y.transpose(1, 2).flatten(2))  # (B, H, T, D) -> (B, T, C)

    def scores(self, x: Tensor) -> Tensor:
        """The scores before mask and softmax: (B, T, C) -> (B, H, T, T), fp32 at least."""
        q, k, _ = self.split(x)
        return additive(q, k, self.v)

    def pattern(self, x: Tensor) -> Tensor:
        """The weights that average the values, without dropout: (B, T, C) -> (B, H, T, T)."""
        return kernels.masked_softmax(self.scores(x), self.mask(x))
