"""Detectors for what matters when a model is served: caches, padding, low precision."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from attnlab.checkup.blackbox import relative
from attnlab.checkup.findings import NOT_APPLICABLE, OK, SUSPICIOUS, Finding
from attnlab.checkup.model_adapter import REFUSALS, ModelAdapter
from attnlab.checkup.preserve_state import working_copy
from attnlab.errors import BadInput, first_line

_PADDING_NAMES = (
    "attention_mask", "key_padding_mask", "src_key_padding_mask", "padding_mask", "pad_mask",
)  # fmt: skip


def cache(adapter: ModelAdapter, generator: torch.Generator) -> Finding:
    """Does decoding with a cache give the logits of one pass? (Hugging Face's convention.)"""
    module = adapter.module
    if module is None or not adapter.takes("past_key_values", "use_cache"):
        return Finding("cache", NOT_APPLICABLE, "the model takes no past_key_values")
    T = min(adapter.block_size, 24)
    ids = adapter.tokens(generator, 2, T).to(adapter.device)
    with torch.no_grad():
        whole = module(ids).logits
        start = module(ids[:, : T // 2], use_cache=True)
        parts, state = [start.logits], start.past_key_values
        for t in range(T // 2, T):
            step = module(ids[:, t : t + 1], past_key_values=state, use_cache=True)
            parts.append(step.logits)
            state = step.past_key_values
    change = relative(torch.cat(parts, 1), whole)
    numbers = {"change": change}
    if change <= 1e-3:
        headline = "decoding token by token with the cache gives the logits of one pass"
        return Finding("cache", OK, headline, "", numbers)
    headline = f"with the cache, the logits differ by {change:.2g} of their standard deviation"
    return Finding("cache", SUSPICIOUS, headline, "cache_differs", numbers)


def padding(adapter: ModelAdapter, generator: torch.Generator) -> Finding:
    """Is padding ignored, on the left and on the right, in rows of different lengths?

    The mask's polarity is found by trying: with the right one, changing padded tokens changes
    nothing.
    """
    name = next((n for n in _PADDING_NAMES if adapter.takes(n)), "")
    if not name:
        return Finding("padding", NOT_APPLICABLE, "the model takes no padding mask")
    T = min(adapter.block_size, 24)
    ids = adapter.tokens(generator, 3, T)
    other = adapter.others(ids, generator)
    lengths = torch.tensor([T, 2 * T // 3, T // 3])[:, None]
    place = torch.arange(T)
    changes: dict[str, float] = {}
    for polarity, dtype in (("1 = token", torch.long), ("True = padding", torch.bool)):
        for side, real in (("left", place >= T - lengths), ("right", place < lengths)):
            given = real.to(dtype) if dtype == torch.long else ~real
            masked = replace(
                adapter, rows=3, extra={**adapter.extra, name: given.to(adapter.device)}
            )
            try:
                first, second = (masked.logits(x) for x in (ids, torch.where(real, ids, other)))
            except REFUSALS:  # of a mask of this type
                continue
            change = relative(second[real], first[real])
            changes[f"{side}, {polarity}"] = change
        if all(changes.get(f"{side}, {polarity}", 1) <= 1e-4 for side in ("left", "right")):
            headline = f"padding is read on neither side ({name}: {polarity})"
            return Finding("padding", OK, headline, "", changes)
    if not changes:
        return Finding("padding", NOT_APPLICABLE, f"{name} is refused as a padding mask")
    side, change = max(list(changes.items())[:2], key=lambda pair: (pair[1] != pair[1], pair[1]))
    effect = f"changes the other logits by {change:.2g} of their std"
    if math.isnan(change):
        effect = "gives NaN at real tokens"
    headline = f"padding on the {side} ({name}): changing the padded tokens {effect}"
    return Finding("padding", SUSPICIOUS, headline, "padding_read", changes)


def low_precision(
    adapter: ModelAdapter, precise: ModelAdapter, generator: torch.Generator
) -> Finding:
    """How far do bf16 and the model's own precision deviate from fp64?"""
    if adapter.module is None or precise.module is None:
        headline = "only a torch module can change its precision"
        return Finding("precision", NOT_APPLICABLE, headline)
    ids = adapter.tokens(generator, 2, adapter.block_size)
    reference = precise.logits(ids)
    numbers = {"own precision": _deviation(adapter.logits(ids), reference)}
    copy, reason = working_copy(adapter.module)
    if not reason:
        try:
            low = replace(adapter, model=copy.to(torch.bfloat16)).logits(ids)
        except (*REFUSALS, BadInput) as error:
            headline = f"does not run in bf16: {first_line(error)}"
            return Finding("precision", NOT_APPLICABLE, headline, "", numbers)
        numbers["bfloat16"] = _deviation(low, reference)
    # NaN counts as the worst.
    worst, largest = max(numbers.items(), key=lambda pair: (math.isnan(pair[1]), pair[1]))
    shown = ", ".join(f"{key} {value:.1e}" for key, value in numbers.items())
    if largest <= 0.25:
        headline = f"errors relative to the standard deviation: {shown}"
        return Finding("precision", OK, headline, "", numbers)
    headline = f"in {worst} the logits deviate by {largest:.2g} of their standard deviation"
    return Finding("precision", SUSPICIOUS, headline, "low_precision", numbers)


def _deviation(logits: Tensor, reference: Tensor) -> float:
    return float((logits - reference).square().mean().sqrt() / reference.std().clamp_min(1e-30))
