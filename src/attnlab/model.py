"""A small decoder-only GPT that takes its attention as an argument.

Letters: B batch, T time, C channels, V symbols.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import gelu

from attnlab.attention.cache import Memo, takes_memo
from attnlab.attention.rms_norm import RMSNorm
from attnlab.attention.variant import AttentionConfig, check_dropout, check_sizes

__all__ = [
    "GPT",
    "MLP",
    "Block",
    "RMSNorm",
    "gelu",
    "gelu_tanh",
    "layer_norm",
    "relu_squared",
    "rms_norm",
]

# Makes the attention layer of one block: an attention class, or a `Variant` of one.
AttentionFactory = Callable[[AttentionConfig], nn.Module]
Activation = Callable[[Tensor], Tensor]


class NormFactory(Protocol):
    """Makes a normalization of the last dimension; `model.norm` is checked against this call."""

    def __call__(self, n_embd: int, *, bias: bool) -> nn.Module: ...


def layer_norm(n_embd: int, *, bias: bool) -> nn.Module:
    """Mean 0 and variance 1 over the channels (Ba et al. 2016)."""
    return nn.LayerNorm(n_embd, bias=bias)


def rms_norm(n_embd: int, *, bias: bool) -> nn.Module:
    """An `RMSNorm`, which never has a bias."""
    return RMSNorm(n_embd)


def gelu_tanh(x: Tensor) -> Tensor:
    """The tanh approximation of the GELU, as in GPT-2 (Hendrycks and Gimpel 2016, section 2)."""
    return F.gelu(x, approximate="tanh")


def relu_squared(x: Tensor) -> Tensor:
    """max(x, 0)^2 (So et al. 2021)."""
    y: Tensor = _ReLUSquared.apply(x)
    return y


class _ReLUSquared(torch.autograd.Function):
    """One product each way; autograd alone would store two tensors and take five."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = F.relu(x)
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    @once_differentiable  # a second derivative is refused, not wrong
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        return (grad * positive).mul_(2)


class MLP(nn.Module):
    """Two linear maps around an activation, `ratio` times as wide inside: like x (B, T, C)."""

    def __init__(
        self,
        n_embd: int,
        *,
        bias: bool,
        dropout: float,
        activation: Activation = gelu,
        ratio: float = 4,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.fc = nn.Linear(n_embd, round(ratio * n_embd), bias=bias)
        self.proj = nn.Linear(round(ratio * n_embd), n_embd, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.proj(self.activation(self.fc(x))))


class Block(nn.Module):
    """Pre-norm residual block: attention mixes positions, the MLP acts on each separately."""

    def __init__(
        self,
        n_embd: int,
        attn: nn.Module,
        *,
        bias: bool,
        dropout: float,
        norm: NormFactory = layer_norm,
        activation: Activation = gelu,
        mlp_ratio: float = 4,
    ) -> None:
        super().__init__()
        self.ln_1 = norm(n_embd, bias=bias)
        self.attn = attn
        self.ln_2 = norm(n_embd, bias=bias)
        self.mlp = MLP(n_embd, bias=bias, dropout=dropout, activation=activation, ratio=mlp_ratio)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, memo: Memo | None = None) -> Tensor:
        named = takes_memo(type(self.attn).forward)
        return self.around(partial(self.attn, memo=memo) if named else self.attn, x)

    def around(self, attend: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """The block's output with a function (B, T, C) -> (B, T, C) as its attention."""
        x = x + self.dropout(attend(self.ln_1(x)))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """Decoder-only transformer with a head tied to the embedding (Radford et al. 2019).

    The constructor leaves PyTorch's default weights; `attnlab.init.init_weights` draws the ones
    that every variant shares. Raises ValueError if a size is not positive, or the dropout is not
    in [0, 1).

    Args:
        attn: makes the attention of each layer from its config: a class such as `SelfAttention`,
            or `Variant(SelfAttention, {"scale": 1.0})`.
        vocab_size: V, the number of symbols.
        block_size: the largest T.
        n_layer, n_head, n_embd: the shape, as the GPT lineage names it.
        dropout: on the embedding, on both residual branches and on the attention pattern.
        bias: whether linear maps and LayerNorms have biases.
        norm: before attention, MLP and head: `layer_norm` or `rms_norm`.
        activation: inside the MLP, elementwise.
        mlp_ratio: width inside the MLP, as a multiple of `n_embd`, rounded.
        learned_positions: whether an embedding of the position is added to that of the symbol;
            without it only `rotary` or the mask can distinguish positions.
        smear: number of preceding embeddings that are added to each one, with a learned weight
            per channel, so that the first attention layer already sees the neighbors of a symbol
            (like the smeared keys of Olsson et al. 2022).
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
        norm: NormFactory = layer_norm,
        activation: Activation = gelu,
        mlp_ratio: float = 4,
        learned_positions: bool = True,
        smear: int = 0,
    ) -> None:
        super().__init__()
        sizes = {"vocab_size": vocab_size, "block_size": block_size, "n_layer": n_layer}
        check_sizes(sizes | {"n_head": n_head, "n_embd": n_embd})
        check_dropout(dropout)
        if round(mlp_ratio * n_embd) < 1:
            raise ValueError(f"{mlp_ratio = } must be positive, such as 4")
        if not 0 <= smear < block_size:
            raise ValueError(f"smear = {smear} must be at least 0 and less than {block_size = }")
        self.vocab_size = vocab_size
        self.block_size = block_size
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd) if learned_positions else None
        self.smear = nn.ParameterList(torch.zeros(n_embd) for _ in range(smear))
        self.dropout = nn.Dropout(dropout)
        config = AttentionConfig(
            n_embd, n_head, block_size, bias=bias, dropout=dropout, vocab_size=vocab_size
        )
        block = partial(
            Block,
            n_embd,
            bias=bias,
            dropout=dropout,
            norm=norm,
            activation=activation,
            mlp_ratio=mlp_ratio,
        )
        self.blocks = nn.ModuleList()
        for n in range(n_layer):
            layer = attn(replace(config, layer=n))
            if not isinstance(layer, nn.Module):
                raise ValueError(f"attn made {layer!r}, which is not an nn.Module")
            self.blocks.append(block(layer))
        self.ln_f = norm(n_embd, bias=bias)

    def embed(self, ids: Tensor, start: int = 0) -> Tensor:
        """Symbols to the residual stream: (B, T) int64 -> (B, T, C).

        The first symbol is at position `start`, and earlier ones are not smeared into it. Raises
        ValueError if the positions go beyond `block_size`.
        """
        stop = start + ids.shape[1]
        if stop > self.block_size:
            raise ValueError(f"{stop} positions do not fit into block_size = {self.block_size}")
        symbols = x = self.wte(ids)
        for back, weight in enumerate(self.smear, start=1):  # the rows before, times (C,)
            x = x + F.pad(symbols, (0, 0, back, 0))[:, : ids.shape[1]] * weight
        if self.wpe is not None:
            x = x + self.wpe(torch.arange(start, stop, device=ids.device))
        return self.dropout(x)

    def unembed(self, x: Tensor) -> Tensor:
        """The residual stream to logits, by the weights of `wte`: (B, T, C) -> (B, T, V)."""
        return F.linear(self.ln_f(x), self.wte.weight)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of the next symbol at every position: (B, T) int64 -> (B, T, V)."""
        x, memo = self.embed(ids), {"ids": ids}
        for block in self.blocks:
            x = block(x, memo)
        return self.unembed(x)
