"""Attention, its masks, kernels, heads and faults: a library without Hydra and Lightning."""

from attnlab.attention.module import Attention, SelfAttention
from attnlab.attention.torch_mha import TorchMHA

__all__ = ["Attention", "SelfAttention", "TorchMHA"]
