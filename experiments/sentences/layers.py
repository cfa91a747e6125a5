"""Attention without an output projection."""

from torch import nn
from typing_extensions import Unpack

from attnlab.attention import AttentionConfig, SelfAttention
from attnlab.attention.core import AttentionSettings


class NoOutputProjection(SelfAttention):
    """Each head writes to its own D channels of the residual stream."""

    def __init__(self, config: AttentionConfig, **settings: Unpack[AttentionSettings]) -> None:
        super().__init__(config, **settings)
        self.proj = nn.Identity()
