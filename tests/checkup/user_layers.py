"""Attention layers, kernels and masks as a user of attnlab writes them, honest and dishonest.

Those with a link were reported in public code. Letters: B batch, T time, C channels.
"""

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention import AttentionConfig, SelfAttention, TorchMHA
from attnlab.attention.core import masked_softmax, mix, scores
from tests.checkup.reports import Chunks
from tests.checkup.small import C

T = 48

# ---- masks


def peek(q: Tensor, k: Tensor) -> Tensor:
    """Reads one ahead, and says so."""
    return k <= q + 1


def last_key(q: Tensor, k: Tensor) -> Tensor:
    """The last key is always visible."""
    return (k <= q) | (k == k.max())


def whole_block(q: Tensor, k: Tensor) -> Tensor:
    """A block counts when it begins, as in sparse attention."""
    return k // 8 <= q // 8


def late(q: Tensor, k: Tensor) -> Tensor:
    """Reads ahead beyond 40 only."""
    return (k <= q) | ((q >= 40) & (k <= q + 2))


def no_self(q: Tensor, k: Tensor) -> Tensor:
    """Query 0 has no key."""
    return k < q


def additive(q: Tensor, k: Tensor) -> Tensor:
    """Numbers to add instead of bool."""
    return torch.where(k <= q, 0.0, -1e4)


# ---- kernels, of q, k, v (B, H, T, D)


def relu(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float) -> Tensor:
    """Honest: weights without a softmax."""
    return mix(scores(q, k, scale=scale).relu() * mask, v, dropout=dropout)


def maskless(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """The mask is not applied."""
    return mix(scores(q, k, scale=scale).softmax(-1), v, dropout=dropout)


def finite(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """Blocked scores are -1e4, which these weights do not reach (karpathy/minGPT#75)."""
    return mix(scores(q, k, scale=scale).where(mask, -1e4).softmax(-1), v, dropout=dropout)


def fill_all(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """Everything is blocked by the same number (huggingface/transformers#22001)."""
    least = torch.finfo(q.dtype).min
    return mix(
        scores(q, k, scale=scale).where(mask & False, least).softmax(-1), v, dropout=dropout
    )


def dropped(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """With dropout, the mask is lost (keras-team/keras#23038)."""
    s = scores(q, k, scale=scale)
    s = s if dropout else s.masked_fill(~mask, -math.inf)
    return mix(s.softmax(-1), v, dropout=dropout)


def with_gradients(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """With gradients, the mask is lost (unslothai/unsloth-zoo#1212)."""
    s = scores(q, k, scale=scale)
    s = s if q.requires_grad else s.masked_fill(~mask, -math.inf)
    return mix(s.softmax(-1), v, dropout=dropout)


# ---- layers


class MeanOfAll(SelfAttention):
    """Adds the mean of all positions."""

    def forward(self, x: Tensor, *memo: Any) -> Tensor:
        return super().forward(x) + x.mean(1, keepdim=True)


class HiddenLeak(SelfAttention):
    """Its leak is multiplied by a gate that starts at 0."""

    def __init__(self, config: AttentionConfig, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, *memo: Any) -> Tensor:
        return super().forward(x) + self.gate * x.flip(1)


class LateLeak(SelfAttention):
    """It reads ahead only at positions from 16 on."""

    def forward(self, x: Tensor, *memo: Any) -> Tensor:
        return super().forward(x) + torch.cat([x[:, :16] * 0, x[:, 16:].flip(1)], dim=1)


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
        y = relu(q, k, v, mask=self.mask(x), scale=self.scale, dropout=0.0)
        return self.proj(self.merge(y, x, v))


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


class ClosedGate(HiddenLeak):
    """The same in `merge`, where the pattern does not show it."""

    def forward(self, x: Tensor, *memo: Any) -> Tensor:
        return SelfAttention.forward(self, x)

    def merge(self, mixed: Tensor, x: Tensor, v: Tensor) -> Tensor:
        return super().merge(mixed, x, v) + self.gate * x.mean(1, keepdim=True)


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


HONEST: dict[str, Any] = {
    "SelfAttention": SelfAttention,
    "TorchMHA": TorchMHA,
    "Gated": Gated,
    "Neighbor": Neighbor,
    "WithoutPattern": WithoutPattern,
    "relu": own(kernel=relu),
    "window": own(window=3, n_kv_head=1, qk_norm=True),
    "finite": own(kernel=finite),
    "ChunksRight": lambda config: Chunks(32, False),
    **{mask.__name__: own(may_attend=mask) for mask in (peek, last_key, whole_block, late)},
}
# Words that the refusal must hold.
DISHONEST: dict[str, tuple[Any, str]] = {
    "MeanOfAll": (MeanOfAll, "position 0 depends on position 1, which its mask blocks"),
    "HiddenLeak": (HiddenLeak, "which its mask blocks"),
    "LateLeak": (LateLeak, "depends on position"),
    "maskless": (own(kernel=maskless), "with maskless"),
    "PatternOfAnother": (PatternOfAnother, "not proj"),
    "ClaimsSoftmax": (ClaimsSoftmax, "not proj"),
    "FloatMask": (FloatMask, "float32"),
    "EmptyRows": (EmptyRows, "query 0"),
    "Neighbor of 2": (partial(Neighbor, back=2), "no weight in its pattern"),
    "WithoutPattern ahead": (partial(WithoutPattern, back=-1), "comes later"),
    "Restarts": (Restarts, "alone give other outputs"),
    "fill_all": (own(kernel=fill_all), "which its mask blocks"),
    "dropped": (own(kernel=dropped), "in training mode"),
    "with_gradients": (own(kernel=with_gradients), "in training mode"),
    "TrainingOnly": (TrainingOnly, "in training mode"),
    "Routed": (Routed, "which its mask blocks"),
    "ClosedGate": (ClosedGate, "which its mask blocks"),
    "Chunks": (lambda config: Chunks(32, True), "comes later"),
}
REFUSED_BY_THE_LAYER = {"no_self": no_self, "additive": additive}
