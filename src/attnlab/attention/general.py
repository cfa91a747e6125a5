"""Self-attention by the general score, under the contract of `SelfAttention`.

Letters: B batch, T time, C channels, H heads, D = C // H.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from attnlab.attention import head_init as head_rules
from attnlab.attention import kernels
from attnlab.attention.layer import HeadRule, Scale, SelfAttention
from attnlab.attention.masks import Predicate, causal
from attnlab.initializers import Rule


def identity(weight: Tensor, stream: torch.Generator) -> None:
    """Make each of (H, D, D) the identity."""
    weight.copy_(torch.eye(weight.shape[-1]))


class GeneralAttention(SelfAttention):
    """Scores q W k with a matrix W (D, D) of each head (Luong et al. 2015, section 3.1).

    q W takes the place of q, so that any kernel serves. W starts as the identity: the layer is
    then `SelfAttention` to the bit, and what training makes of W is all that differs. Since q and
    k are projections already, W adds no function to the layer, only another way to move in it.

    Args:
        others: see `SelfAttention`.
    """

    init_rules: ClassVar[dict[str, Rule]] = {"W": identity}

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
    ) -> None:
        super().__init__(
            n_embd,
            n_head,
            block_size=block_size,
            bias=bias,
            dropout=dropout,
            kernel=kernel,
            scale=scale,
            may_attend=may_attend,
            head_init=head_init,
            heads=heads,
        )
        D = self.head_size
        self.W = nn.Parameter(torch.eye(D).repeat(self.n_head, 1, 1))  # (H, D, D)

    def split(self, x: Tensor, start: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Queries times W, keys and values: three of (B, H, T, D)."""
        q, k, v = super().split(x, start)
        return q @ self.W.to(q.dtype), k, v

    def qkv_of_heads(self) -> Tensor:
        """The weight (3C, C) that `split` amounts to, W included."""
        q, k, v = super().qkv_of_heads().unflatten(0, (3, self.n_head, -1))  # each (H, D, C)
        return torch.stack([self.W.mT @ q, k, v]).flatten(0, 2)
