"""Attention layers, kernels and masks as a user of attnlab writes them, honest and dishonest.

Those with a link were reported in public code. Letters: B batch, T time, C channels.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention import AttentionConfig, SelfAttention, TorchMHA
from attnlab.attention.core import manual, masked_softmax, mix, scores
from examined.faults import over_time
from examined.reports import Chunks
from examined.small import C

T = 48

# ---- masks, of the places of queries and keys

MASKS: dict[str, Any] = {
    "peek": lambda q, k: k <= q + 1,  # reads one ahead, and says so
    "last_key": lambda q, k: (k <= q) | (k == k.max()),
    "whole_block": lambda q, k: k // 8 <= q // 8,  # as in sparse attention
    "late": lambda q, k: (k <= q) | ((q >= 40) & (k <= q + 2)),
}
NO_MASKS: dict[str, Any] = {
    "no_self": lambda q, k: k < q,  # query 0 has no key
    "additive": lambda q, k: torch.where(k <= q, 0.0, -1e4),
}

# ---- kernels, by their weights of scores and a mask (..., T, T)


def kernel(name: str, weights: Any) -> Any:
    """A kernel of q, k, v (B, H, T, D)."""

    def run(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float) -> Any:
        return mix(weights(scores(q, k, scale=scale), mask, dropout), v, dropout=dropout)

    run.__name__ = name
    return run


def unless(lost: Any) -> Any:
    """A softmax whose mask is lost under a condition on scores and dropout."""
    return lambda s, mask, p: s.masked_fill(~mask & (not lost(s, p)), -torch.inf).softmax(-1)


KERNELS: dict[str, Any] = {
    name: kernel(name, weights)
    for name, weights in {
        "relu": lambda s, mask, p: s.relu() * mask,  # honest: weights without a softmax
        "finite": lambda s, mask, p: s.where(mask, -1e4).softmax(-1),  # karpathy/minGPT#75
        "maskless": unless(lambda s, p: True),
        # huggingface/transformers#22001: everything is blocked by the same number
        "fill_all": lambda s, mask, p: torch.full_like(s, torch.finfo(s.dtype).min).softmax(-1),
        "dropped": unless(lambda s, p: p > 0),  # keras-team/keras#23038
        "with_gradients": unless(lambda s, p: s.requires_grad),  # unslothai/unsloth-zoo#1212
    }.items()
}

# ---- layers


class Leaks(SelfAttention):
    """Adds a function of x times a gate, to its output, or in `merge` where its pattern does not
    show it."""

    def __init__(
        self, config: AttentionConfig, leak: Any, gate: float = 1.0, *, inside: bool = False
    ) -> None:
        super().__init__(config)
        self.leak, self.gate, self.inside = leak, nn.Parameter(torch.tensor(gate)), inside

    def forward(self, x: Tensor, *memo: Any) -> Tensor:
        y = super().forward(x, *memo)
        return y if self.inside else y + self.gate * self.leak(x)

    def merge(self, mixed: Tensor, x: Tensor, v: Tensor) -> Tensor:
        y = super().merge(mixed, x, v)
        return y + self.gate * self.leak(x) if self.inside else y


def late_flip(x: Tensor) -> Tensor:
    """It reads ahead only at positions from 16 on."""
    return torch.cat([x[:, :16] * 0, x[:, 16:].flip(1)], dim=1)


class PatternOfAnother(SelfAttention):
    """Its forward pass forgets, its pattern does not."""

    def forward(self, x: Tensor, *memo: Any) -> Tensor:
        q, k, v = self.split(x)
        i = torch.arange(x.shape[1])
        y = masked_softmax(scores(q, k, scale=self.scale) - (i[:, None] - i), self.mask(x)) @ v
        return self.proj(self.merge(y, x, v))


class ClaimsSoftmax(SelfAttention):
    """Its pattern is a softmax, and its output is made without one."""

    def forward(self, x: Tensor, *memo: Any) -> Tensor:
        q, k, v = self.split(x)
        y = KERNELS["relu"](q, k, v, mask=self.mask(x), scale=self.scale, dropout=0.0)
        return self.proj(self.merge(y, x, v))


class OwnAverage(SelfAttention):
    """Averages by itself; it changes the scores by `modify`, or forgets to."""

    modifies = False

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *_: Any, **options: Any
    ) -> Tensor:
        own = scores(q, k, scale=self.scale)
        return masked_softmax(self.modify(own, x) if self.modifies else own, self.mask(x)) @ v


class OwnAverageOfModified(OwnAverage):
    """Honest: it uses what changes the scores."""

    modifies = True


def flat(scores: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """A `score_mod`."""
    return scores / 2


class Gated(SelfAttention):
    """Honest: the gate acts in `merge`."""

    def __init__(self, config: AttentionConfig, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.gate = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def merge(self, mixed: Tensor, x: Tensor, v: Tensor) -> Tensor:
        return super().merge(mixed, x, v) * self.gate(x).sigmoid()


class Routed(Gated):
    """Its gate is open by the mean of all positions."""

    def merge(self, mixed: Tensor, x: Tensor, v: Tensor) -> Tensor:
        return super().merge(mixed, x.mean(1, keepdim=True), v)


class TrainingOnly(SelfAttention):
    """Without a mask in training steps (lightly-ai/lightly#2049)."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, **kw: Any) -> Tensor:  # type: ignore[override]
        if self.training:
            return F.scaled_dot_product_attention(q, k, v)
        return super().attend(q, k, v, x, **kw)


class Restarts(SelfAttention):
    """Its positions are counted from the end of the text."""

    def merge(self, mixed: Tensor, x: Tensor, v: Tensor) -> Tensor:
        place = torch.arange(x.shape[1], 0, -1).to(mixed)[:, None]
        return super().merge(mixed / place, x, v)


class OfItsRow(SelfAttention):
    """Scales each text by its place in the batch."""

    def merge(self, mixed: Tensor, x: Tensor, v: Tensor) -> Tensor:
        row = torch.arange(1, 1 + len(x)).to(mixed)
        return super().merge(mixed * row[:, None, None, None], x, v)


class EmptyRows(SelfAttention):
    """Its mask leaves query 0 without keys."""

    def mask(self, x: Tensor) -> Tensor:
        return super().mask(x).tril(-1)


class FloatMask(SelfAttention):
    """Its mask is not bool."""

    def mask(self, x: Tensor) -> Tensor:
        return super().mask(x).float()


class WithoutPattern(nn.Module):
    """Not a `SelfAttention`: each output is the value `back` positions before it."""

    def __init__(self, config: AttentionConfig, back: int = 1) -> None:
        super().__init__()
        self.proj, self.back = nn.Linear(C, C), back

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x.roll(self.back, 1) * (torch.arange(x.shape[1]) >= self.back)[:, None])


