"""BERT's self-attention in our layer."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnlab.attention.masks import bidirectional, causal
from attnlab.attention.properties import SOFTMAX
from attnlab.attention.self_attention import SelfAttention
from attnlab.attention.variant import AttentionConfig
from attnlab.errors import BadInput
from attnlab.interop.gpt2 import filled

if TYPE_CHECKING:
    from transformers.models.bert.modeling_bert import BertAttention, BertSelfAttention


class PaddedSelfAttention(SelfAttention):
    """Self-attention over padded sequences: no query attends to padding.

    `padding` (B, T) bool is set for the next batch: True = a token, False = padding, like the
    `attention_mask` of transformers. None means no padding.
    """

    properties = replace(SOFTMAX, cacheable=False)
    padding: Tensor | None = None

    def mask(self, x: Tensor) -> Tensor:
        """The mask for x (B, T, C), True = may attend: (T, T), or (B, 1, T, T) with padding.

        Raises ValueError if the padding is not for x, or leaves a row without keys.
        """
        mask = super().mask(x)
        if self.padding is None:
            return mask
        if self.padding.shape != x.shape[:2] or self.padding.dtype != torch.bool:
            raise ValueError(
                f"padding is {self.padding.dtype} of shape {tuple(self.padding.shape)}; for these "
                f"tokens it must be torch.bool of shape {tuple(x.shape[:2])}, True = a word"
            )
        padded = mask & self.padding[:, None, None, :]  # (B, 1, T, T)
        if not padded.any(-1).all():
            raise ValueError("padding leaves a query without keys; each row needs a token")
        return padded


def from_bert(layer: "BertAttention | BertSelfAttention") -> PaddedSelfAttention:
    """A self-attention layer of BERT in ours: same queries, keys, values, pattern and output.

    The `output.dense` of a `BertAttention` becomes our `proj` (dropout, residual and LayerNorm
    after it are the block's). The output of the `BertSelfAttention` inside is the heads side by
    side, so our `proj` is then the identity. Ours has the mode, dtype and device of theirs, and is
    causal if BERT is a decoder. Raises BadInput for a cross-attention, or for relative positions.
    """
    from transformers.models.bert.modeling_bert import BertAttention, BertSelfAttention

    inner: Any = layer.self if isinstance(layer, BertAttention) else layer
    if not isinstance(inner, BertSelfAttention):
        raise BadInput(
            f"from_bert takes a BertAttention or BertSelfAttention, not a {type(inner).__name__}"
        )
    config = inner.config
    relative = config.to_dict().get("position_embedding_type", "absolute")
    if relative != "absolute":
        raise BadInput(f"position_embedding_type = {relative} must be absolute")
    C = config.hidden_size
    shape = (C, config.num_attention_heads, config.max_position_embeddings)
    dropout = float(config.attention_probs_dropout_prob)
    mask = causal if config.is_decoder else bidirectional
    ours = PaddedSelfAttention(AttentionConfig(*shape, dropout=dropout, may_attend=mask))
    maps = (inner.query, inner.key, inner.value)
    weight, bias = torch.eye(C), torch.zeros(C)
    if isinstance(layer, BertAttention):
        weight, bias = layer.output.dense.weight, layer.output.dense.bias
    weights = {
        "qkv.weight": torch.cat([linear.weight for linear in maps]),  # (3C, C)
        "qkv.bias": torch.cat([linear.bias for linear in maps]),
        "proj.weight": weight,
        "proj.bias": bias,
    }
    return filled(ours, weights, inner)
