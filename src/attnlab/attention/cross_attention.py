"""Attention from one sequence to another, as from a decoder to its encoder.

Letters: B batch, T queries, S positions of the memory, C channels, M channels of the memory,
H heads, D = C // H.
"""

import math

import torch
from torch import Tensor, nn

from attnlab.attention import kernels
from attnlab.attention.variant import check_divides, check_dropout, check_sizes


class CrossAttention(nn.Module):
    """Multi-head attention from x to a memory (Vaswani et al. 2017, section 3.2.3).

    `memory_size` is M, None where the memory is as wide as x; the other arguments are those of
    `AttentionConfig`. Raises ValueError if the heads do not divide the width, or a number is out
    of its range.
    """

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        *,
        memory_size: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        kernel: kernels.Kernel = kernels.sdpa,
    ) -> None:
        super().__init__()
        memory_size = n_embd if memory_size is None else memory_size
        check_sizes({"n_head": n_head, "n_embd": n_embd, "memory_size": memory_size})
        check_dropout(dropout)
        check_divides("n_head", n_head, "n_embd", n_embd)
        self.n_head = n_head
        self.scale = 1 / math.sqrt(n_embd // n_head)
        self.dropout = dropout
        self.kernel = kernel
        self.q = nn.Linear(n_embd, n_embd, bias=bias)
        self.kv = nn.Linear(memory_size, 2 * n_embd, bias=bias)
        self.proj = nn.Linear(n_embd, n_embd, bias=bias)

    def forward(
        self, x: Tensor, memory: Tensor, memory_may_attend: Tensor | None = None
    ) -> Tensor:
        """Queries from x (B, T, C), keys and values from memory (B, S, M) -> (B, T, C).

        `memory_may_attend` is (B, S) bool, False where the memory is padding; None means no
        padding. Raises ValueError if it leaves a sequence without memory.
        """
        q, k, v = self.split(x, memory)
        mask = _mask(memory, memory_may_attend)
        dropout = self.dropout if self.training else 0.0
        y = self.kernel(q, k, v, mask=mask, scale=self.scale, dropout=dropout)
        return self.proj(y.transpose(1, 2).flatten(2))  # (B, H, T, D) -> (B, T, C)

    def pattern(
        self, x: Tensor, memory: Tensor, memory_may_attend: Tensor | None = None
    ) -> Tensor:
        """The weights that average the memory's values, without dropout: (B, H, T, S)."""
        q, k, _ = self.split(x, memory)
        mask = _mask(memory, memory_may_attend)
        return self.kernel(q, k, kernels.one_hot(k), mask=mask, scale=self.scale, dropout=0.0)

    def split(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, D), keys and values (B, H, S, D)."""
        q = self.q(x).unflatten(-1, (self.n_head, -1)).transpose(1, 2)  # (B, H, T, D)
        kv = self.kv(memory).unflatten(-1, (2, self.n_head, -1))  # (B, S, 2, H, D)
        k, v = kv.permute(2, 0, 3, 1, 4).unbind(0)  # each (B, H, S, D)
        return q, k, v


def _mask(memory: Tensor, may_attend: Tensor | None) -> Tensor:
    """(B, 1, 1, S) bool."""
    shape = memory.shape[:2]
    if may_attend is None:
        return torch.ones(shape, dtype=torch.bool, device=memory.device)[:, None, None, :]
    if may_attend.dtype != torch.bool or may_attend.shape != shape:
        raise ValueError(
            f"memory_may_attend is {str(may_attend.dtype).removeprefix('torch.')} of shape "
            f"{tuple(may_attend.shape)}; it must be bool of shape {tuple(shape)}, "
            f"True = may attend"
        )
    empty = (~may_attend.any(-1)).nonzero().flatten().tolist()
    if empty:
        raise ValueError(f"memory_may_attend leaves sequence {empty[0]} of the batch without keys")
    return may_attend[:, None, None, :]
