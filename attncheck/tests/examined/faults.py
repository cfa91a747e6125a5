"""The planted faults: each a small model, and what the checkup must say of it.

Letters: B batch, H heads, T time, S keys, D channels of a head.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examined.small import (
    LM,
    Attention,
    C,
    Does,
    Row,
    Served,
    T,
    causal,
    every,
    filled,
    merge,
    scores,
    softmax,
    tril,
)

Make = Callable[[], Any]


def masked(may: Any, mix: Any = softmax, **settings: Any) -> Make:
    """A model whose attention has this mask."""
    return lambda: LM(lambda layer: Attention(mix, may), **settings)


def mixed(mix: Any, **settings: Any) -> Make:
    """A model with this kernel, from q, k, v (B, H, T, D) and a mask (T, T)."""
    return masked(causal, mix, **settings)


def beside(function: Any, **parts: Callable[[], Any]) -> Make:
    """A model with a function of (module, x) beside its blocks, and parts that are made."""
    return lambda: LM(beside=Does(function, **{name: part() for name, part in parts.items()}))


def over(axis: int, fill: float) -> Any:
    """A softmax over another axis."""
    return lambda q, k, v, may: filled(q, k, may, fill).softmax(axis) @ v


def fill(number: float) -> Any:
    """Blocked scores are this number."""
    return over(-1, number)


def viewed(x: Tensor) -> Tensor:
    """(B, H, T, D), as if heads had been split without a transpose."""
    return merge(x).reshape(x.shape)


def unmerged(y: Tensor) -> Tensor:
    """(B, H, T, D), which `merge` makes y.reshape(B, T, C)."""
    B, heads, n, width = y.shape
    return y.reshape(B, n, heads, width).transpose(1, 2)


def in_one_head(q: Tensor, k: Tensor, v: Tensor, may: Tensor) -> Tensor:
    """The last head reads one ahead."""
    return softmax(q, k, v, torch.stack([may] * (q.shape[1] - 1) + [tril(len(may), 1)]))


def added(q: Tensor, k: Tensor, v: Tensor, may: Tensor) -> Tensor:
    return (scores(q, k) + may).softmax(-1) @ v


def late(q: Tensor, k: Tensor, v: Tensor, may: Tensor) -> Tensor:
    return scores(q, k).softmax(-1) * may @ v


def dropped(q: Tensor, k: Tensor, v: Tensor, may: Tensor) -> Tensor:
    return F.dropout(filled(q, k, may).softmax(-1), 0.2) @ v


def split_wrongly(q: Tensor, k: Tensor, v: Tensor, may: Tensor) -> Tensor:
    return softmax(viewed(q), viewed(k), viewed(v), may)


def top_k_first(q: Tensor, k: Tensor, v: Tensor, may: Tensor) -> Tensor:
    """The largest scores of a row are chosen before the mask."""
    s = scores(q, k)
    least = s.topk(min(8, len(may))).values[..., -1:]
    return softmax(q, k, v, may & ((s >= least) | torch.eye(len(may)).bool()))


def own_block_by_mean(q: Tensor, k: Tensor, v: Tensor, may: Tensor) -> Tensor:
    """Two blocks of 4 are chosen by their mean key, also the query's own."""
    n = len(may)
    means = F.pad(k, (0, 0, 0, -n % 4)).unflatten(2, (-1, 4)).mean(3)  # (B, H, n / 4, D)
    block = torch.arange(n) // 4
    liking = (q @ means.mT).masked_fill(torch.arange(means.shape[2]) > block[:, None], -torch.inf)
    chosen = torch.zeros_like(liking).scatter(-1, liking.topk(min(2, means.shape[2])).indices, 1)
    kept = chosen.gather(-1, block.expand(*q.shape[:2], n, n)) > 0
    return (filled(q, k, may & kept, -1e30)).softmax(-1) @ v


