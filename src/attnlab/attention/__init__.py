"""Attention, its masks, scores, kernels, heads and faults: a library without Hydra and Lightning.

`attention` is the function of queries, keys and values; `SelfAttention` is the layer of the lab,
`CrossAttention` one that reads another sequence.
"""

from attnlab.attention.cross_attention import CrossAttention
from attnlab.attention.functional import attention
from attnlab.attention.layer import Attention, SelfAttention
from attnlab.attention.torch_mha import TorchMHA

__all__ = ["Attention", "CrossAttention", "SelfAttention", "TorchMHA", "attention"]
