"""Self-attention with the general score, under the contract of `Attention`.

Letters: B batch, T time, C channels, H heads, D = C // H.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from attnlab.attention.layer import SelfAttention
from attnlab.attention.variant import AttentionConfig
from attnlab.rng import Rule


def identity(weight: Tensor, stream: torch.Generator) -> None:
    """Make each of (H, D, D) the identity."""
    weight.copy_(torch.eye(weight.shape[-1]))


class GeneralAttention(SelfAttention):
    """Scores q W k with a matrix W (D, D) of each head (Luong et al. 2015, section 3.1).

    q W takes the place of q, so any kernel works. W starts as the identity: the layer is then
    bit-identical to `SelfAttention`, and only what training makes of W differs. Since q and
    k are projections already, W adds no function to the layer, only another way to train it.

    Raises:
        ValueError: see `SelfAttention`; also for shared heads, qk_norm or rotary.
    """

    init_rules: ClassVar[dict[str, Rule]] = {"W": identity}

    def __init__(self, config: AttentionConfig) -> None:
        config.require_default("n_kv_head", "qk_norm", "rotary", by="GeneralAttention")
        super().__init__(config)
        D = self.head_size
        self.W = nn.Parameter(torch.eye(D).repeat(self.n_head, 1, 1))  # (H, D, D)

    def split(self, x: Tensor, start: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Queries times W, keys and values: three of (B, H, T, D)."""
        q, k, v = super().split(x, start)
        return q @ self.W.to(q.dtype), k, v

    def qkv_of_heads(self) -> Tensor:
        """The weight (3C, C) of queries, keys and values, W included."""
        q, k, v = super().qkv_of_heads().unflatten(0, (3, self.n_head, -1))  # each (H, D, C)
        return torch.stack([self.W.mT @ q, k, v]).flatten(0, 2)
