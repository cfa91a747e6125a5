"""Attention layers, kernels, masks and head rules: a library without Hydra and Lightning.

`attention` is the function of queries, keys and values; `SelfAttention` is the layer of the lab,
`CrossAttention` one that reads another sequence. A name without a dot in conf, such as
`kernel: sdpa`, is one of `__all__` here or in `attnlab.model`.
"""

from attnlab.attention.cache import KVCache
from attnlab.attention.cross_attention import CrossAttention
from attnlab.attention.faulty_kernels import (
    finite_fill,
    post_softmax_mask,
    softmax_over_queries,
    unmerged_heads,
    zero_fill,
)
from attnlab.attention.functional import attention
from attnlab.attention.kernels import flex, linear, manual, sdpa, sigmoid, softmax1
from attnlab.attention.latent import LatentAttention
from attnlab.attention.layer import Attention
from attnlab.attention.masks import bidirectional, causal, flipped, peek_one, strict_flip
from attnlab.attention.positions import alibi, log_length
from attnlab.attention.properties import Properties
from attnlab.attention.recurrent import DeltaAttention
from attnlab.attention.scores import (
    AdditiveAttention,
    DifferentialAttention,
    DifferentialAttentionV2,
    GeneralAttention,
)
from attnlab.attention.self_attention import SelfAttention
from attnlab.attention.sparse_kernels import entmax15, softpick, sparsemax, stick_breaking, top_k
from attnlab.attention.torch_mha import TorchMHA
from attnlab.attention.variant import (
    AttentionConfig,
    Variant,
    identical,
    identical_qkv,
    independent,
    single_active,
)

__all__ = [
    "AdditiveAttention",
    "Attention",
    "AttentionConfig",
    "CrossAttention",
    "DeltaAttention",
    "DifferentialAttention",
    "DifferentialAttentionV2",
    "GeneralAttention",
    "KVCache",
    "LatentAttention",
    "Properties",
    "SelfAttention",
    "TorchMHA",
    "Variant",
    "alibi",
    "attention",
    "bidirectional",
    "causal",
    "entmax15",
    "finite_fill",
    "flex",
    "flipped",
    "identical",
    "identical_qkv",
    "independent",
    "linear",
    "log_length",
    "manual",
    "peek_one",
    "post_softmax_mask",
    "sdpa",
    "sigmoid",
    "single_active",
    "softmax1",
    "softmax_over_queries",
    "softpick",
    "sparsemax",
    "stick_breaking",
    "strict_flip",
    "top_k",
    "unmerged_heads",
    "zero_fill",
]
