"""nn.MultiheadAttention under the contract of `Attention`, with the same parameters."""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from attnlab.attention.layer import Attention
from attnlab.attention.masks import LEAVES_QUERIES_WITHOUT_KEYS, name_of
from attnlab.attention.properties import SOFTMAX
from attnlab.attention.variant import DEFAULTS, SHAPE, AttentionConfig


class TorchMHA(Attention):
    """PyTorch's own layer, called with our `qkv` and `proj` in place of its parameters.

    Its only scale is 1/sqrt(D). The query rows of weight and bias are multiplied to get another
    one, which is exact; scaling the layer's input would be wrong with a bias. Raises the
    errors of `Attention`, and ValueError for a mask that leaves a query without keys, and for all
    settings but heads, head_init, scale, may_attend and window.
    """

    properties = replace(SOFTMAX, cacheable=False)

    def __init__(self, config: AttentionConfig) -> None:
        supported = {*SHAPE, "heads", "head_init", "scale", "may_attend", "window"}
        config.require_default(*sorted(set(DEFAULTS) - supported), by="TorchMHA")
        super().__init__(config)
        if self.may_attend in LEAVES_QUERIES_WITHOUT_KEYS:
            raise ValueError(
                f"the mask {name_of(self.may_attend)} leaves a query without keys, which "
                f"nn.MultiheadAttention handles differently in training and evaluation; "
                f"use attn=manual"
            )
        settings = (config.n_embd, self.n_head, config.dropout, config.bias)
        mha = nn.MultiheadAttention(*settings, batch_first=True, device="meta")
        self._mha = (mha,)  # so that its (never allocated) parameters stay out of our state dict

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
        return torch.cat([q * (self.scale * math.sqrt(self.head_size)), kv])
