"""Faults planted in our GPT, most of them as kernels.

Letters: B batch, H heads, T time, D channels of a head.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention import (
    AttentionConfig,
    SelfAttention,
    TorchMHA,
    Variant,
    faulty_kernels,
    kernels,
    masks,
    variant,
)
from attnlab.init import init_weights
from attnlab.model import GPT, Block
from tests.faults import twins
from tests.faults.beside import beside


def double_scale(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """The caller's scale on the queries, and SDPA's own on top."""
    return F.scaled_dot_product_attention(q * scale, k, v, attn_mask=mask)


def added_bool(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """A bool mask that became 0 and 1, which SDPA adds."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(q.dtype), scale=scale)


def softmax_over_heads(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """dim=1 of (B, H, T, T)."""
    filled = kernels.scores(q, k, scale=scale).masked_fill(~mask, -1e9)
    return kernels.mix(filled.softmax(1), v, dropout=dropout)


def softmax_over_batch(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """dim=0 of (B, H, T, T)."""
    weights = kernels.scores(q, k, scale=scale).softmax(0) * mask
    return kernels.mix(weights, v, dropout=dropout)


def no_softmax(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """Scores are used as weights."""
    return kernels.mix(kernels.scores(q, k, scale=scale) * mask, v, dropout=dropout)


def row_gain(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """The pattern itself is multiplied after the softmax."""
    filled = kernels.scores(q, k, scale=scale).masked_fill(~mask, -math.inf)
    return kernels.mix(filled.softmax(-1) * 0.8, v, dropout=dropout)


def dropout_on(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """Dropout in SDPA, also in eval mode."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.2, scale=scale)


def naive_softmax(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """exp without subtracting the maximum first."""
    weights = kernels.scores(q, k, scale=scale).exp() * mask
    return kernels.mix(weights / weights.sum(-1, keepdim=True), v, dropout=dropout)


def self_blocked(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """tril(-1): SDPA silently returns zeros for query 0, which has no key."""
    strict = mask & ~torch.eye(len(mask), dtype=torch.bool, device=mask.device)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=strict, scale=scale)


def unsplit_heads(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """(B, T, C) viewed as (B, H, T, D)."""
    q, k, v = (_viewed(x) for x in (q, k, v))
    return kernels.manual(q, k, v, mask=mask, scale=scale, dropout=dropout)


def untransposed(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """Split and merge both forget the transpose."""
    B, H, T, D = q.shape
    y = unsplit_heads(q, k, v, mask=mask, scale=scale, dropout=dropout)
    return y.reshape(B, T, H, D).transpose(1, 2)


def tiled_kv(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """Half as many key-value heads, tiled instead of repeated."""
    half = q.shape[1] // 2
    k, v = (torch.cat([x[:, :half], x[:, :half]], 1) for x in (k, v))
    return kernels.manual(q, k, v, mask=mask, scale=scale, dropout=dropout)


def peek_in_one_head(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """Only head 3 has its diagonal off by one."""
    T = len(mask)
    whole = mask.expand(q.shape[1], T, T).clone()
    whole[min(3, len(whole) - 1)] = torch.ones(T, T, dtype=torch.bool).tril(1)
    return kernels.manual(q, k, v, mask=whole, scale=scale, dropout=dropout)


def detached_head(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """Head 1 gets no gradient."""
    q, k, v = (torch.cat([x[:, :1], x[:, 1:2].detach(), x[:, 2:]], 1) for x in (q, k, v))
    return kernels.manual(q, k, v, mask=mask, scale=scale, dropout=dropout)


def detached_scores(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """The pattern is computed without gradients."""
    return kernels.manual(q.detach(), k.detach(), v, mask=mask, scale=scale, dropout=dropout)


def mean_key(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """The mean over time, including later tokens, is subtracted from the keys."""
    k = k * (1 + k.mean(2, keepdim=True))
    return kernels.manual(q, k, v, mask=mask, scale=scale, dropout=dropout)


def next_value(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """Values are shifted by one relative to their keys."""
    return kernels.manual(q, k, v.roll(-1, 2), mask=mask, scale=scale, dropout=dropout)


def fill_1e5(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """Blocked scores are -1e5."""
    filled = kernels.scores(q, k, scale=scale).masked_fill(~mask, -1e5)
    return kernels.mix(filled.softmax(-1), v, dropout=dropout)


def fill_epsilon(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """Blocked scores are -1e-12 instead of a large negative number."""
    filled = kernels.scores(q, k, scale=scale).masked_fill(~mask, -1e-12)
    return kernels.mix(filled.softmax(-1), v, dropout=dropout)


def normed_over_time(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """The output is normalized over time, as by a group norm with a wrong axis."""
    y = kernels.manual(q, k, v, mask=mask, scale=scale, dropout=dropout)
    return twins.normed_over_time(y)


def twin(name: str) -> Callable[..., Tensor]:
    """A kernel by the weights of `tests.faults.twins`."""

    def kernel(
        q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
    ) -> Tensor:
        weights = twins.WEIGHTS[name](q, k, kernels.scores(q, k, scale=scale), mask)
        return kernels.mix(weights, v, dropout=dropout)

    return kernel


def _viewed(x: Tensor) -> Tensor:
    B, H, T, D = x.shape
    return x.transpose(1, 2).reshape(B, T, H * D).reshape(B, H, T, D)


def itself_only(q: Tensor, k: Tensor) -> Tensor:
    """A query sees itself and nothing else."""
    return k == q


def causal_up_to_32(q: Tensor, k: Tensor) -> Tensor:
    """A mask that was built for 32 positions."""
    return (k <= q) | (q >= 32)


def one_pair(q: Tensor, k: Tensor) -> Tensor:
    """Causal, except for query 5 and key 11."""
    return (k <= q) | ((q == 5) & (k == 11))


def window(q: Tensor, k: Tensor) -> Tensor:
    """A window of 4 on both sides."""
    return (k - q).abs() <= 4


def blocks(q: Tensor, k: Tensor) -> Tensor:
    """Causal between blocks of 8, without a mask inside a block."""
    return k // 8 <= q // 8


def last_key(q: Tensor, k: Tensor) -> Tensor:
    """Causal, except that every query also sees key 30, a global token."""
    return (k <= q) | (k == 30)


KERNELS: dict[str, Callable[..., Tensor]] = {
    "zero_fill": faulty_kernels.zero_fill,
    "finite_fill": faulty_kernels.finite_fill,
    "post_softmax_mask": faulty_kernels.post_softmax_mask,
    "softmax_over_queries": faulty_kernels.softmax_over_queries,
    "unmerged_heads": faulty_kernels.unmerged_heads,
    "strict_flip": kernels.manual,
    **{
        kernel.__name__: kernel
        for kernel in (
            double_scale, added_bool, softmax_over_heads, softmax_over_batch, no_softmax,
            row_gain, dropout_on, naive_softmax, self_blocked, unsplit_heads, untransposed,
            tiled_kv, peek_in_one_head, detached_head, detached_scores, mean_key, next_value,
            fill_1e5, fill_epsilon, normed_over_time,
        )
    },
    **{name: twin(name) for name in twins.WEIGHTS},
}  # fmt: skip
MASKS: dict[str, masks.Predicate] = {
    "flipped": masks.flipped,
    "strict_flip": masks.strict_flip,
    "bidirectional": masks.bidirectional,
    "peek_one": masks.peek_one,
    "itself_only": itself_only,
    "causal_up_to_32": causal_up_to_32,
    "one_pair": one_pair,
    "window": window,
    "blocks": blocks,
    "last_key": last_key,
}
HEADS = {"identical_heads": variant.identical, "identical_qkv": variant.identical_qkv}


class BatchFirst(nn.Module):
    """A layer with batch_first that gets (T, B, C)."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x.transpose(0, 1)).transpose(0, 1)
        return y


@dataclass
class Layers:
    """Makes the layers of a GPT with one fault, in all layers or in one."""

    fault: str
    only: int | None = None
    made: int = 0

    def __call__(self, config: AttentionConfig) -> nn.Module:
        here = self.only is None or self.made == self.only
        fault = self.fault if here else "healthy"
        self.made += 1
        D = config.n_embd // config.n_head
        scales = {"unscaled": 1.0, "inverse_scale": 1 / D, "inverted_scale": D**0.5}
        scales["odd_scale"] = 0.9 * D**-0.5
        scales["width_scale"] = config.n_embd**-0.5
        changed = replace(
            config,
            kernel=KERNELS.get(fault, kernels.sdpa),
            may_attend=MASKS.get(fault, masks.causal),
            scale=scales.get(fault),
            head_init=HEADS.get(fault, variant.independent),
        )
        return SelfAttention(changed)


def healthy(kind: str, block_size: int = 37) -> GPT:
    """A healthy GPT: "sdpa", "manual", "torch_mha" or "single_head"."""
    attn = {
        "sdpa": SelfAttention,
        "manual": Variant(SelfAttention, {"kernel": kernels.manual}),
        "torch_mha": TorchMHA,
        "single_head": Variant(SelfAttention, {"heads": 1}),
    }[kind]
    net = GPT(attn, 29, block_size=block_size, n_layer=2, n_head=4, n_embd=32)
    init_weights(net, 0, "gpt2")
    return net


def build(fault: str, block_size: int, n_layer: int, n_head: int, seed: int = 0) -> GPT:
    """Our GPT with a fault of `tests.faults.planted.FAULTS`, all weights from the seed."""
    name, _, place = fault.partition("@")
    layers = Layers(name, int(place) if place else None)
    net = GPT(
        layers, 29, block_size=block_size, n_layer=n_layer, n_head=n_head, n_embd=4 * 2 * n_head
    )
    init_weights(net, seed, "gpt2")
    last = net.blocks[-1]
    assert isinstance(last, Block)
    if name == "batch_first":
        for block in net.blocks:
            assert isinstance(block, Block)
            block.attn = BatchFirst(block.attn)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        setattr(last, "mlp", beside(name, last.mlp, net.wte.embedding_dim))  # noqa: B010
    return net
