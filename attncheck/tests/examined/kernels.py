"""Kernels with a mistake and right ones, from q, k, v (B, H, T, D) and a mask (T, T).

Letters: B batch, H heads, T time, D channels of a head.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from examined.faults import (
    added,
    dropped,
    fill,
    in_one_head,
    late,
    over,
    split_wrongly,
    unmerged,
)
from examined.small import Row, Served, scores, softmax

sdpa = F.scaled_dot_product_attention


def scaled(q: Tensor, k: Tensor, v: Tensor, may: Tensor, *, factor: float) -> Tensor:
    """Scores have another factor."""
    return softmax(q * factor, k, v, may)


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


def grouped_with_head_0(q: Tensor, k: Tensor, v: Tensor, may: Tensor) -> Tensor:
    """Right, but all query heads read the first one of fewer key-value heads."""
    if k.shape[1] < q.shape[1]:
        k = k[:, :1]
        v = v[:, :1]
    return softmax(q, k, v, may)


FAULTY: dict[str, tuple[Any, str]] = {
    "without a scale": (partial(scaled, factor=5**0.5), "not scaled"),
    "scaled twice": (partial(scaled, factor=5**-0.5), "by 1/D"),
    "fill of 0": (fill(0.0), "become 0"),
    "fill of -1e4": (fill(-1e4), "-10000"),
    "added": (added, "added as 0 and 1"),
    "late mask": (late, "after the softmax"),
    "no softmax": (lambda q, k, v, may: scores(q, k) * may @ v, "no softmax"),
    "over queries": (over(-2, -torch.inf), "over the queries"),
    "over heads": (over(1, -1e9), "over the heads"),
    "unmerged": (lambda q, k, v, may: unmerged(softmax(q, k, v, may)), "merged without"),
    "unsplit": (split_wrongly, "split without"),
    "neither": (lambda *x: unmerged(split_wrongly(*x)), "split and merged"),
    "exchanged": (lambda q, k, v, may: softmax(k, q, v, may), "exchanged"),
    "no mask": (lambda q, k, v, may: sdpa(q, k, v), "no mask is applied"),
    "inverted": (lambda q, k, v, may: sdpa(q, k, v, ~may), "not finite|inverted"),
    "its own mask": (lambda q, k, v, may: sdpa(q, k, v, is_causal=True), "ignored for a causal"),
    "one head ahead": (in_one_head, r"in heads \[2\] only"),
    "dropout": (dropped, "dropout"),
    "naive softmax": (naive, "not finite"),
    "spoils": (spoils, "without keys"),
    "detached": (lambda q, k, v, may: softmax(q, k.detach(), v, may), "gradient of k"),
    "tiled": (partial(grouped, tiled=True), "tiled"),
    "a window of 12": (
        lambda q, k, v, may: softmax(q, k, v, may & ~torch.ones_like(may).tril(-12)),
        "texts of 131, not in those of 11",
    ),
    "head 0": (
        lambda q, k, v, may: softmax(q, k[:, :1], v[:, :1], may),
        r"in heads \[1, 2\] only, the keys and values of head 0 are used",
    ),
    "grouped, head 0": (grouped_with_head_0, "use the key-value heads .0, 0, 0, 0, 0, 0.,"),
}
RIGHT: dict[str, tuple[Any, dict[str, Any]]] = {
    "sdpa": (lambda q, k, v, may: sdpa(q, k, v, attn_mask=may), {}),
    "by hand": (softmax, {}),
    "scaled in place": (lambda q, k, v, may: softmax(q.mul_(2) / 2, k, v, may), {}),
    "grouped": (partial(grouped, tiled=False), {}),
    "causal alone": (lambda q, k, v, may: sdpa(q, k, v, is_causal=True), {"causal_only": True}),
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
    Row("a cache of transformers", Served, "", "cache_equal"),
]  # fmt: skip
