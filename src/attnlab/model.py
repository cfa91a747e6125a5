"""A small decoder-only GPT whose attention is handed in.

Letters: B batch, T time, C channels, V symbols.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class AttentionFactory(Protocol):
    """Makes the attention layer of one block."""

    def __call__(
        self, n_embd: int, n_head: int, *, block_size: int, bias: bool, dropout: float
    ) -> nn.Module: ...


class MLP(nn.Module):
    """Two linear maps around a GELU, four times as wide inside."""

    def __init__(self, n_embd: int, *, bias: bool, dropout: float) -> None:
        super().__init__()
        self.fc = nn.Linear(n_embd, 4 * n_embd, bias=bias)
        self.proj = nn.Linear(4 * n_embd, n_embd, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.proj(F.gelu(self.fc(x))))  # (B, T, C) -> 4C -> (B, T, C)


class Block(nn.Module):
    """Pre-LayerNorm residual block: attention mixes positions, the MLP works on each alone."""

    def __init__(self, n_embd: int, attn: nn.Module, *, bias: bool, dropout: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd, bias=bias)
        self.attn = attn
        self.ln_2 = nn.LayerNorm(n_embd, bias=bias)
        self.mlp = MLP(n_embd, bias=bias, dropout=dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attn(self.ln_1(x)))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """Decoder-only transformer with learned positions and a head tied to the embedding
    (Radford et al. 2019).

    The constructor leaves PyTorch's default weights; `attnlab.init.init_weights` draws the ones
    that every variant shares.

    Args:
        attn: called once a layer, see `AttentionFactory`.
        vocab_size: V, the number of symbols.
        block_size: the largest T.
        n_layer, n_head, n_embd: the shape, as the GPT lineage names it.
        dropout: on the embedding, on both residual branches and on the attention pattern.
        bias: whether linear maps and LayerNorms have biases.

    Raises:
        ValueError: a size is not positive, or the dropout is not in [0, 1).
    """

    def __init__(
        self,
        attn: AttentionFactory,
        vocab_size: int,
        *,
        block_size: int = 64,
        n_layer: int = 4,
        n_head: int = 4,
        n_embd: int = 128,
        dropout: float = 0.0,
        bias: bool = False,
    ) -> None:
        super().__init__()
        sizes = {"vocab_size": vocab_size, "block_size": block_size}
        sizes |= {"n_layer": n_layer, "n_head": n_head, "n_embd": n_embd}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} = {size} must be at least 1")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout = {dropout} must be at least 0 and less than 1")
        self.vocab_size = vocab_size
        self.block_size = block_size
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(
                n_embd,
                attn(n_embd, n_head, block_size=block_size, bias=bias, dropout=dropout),
                bias=bias,
                dropout=dropout,
            )
            for _ in range(n_layer)
        )
        self.ln_f = nn.LayerNorm(n_embd, bias=bias)

    def embed(self, ids: Tensor) -> Tensor:
        """Symbols to the residual stream: (B, T) int64 -> (B, T, C).

        Raises:
            ValueError: T is larger than `block_size`.
        """
        T = ids.shape[1]
        if self.block_size < T:
            raise ValueError(f"{T} positions do not fit into block_size = {self.block_size}")
        return self.dropout(self.wte(ids) + self.wpe(torch.arange(T, device=ids.device)))

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of the next symbol at every position: (B, T) int64 -> (B, T, V)."""
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)  # the head is tied to the embedding