def convolved(x: Tensor) -> Tensor:
    """A centered convolution along the keys."""
    padded = F.pad(x, (1, 1))
    return x + 0.3 * (padded[..., 2:] + padded[..., :-2])


def convolved_first(q: Tensor, k: Tensor, v: Tensor, may: Tensor) -> Tensor:
    """Scores are convolved before the mask."""
    return convolved(scores(q, k)).masked_fill(~may, -torch.inf).softmax(-1) @ v


def keeps_state(self: Any, x: Tensor) -> Tensor:
    """A state between calls."""
    before = self.kept.clone()
    self.kept.mul_(0.5).add_(x.detach().mean((0, 1)))
    return before


def longest_so_far(self: Any, x: Tensor) -> Tensor:
    """Scaled by the length of the longest text of all calls."""
    self.longest = max(self.longest, x.shape[1])
    return self.longest / 10 * x.sin()


def kept_places(self: Any, x: Tensor) -> Tensor:
    """Places that are made in the first call, for its length alone or, if it `grows`, again for a
    longer one."""
    n = x.shape[1]
    if self.kept is None or (self.grows and len(self.kept) < n):
        self.kept = torch.arange(n).to(x).sin()
    return x * self.kept[:n, None]


def expert_choice(self: Any, x: Tensor) -> Tensor:
    """An expert takes the half of the positions that it likes most."""
    chosen = self.router(x).topk(max(x.shape[1] // 2, 1), dim=1).indices
    return torch.zeros_like(x[..., :1]).scatter(1, chosen, 1.0) * self.expert(x)


def over_time(x: Tensor) -> Tensor:
    """The mean of all positions."""
    return x.mean(1, keepdim=True).expand_as(x)


def vector() -> nn.Parameter:
    return nn.Parameter(torch.zeros(()))


def batch_first() -> nn.Module:
    """Attention gets (T, B, C)."""
    turned = Does(lambda self, x: self.layer(x.transpose(0, 1)).transpose(0, 1), layer=Attention())
    return LM(lambda layer: turned)


class Rolled(LM):
    """Inputs are mixed with those before; the first, which has none, with the last."""

    def embedded(self, ids: Tensor, begin: int = 0) -> Tensor:
        x = super().embedded(ids, begin)
        return x + x.roll(1, 1)


ALL, PAIRS = f"every position reads all {T} positions", "positions read later ones in"
MASKS = [
    Row("mask turned around", masked(lambda i, j: j >= i), "later ones, never earlier"),
    Row("mask inverted, so that the last query has no key", masked(lambda i, j: j > i),
        "NaN or infinite", published="rasbt/LLMs-from-scratch#1061"),
    Row("mask inverted, finite fill", masked(lambda i, j: j > i, fill(-1e9)), "depend|reads?"),
    Row("no mask", masked(every), ALL, published="facebookresearch/xformers#103"),
    Row("diagonal off by one", masked(lambda i, j: j <= i + 1), r"up to t \+ 2"),
    Row("each sees itself only", masked(lambda i, j: j == i), "no output depends on an earlier",
        "past_used"),
    Row("window on both sides", masked(lambda i, j: (i - j).abs() <= 4), r"up to t \+ 8"),
    Row("blocks of 8 without a mask", masked(lambda i, j: j // 8 <= i // 8), "own block of 8"),
    Row("one global key", masked(lambda i, j: (j <= i) | (j == 30)), PAIRS),
    Row("one pair", masked(lambda i, j: (j <= i) | ((i == 20) & (j == 23))), "20 reads"),
    Row("a mask for 32 positions", masked(lambda i, j: (j <= i) | (i >= 32), length=64),
        "32 reads 33"),
    Row("one far pair", masked(lambda i, j: (j <= i) | ((i == 300) & (j == 400)), length=512),
        "in a sequence of 512, outputs at 300"),
    Row("no mask in layer 2 of 4",
        lambda: LM(lambda layer: Attention(may=every if layer == 2 else causal), layers=4),
        ALL + r"[\s\S]*blocks.2.mixer"),
]  # fmt: skip
KERNELS = [
    Row("fill of 0", mixed(fill(0.0)), ALL),
    Row("fill of -1e-12", mixed(fill(-1e-12)), ALL, published="hyunwoongko/transformer#10"),
    Row("fill of -1e4", mixed(fill(-1e4)), "finite -1e4",
        published="huggingface/transformers#17306"),
    Row("fill of -1e5", mixed(fill(-1e5)), "finite -1e4", "mask_is_infinite",
        published="TransformerLensOrg/TransformerLens#318"),
    Row("bool mask added", mixed(added), ALL),
    Row("mask after the softmax", mixed(late), ALL),
    Row("softmax over queries", mixed(over(-2, -torch.inf)), "read",
        published="labmlai/annotated_deep_learning_paper_implementations#146"),
    Row("softmax over heads", mixed(over(1, -1e9)), ALL),
    Row("softmax over the batch", mixed(lambda q, k, v, may: scores(q, k).softmax(0) * may @ v),
        "row 0 of a batch", published="PetrochukM/PyTorch-NLP#2"),
    Row("heads not merged", mixed(lambda q, k, v, may: unmerged(softmax(q, k, v, may))), "read"),
    Row("heads not split", mixed(split_wrongly), "read"),
    Row("heads neither split nor merged", mixed(lambda *x: unmerged(split_wrongly(*x))),
        "inputs alone give other outputs"),
    Row("softcap after the mask", mixed(lambda q, k, v, may: (10 * (filled(q, k,
        may) / 10).tanh()).softmax(-1) @ v), ALL),
    Row("dropout in eval mode", mixed(dropped), "dropout",
        published="meta-pytorch/torchtune#1791"),
    Row("one head reads one ahead", mixed(in_one_head), r"up to t \+ 2"),
    Row("keys times their mean over time", mixed(lambda q, k, v, may: softmax(q, k * (1 + k.mean(2,
        keepdim=True)), v, may)), PAIRS),
    Row("values of the next", mixed(lambda q, k, v, may: softmax(q, k, v.roll(-1, 2), may)),
        "read"),
    Row("largest scores before the mask", mixed(top_k_first), PAIRS),
    Row("blocks chosen by their mean key", mixed(own_block_by_mean), PAIRS),
    Row("scores convolved before the mask", mixed(convolved_first), PAIRS),
    Row("weights convolved after the softmax", mixed(lambda q, k, v, may: convolved(filled(q, k,
        may).softmax(-1)) @ v), r"up to t \+ 2"),
    Row("output normalized over time", mixed(lambda q, k, v, may: F.normalize(softmax(q, k, v,
        may), dim=2)), ALL),
]  # fmt: skip
BESIDE = [
    Row("mean over the batch", beside(lambda self, x: -x.mean(0, keepdim=True)),
        "row 0 of a batch"),
    Row("each row reads the one before", beside(lambda self, x: F.pad(x, (0, 0, 0, 0, 1, -1))),
        "row 0 of a batch", "rows_independent"),
    Row("batch and time exchanged", batch_first, "batch_first"),
    Row("places of rows, not of time", beside(lambda self, x: self.place(torch.arange(len(x)))[
        :, None].expand_as(x), place=lambda: nn.Embedding(64, C)), "in another row of the batch"),
    Row("a shift that wraps around", beside(lambda self, x: x.roll(1, 1)),
        "at position 0 only\\n[\\s\\S]*torch.roll"),
    Row("a shift before attention wraps around", Rolled, "reads the last of 37 inputs"),
    Row("a shift that starts with zeros", beside(lambda self, x: F.pad(x, (0, 0, 1, -1)))),
    Row("a scale of the longest text", beside(longest_so_far, longest=lambda: 8),
        "after a text of 37, a text of 18 gets other outputs[\\s\\S]*beside.longest"),
    Row("places for the first text alone", beside(kept_places, kept=lambda: None,
        grows=lambda: False), "after a text of 18, a text of 37 is refused[\\s\\S]*beside.kept"),
    Row("places for the longest text", beside(kept_places, kept=lambda: None,
        grows=lambda: True)),
    Row("a state between calls", lambda: LM(beside=Does(keeps_state,
        kept=nn.Buffer(torch.zeros(C)))), "earlier calls"),
    Row("noise in eval mode", beside(lambda self, x: torch.randn_like(x)), "different outputs"),
    Row("dropout that is always on", beside(lambda self, x: F.dropout(x, 0.2)), "dropout",
        "deterministic"),
    Row("an overflow after 20 positions", beside(lambda self,
        x: 1e-30 * x * (10.0 ** (2 * torch.arange(x.shape[1])))[:, None].to(x)),
        "NaN or infinite"),
    Row("positions from the end", beside(lambda self, x: x.abs() * torch.arange(x.shape[1], 0,
        -1)[:, None].sin()), "inputs alone give other outputs"),
    Row("convolution padded on both sides", beside(lambda self, x: self.conv(x.mT).mT,
        conv=lambda: nn.Conv1d(C, C, 3, padding=1)), r"up to t \+ 1"),
    Row("norm over time", beside(lambda self, x: (x - over_time(x)) / (x.std(1,
        keepdim=True) + 1e-5)), ALL),
    Row("experts that choose positions", beside(expert_choice, router=lambda: nn.Linear(C, 1),
        expert=lambda: nn.Linear(C, C)), PAIRS),
    Row("a leak behind a gate of 0", beside(lambda self, x: self.gate * over_time(x), gate=vector),
        "with noise on the weights"),
    Row("batch norm over time", beside(lambda self, x: self.norm(x.mT).mT,
        norm=lambda: nn.BatchNorm1d(C)), "in training mode"),
    Row("no mask in training", beside(lambda self, x: over_time(x) * self.training),
        "in training mode", published="keras-team/keras#23038"),
    Row("mean over time", beside(lambda self, x: over_time(x)), ALL),
    Row("shift to the wrong side", beside(lambda self, x: x.roll(-1, 1)), "read"),
    Row("sum from the end", beside(lambda self, x: x.flip(1).cumsum(1).flip(1)), ALL),
    Row("centered maximum", beside(lambda self, x: F.max_pool1d(x.mT, 3, stride=1, padding=1).mT),
        r"up to t \+ 1"),
    Row("recurrence in both directions", beside(lambda self, x: self.gru(x)[0],
        gru=lambda: nn.GRU(C, C // 2, batch_first=True, bidirectional=True)), "read"),
]  # fmt: skip
CACHES = {
    "restarts": "first cached step on",
    "top left": "first cached step on",
    "forgets": "first cached step on",
    "unmasked": "several tokens are wrong, those of one token are right[\\s\\S]*own later tokens",
    "top left in steps": "several tokens are wrong, those of one token are right",
    "off by one": "first cached step on",
    "smeared": "first cached step on",
    "of row 0": "a row of the batch reads another row",
}
SERVING = [
    *(Row(f"cache: {name}", lambda name=name: Served(name), says) for name,
        says in CACHES.items()),
    *(Row(f"padding: {name}", lambda name=name: Served(f"padding {name}"), "padding",
        published=of) for name, of in (("ignored", "ml-explore/mlx-lm#1906"), ("of row 0", ""),
        ("inverted", ""))),
    *(Row(f"labels {name}", lambda shift=shift: Served(shift=shift), says, published=of) for name,
        shift, says, of in (("shifted twice", 2, "shifted twice",
        "huggingface/transformers#47395"), ("not shifted", 0, "not shifted", ""),
        ("shifted backwards", -1, "backwards", ""))),
]  # fmt: skip
PLANTED = [*MASKS, *KERNELS, *BESIDE, *SERVING]
