"""Patterns on one text as plain values: the content of history.json."""

import base64
import math
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from attnlab.probes.capture import View, pattern_measures


def snapshot(seen: Sequence[View], step: int, loss: float | None = None) -> dict[str, Any]:
    """The data of `attnlab explore` for one text at one step, as plain values; NaN is None.

    Returns "step", "loss" in nats per prediction, "weights" (the `packed` patterns of all layers),
    "negative" (which weights are), "equal" (layer -> head -> the first head with the same pattern,
    bit for bit), and "measures" (name -> layer -> head).
    """
    measured: dict[str, list[list[float | None]]] = {}
    for view in seen:
        for name, of_heads in pattern_measures(view.pattern, view.mask).items():
            measured.setdefault(name, []).append([_plain(x) for x in of_heads.tolist()])
    return {
        "step": step,
        "loss": None if loss is None else _plain(loss),
        "weights": packed([quantized(view.pattern[0], view.mask) for view in seen]),
        "negative": packed(view.pattern[0] < 0 for view in seen),
        "equal": [_first_equal(view.pattern[0]) for view in seen],
        "measures": measured,
    }


def history(
    tokens: Iterable[str], seen: Sequence[View], snapshots: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """The content of history.json: the snapshots of one text, with what they have in common."""
    heads = [view.pattern.shape[1] for view in seen]
    mask = packed(view.mask for view in seen)
    return {"tokens": list(tokens), "heads": heads, "mask": mask, "snapshots": list(snapshots)}


def quantized(pattern: Tensor, mask: Tensor) -> Tensor:
    """The magnitude of weights (H, T, T), at most 1, as bytes round(254 sqrt(p)), 255 for NaN.

    A blocked key with any weight has a byte above 0, so that no leak is rounded away.
    """
    levels = (254 * pattern.abs().clamp(max=1).sqrt()).round()
    levels = levels.where(mask | (pattern == 0), levels.clamp(min=1))
    return levels.where(~pattern.isnan(), 255).to(torch.uint8)


def packed(parts: Iterable[Tensor]) -> str:
    """The bytes of several tensors, one after the other, compressed by zlib, in base64."""
    content = b"".join(part.cpu().to(torch.uint8).numpy().tobytes() for part in parts)
    return base64.b64encode(zlib.compress(content, 9)).decode()


def _first_equal(heads: Tensor) -> list[int]:
    """For each head, the first head with the same pattern (T, T)."""
    numbers = range(len(heads))
    return [next(j for j in numbers if j == i or heads[j].equal(heads[i])) for i in numbers]


def _plain(x: float) -> float | None:
    return float(f"{x:.5g}") if math.isfinite(x) else None
