"""Detectors for what matters when a model is served: padding, low precision."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from attnlab.checkup.blackbox import relative
from attnlab.checkup.findings import SUSPICIOUS, Finding, passed, skipped
from attnlab.checkup.model_adapter import REFUSALS, ModelAdapter, cast_weights
from attnlab.errors import first_line

_PADDING_NAMES = (
    "attention_mask", "key_padding_mask", "src_key_padding_mask", "padding_mask", "pad_mask",
)  # fmt: skip


def check_padding(adapter: ModelAdapter, meant: str | None = None) -> Finding:
    """Is padding ignored, on one side or on both, in rows of different lengths?"""
    name = next((n for n in _PADDING_NAMES if adapter.takes(n)), "")
    if not name:
        return skipped("padding", "the model takes no padding mask")
    T = min(adapter.block_size, 24)
    ids = adapter.tokens(3, T)
    other = adapter.other_ids(ids)
    lengths = torch.tensor([T, 2 * T // 3, T // 3])[:, None]
    place = torch.arange(T)
    sides = {"left": place >= T - lengths, "right": place < lengths}
    sides = {meant: sides[meant]} if meant else sides
    changes: dict[str, float] = {}
    for polarity in ("1 = token", "True = padding"):  # found by trying
        for side, real in sides.items():
            given = (real.long() if polarity == "1 = token" else ~real).to(adapter.device)
            masked = replace(adapter, rows=3, extra={**adapter.extra, name: given})
            try:
                first, second = (masked.logits(x) for x in (ids, torch.where(real, ids, other)))
            except REFUSALS:  # of a mask of this type
                continue
            changes[f"{side}, {polarity}"] = relative(second[real], first[real])
        if all(changes.get(f"{side}, {polarity}", 1) <= 1e-4 for side in sides):
            where = f"not read on the {meant}" if meant else "read on neither side"
            headline = f"padding is {where} ({name}: {polarity})"
            if name == "attention_mask" and polarity == "True = padding":
                said = f"{headline}; in transformers, 1 = token"
                return Finding("padding", SUSPICIOUS, said, "padding_inverted", changes)
            return passed("padding", headline, changes)
    if not changes:
        return skipped("padding", f"{name} is refused as a padding mask")
    side, change = max(list(changes.items())[: len(sides)], key=_nan_last)
    effect = f"changes the other logits by {change:.2g} of their std"
    if math.isnan(change):
        effect = "gives NaN at real tokens"
    headline = f"padding on the {side} ({name}): changing the padded tokens {effect}"
    return Finding("padding", SUSPICIOUS, headline, "padding_read", changes)


def check_precision(adapter: ModelAdapter, precise: ModelAdapter) -> Finding:
    """How far do bf16 and the model's own precision deviate from fp64?"""
    if not adapter.is_module:
        return skipped("precision", "only a torch module can change its precision")
    ids = adapter.tokens(2, adapter.block_size)
    reference = precise.logits(ids)
    numbers = {"own precision": _deviation(adapter.logits(ids), reference)}
    if adapter.copies:
        low = adapter.copied()
        cast_weights(low.module, torch.bfloat16)
        try:
            numbers["bfloat16"] = _deviation(low.logits(ids), reference)
        except REFUSALS as error:
            reason = f"does not run in bf16: {first_line(error)}"
            return replace(skipped("precision", reason), numbers=numbers)
    worst, largest = max(numbers.items(), key=_nan_last)
    shown = ", ".join(f"{key} {value:.1e}" for key, value in numbers.items())
    if largest <= 0.25:
        headline = f"errors relative to the standard deviation: {shown}"
        return passed("precision", headline, numbers)
    headline = f"in {worst} the logits deviate by {largest:.2g} of their standard deviation"
    return Finding("precision", SUSPICIOUS, headline, "low_precision", numbers)


def in_high_precision(adapter: ModelAdapter) -> ModelAdapter:
    """A copy in fp64, else in fp32, if the model runs in it with finite logits; else the model."""
    T = adapter.block_size
    ids = adapter.pool[torch.arange(T) % len(adapter.pool)]
    raised = adapter.copies and adapter.dtype != torch.float64 and not adapter.autocast
    for dtype in (torch.float64, torch.float32) if raised else ():
        try:
            precise = adapter.copied()
            cast_weights(precise.module, dtype)
            logits = torch.cat([precise.logits(x[None]) for x in (ids, ids[:1].expand(T))])
        except REFUSALS:
            continue
        if bool(logits.isfinite().all()):  # a cast can overflow, as that of finfo.min does
            return precise
    return adapter


def _nan_last(pair: tuple[str, float]) -> tuple[bool, float]:
    """The order of measurements in which NaN is the largest."""
    return math.isnan(pair[1]), pair[1]


def _deviation(logits: Tensor, reference: Tensor) -> float:
    return float((logits - reference).square().mean().sqrt() / reference.std().clamp_min(1e-30))
