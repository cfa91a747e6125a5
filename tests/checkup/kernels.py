"""Kernels with a mistake and right ones, from q, k, v (B, H, T, D) and a mask (T, T).

Letters: B batch, H heads, T time, D channels of a head.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.checkup.faults import fill, over, unmerged, viewed
from tests.checkup.small import LM, Attention, Row, Served, filled, scores, softmax, tril

sdpa = F.scaled_dot_product_attention


def scaled(q: Tensor, k: Tensor, v: Tensor, may: Tensor, *, factor: float) -> Tensor:
    """Scores have another factor."""
    return softmax(q * factor, k, v, may)


def in_head_2(q: Tensor, k: Tensor, v: Tensor, may: Tensor) -> Tensor:
    """The last head reads one ahead."""
    ahead = tril(len(may), 1)
    return softmax(q, k, v, torch.stack([may] * (q.shape[1] - 1) + [ahead]))


def grouped(q: Tensor, k: Tensor, v: Tensor, may: Tensor, *, tiled: bool) -> Tensor:
    """Fewer key-value heads."""
    n = q.shape[1] // k.shape[1]
    k, v = (y.repeat(1, n, 1, 1) if tiled else y.repeat_interleave(n, 1) for y in (k, v))
    return softmax(q, k, v, may)


def spoils(q: Tensor, k: Tensor, v: Tensor, may: Tensor) -> Tensor:
    """A query without keys makes all NaN."""
    return softmax(q, k, v, may) * (1.0 if may.any(-1).all() else torch.nan)


def naive(q: Tensor, k: Tensor, v: Tensor, may: Tensor) -> Tensor:
    """exp without the maximum."""
    weights = scores(q, k).exp() * may
    return weights / weights.sum(-1, keepdim=True) @ v


def added(q: Tensor, k: Tensor, v: Tensor, may: Tensor) -> Tensor:
    return (scores(q, k) + may).softmax(-1) @ v


def dropped(q: Tensor, k: Tensor, v: Tensor, may: Tensor) -> Tensor:
    return F.dropout(filled(q, k, may).softmax(-1), 0.2) @ v


FAULTY: dict[str, tuple[Any, str]] = {
    "without a scale": (partial(scaled, factor=5**0.5), "not scaled"),
    "scaled twice": (partial(scaled, factor=5**-0.5), "by 1/D"),
    "fill of 0": (fill(0.0), "become 0"),
    "fill of -1e4": (fill(-1e4), "-10000"),
    "added": (added, "added as 0 and 1"),
    "late mask": (lambda q, k, v, may: scores(q, k).softmax(-1) * may @ v, "after the softmax"),
    "no softmax": (lambda q, k, v, may: scores(q, k) * may @ v, "no softmax"),
    "over queries": (over(-2, -torch.inf), "over the queries"),
    "over heads": (over(1, -1e9), "over the heads"),
    "unmerged": (lambda q, k, v, may: unmerged(softmax(q, k, v, may)), "merged without"),
    "unsplit": (lambda *x: softmax(*map(viewed, x[:3]), x[3]), "split without"),
    "neither": (lambda *x: unmerged(softmax(*map(viewed, x[:3]), x[3])), "split and merged"),
    "exchanged": (lambda q, k, v, may: softmax(k, q, v, may), "exchanged"),
    "no mask": (lambda q, k, v, may: sdpa(q, k, v), "no mask is applied"),
    "inverted": (lambda q, k, v, may: sdpa(q, k, v, ~may), "not finite|inverted"),
    "its own mask": (lambda q, k, v, may: sdpa(q, k, v, is_causal=True), "ignored for a causal"),
    "one head ahead": (in_head_2, r"in heads \[2\] only"),
    "dropout": (dropped, "dropout"),
    "naive softmax": (naive, "not finite"),
    "spoils": (spoils, "without keys"),
    "detached": (lambda q, k, v, may: softmax(q, k.detach(), v, may), "gradient of k"),
    "tiled": (partial(grouped, tiled=True), "tiled"),
}
RIGHT: dict[str, tuple[Any, dict[str, Any]]] = {
    "sdpa": (lambda q, k, v, may: sdpa(q, k, v, attn_mask=may), {}),
    "by hand": (softmax, {}),
    "grouped": (partial(grouped, tiled=False), {}),
    "causal alone": (lambda q, k, v, may: sdpa(q, k, v, is_causal=True), {"causal_only": True}),
}
ALIKE = {  # assertions that the other tables reach by checkup alone
    "mask_is_infinite": lambda: LM(lambda layer: Attention(fill(-1e4))),
    "deterministic": lambda: LM(lambda layer: Attention(dropped)),
    "rows_independent": lambda: LM(lambda layer: Attention(over(0, -1e9))),
    "past_used": lambda: LM(lambda layer: Attention(may=lambda i, j: j == i)),
}
KERNELS = [
    *(
        Row(f"kernel: {name}", lambda kernel=kernel: kernel, says, "kernel_equal")
        for name, (kernel, says) in FAULTY.items()
    ),
    *(
        Row(f"kernel: {name}", lambda kernel=kernel: kernel, "", "kernel_equal", options)
        for name, (kernel, options) in RIGHT.items()
    ),
    *(Row(f"assert_{name}, faulty", make, ".", name) for name, make in ALIKE.items()),
    *(Row(f"assert_{name}", LM, "", name) for name in ALIKE),
    Row("targets of the next", lambda: torch.arange(12)[None, :-1], "", "targets_shifted",
        {"y": torch.arange(12)[None, 1:]}),
    Row("a cache of transformers", Served, "", "cache_equal"),
]  # fmt: skip