class Neighbor(WithoutPattern):
    """Says that it reads the position before."""

    def pattern(self, x: Tensor) -> Tensor:
        return torch.eye(x.shape[1]).roll(1, 0).tril().expand(len(x), 1, -1, -1)


def own(**settings: Any) -> Any:
    """A factory of SelfAttention with these settings."""
    return partial(SelfAttention, **settings)


class Fourier(nn.Module):
    """A causal convolution by FFT in fp32, which rounds; without padding it is circular."""

    def __init__(self, config: AttentionConfig, padded: bool = True) -> None:
        super().__init__()
        self.padded = padded
        self.filter = nn.Parameter(0.1 * torch.randn(config.n_embd, config.block_size))

    def forward(self, x: Tensor) -> Tensor:
        T = x.shape[1]
        n = 2 * T if self.padded else T
        of_x, of_filter = (torch.fft.rfft(y.float(), n=n) for y in (x.mT, self.filter[:, :T]))
        return torch.fft.irfft(of_x * of_filter, n=n)[..., :T].mT.to(x)


class FastPath(nn.Module):
    """A kernel for training in fp32 alone, with its mask or without."""

    def __init__(self, config: AttentionConfig, masked: bool) -> None:
        super().__init__()
        self.masked, self.proj = masked, nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        fast = self.training and x.dtype is torch.float32
        causal = self.masked or not fast
        return self.proj(nn.functional.scaled_dot_product_attention(x, x, x, is_causal=causal))


HONEST: dict[str, Any] = {
    "SelfAttention": SelfAttention,
    "TorchMHA": TorchMHA,
    "Gated": Gated,
    "OwnAverage": OwnAverage,
    "OwnAverage, manual": partial(OwnAverage, kernel=manual),
    "OwnAverage, softcap": partial(OwnAverageOfModified, softcap=1.0, score_mod=flat),
    "SelfAttention, softcap": own(softcap=50.0, score_mod=flat),
    "Neighbor": Neighbor,
    "WithoutPattern": WithoutPattern,
    "relu": own(kernel=KERNELS["relu"]),
    "window": own(window=3, n_kv_head=1, qk_norm=True),
    "finite": own(kernel=KERNELS["finite"]),
    "ChunksRight": lambda config: Chunks(32, False),
    "FourierRight": Fourier,
    "FastPathRight": partial(FastPath, masked=True),
    **{name: own(may_attend=mask) for name, mask in MASKS.items()},
}
# Words that the refusal must hold.
DISHONEST: dict[str, tuple[Any, str]] = {
    "MeanOfAll": (
        partial(Leaks, leak=over_time),
        "position 0 depends on position 1, which its mask blocks",
    ),
    "HiddenLeak": (partial(Leaks, leak=lambda x: x.flip(1), gate=0.0), "which its mask blocks"),
    "LateLeak": (partial(Leaks, leak=late_flip), "depends on position"),
    "maskless": (own(kernel=KERNELS["maskless"]), "with maskless"),
    "PatternOfAnother": (PatternOfAnother, "not proj"),
    "ClaimsSoftmax": (ClaimsSoftmax, "not proj"),
    "OwnAverage, softcap": (partial(OwnAverage, softcap=1.0), "does not use attn.softcap"),
    "OwnAverage, score_mod": (partial(OwnAverage, score_mod=flat), "does not use attn.score_mod"),
    "OwnAverage, kernel": (
        partial(OwnAverageOfModified, kernel=KERNELS["relu"]),
        "does not use attn.kernel",
    ),
    "FloatMask": (FloatMask, "float32"),
    "EmptyRows": (EmptyRows, "query 0"),
    "Neighbor of 2": (partial(Neighbor, back=2), "which does not depend on it"),
    "WithoutPattern ahead": (partial(WithoutPattern, back=-1), "comes later"),
    "Restarts": (Restarts, "alone give other outputs"),
    "OfItsRow": (OfItsRow, "in another row of the batch"),
    "fill_all": (own(kernel=KERNELS["fill_all"]), "which its mask blocks"),
    "dropped": (own(kernel=KERNELS["dropped"]), "in training mode"),
    "with_gradients": (own(kernel=KERNELS["with_gradients"]), "in training mode"),
    "TrainingOnly": (TrainingOnly, "in training mode"),
    "Routed": (Routed, "which its mask blocks"),
    "ClosedGate": (partial(Leaks, leak=over_time, gate=0.0, inside=True), "which its mask blocks"),
    "Chunks": (lambda config: Chunks(32, True), "comes later"),
    "Fourier": (partial(Fourier, padded=False), "comes later"),
    "FastPath": (partial(FastPath, masked=False), "in training mode, which comes later"),
}
