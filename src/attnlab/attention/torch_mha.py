"""nn.MultiheadAttention under the contract of `SelfAttention`, with the same parameters."""

import math

import torch
from torch import Tensor, nn
from torch.func import functional_call

from attnlab.attention import head_init as head_rules
from attnlab.attention.layer import Attention, HeadRule, Scale
from attnlab.attention.masks import LEAVES_QUERIES_WITHOUT_KEYS, Predicate, causal, name_of


class TorchMHA(Attention):
    """PyTorch's own layer, called with our `qkv` and `proj` in the place of its parameters.

    It knows no scale but 1/sqrt(D). Another one is put into the query rows of weight and bias,
    which is exact; scaling the layer's input would be wrong wherever there is a bias.
    """

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        *,
        block_size: int,
        bias: bool = True,
        dropout: float = 0.0,
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
            scale=scale,
            may_attend=may_attend,
            head_init=head_init,
            heads=heads,
        )
        if may_attend in LEAVES_QUERIES_WITHOUT_KEYS:
            raise ValueError(
                f"nn.MultiheadAttention answers a query without keys differently in training and "
                f"evaluation, so the mask {name_of(may_attend)} needs attn=manual"
            )
        # In a tuple, so that its own (never allocated) parameters stay out of our state dict.
        self._mha = (
            nn.MultiheadAttention(
                n_embd, self.n_head, dropout=dropout, bias=bias, batch_first=True, device="meta"
            ),
        )
        self._query_factor = self.scale * math.sqrt(self.head_size)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        return self._call(x, training=self.training, need_weights=False)[0]

    def pattern(self, x: Tensor) -> Tensor:
        """The layer's own attention weights, of every head: (B, T, C) -> (B, H, T, T)."""
        return self._call(x, training=False, need_weights=True)[1]

    def _call(self, x: Tensor, *, training: bool, need_weights: bool) -> tuple[Tensor, Tensor]:
        (mha,) = self._mha
        mha.train(training)
        parameters = {
            "in_proj_weight": self._scaled(self.qkv.weight),
            "out_proj.weight": self.proj.weight,
        }
        if self.qkv.bias is not None:
            parameters["in_proj_bias"] = self._scaled(self.qkv.bias)
            parameters["out_proj.bias"] = self.proj.bias
        options = {
            "attn_mask": ~self.mask(x),  # the one place where True means blocked
            "need_weights": need_weights,
            "average_attn_weights": False,
        }
        return functional_call(mha, parameters, (x, x, x), options)

    def _scaled(self, qkv: Tensor) -> Tensor:
        if self.scale == 1 / math.sqrt(self.head_size):
            return qkv
        q, kv = qkv.tensor_split([self.proj.in_features])
        return torch.cat([q * self._query_factor, kv])
