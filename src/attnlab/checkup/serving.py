"""Detectors for what matters when a model is served: padding, documents, low precision.

Letters: B batch, T time.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnlab.checkup.blackbox import relative
from attnlab.checkup.dependence import movement
from attnlab.checkup.findings import FAULT, SUSPICIOUS, Finding, passed, skipped, span
from attnlab.checkup.model_adapter import REFUSALS, ModelAdapter, cast_weights
from attnlab.checkup.outputs import find_logits
from attnlab.errors import first_line

# From the model, ids (B, T), and the number of each token's document (B, T), to what it returns.
Documents = Callable[[Any, Tensor, Tensor], object]
_PADDING_NAMES = (
    "attention_mask", "key_padding_mask", "src_key_padding_mask", "padding_mask", "pad_mask",
)  # fmt: skip
_SMEAR = 4  # a convolution or a token shift reads at most so many tokens back


def check_padding(adapter: ModelAdapter, meant: str | None = None) -> Finding:
    """Is padding ignored, on one side or on both, in rows of different lengths?"""
    name = next((n for n in _PADDING_NAMES if adapter.takes(n)), "")
    if not name:
        return skipped("padding", "the model takes no padding mask")
    sides = (meant,) if meant else ("left", "right")
    attempts = {}
    numbers: dict[str, float] = {}
    for polarity in ("1 = token", "True = padding"):  # found by trying
        changes, refused = _changes_by_padding(adapter, name, polarity, sides)
        attempts[polarity] = changes, refused
        numbers |= {f"{side}, {polarity}": change for side, change in changes.items()}
        if not refused and all(change <= 1e-4 for change in changes.values()):
            where = f"not read on the {meant}" if meant else "read on neither side"
            headline = f"padding is {where} ({name}: {polarity})"
            if name == "attention_mask" and polarity == "True = padding":
                said = f"{headline}; in transformers, 1 = token"
                return Finding("padding", SUSPICIOUS, said, "padding_inverted", numbers)
            return passed("padding", headline, numbers)
    polarity = next((p for p, (changes, _) in attempts.items() if changes), "1 = token")
    changes, refused = attempts[polarity]
    refusals = "; ".join(f"refused on the {side}: {why}" for side, why in refused.items())
    if not changes:
        return skipped("padding", f"{name} is not accepted as a padding mask ({refusals})")
    side, change = max(changes.items(), key=_nan_last)
    if change <= 1e-4:
        headline = f"padding is not read on the {side} ({name}: {polarity}; {refusals})"
        return passed("padding", headline, numbers)
    effect = f"changes the other logits by {change:.2g} of their std"
    effect = "gives NaN at real tokens" if math.isnan(change) else effect
    headline = f"padding on the {side} ({name}: {polarity}): changing the padded tokens {effect}"
    return Finding("padding", SUSPICIOUS, headline, "padding_read", numbers)


def _changes_by_padding(
    adapter: ModelAdapter, name: str, polarity: str, sides: Sequence[str]
) -> tuple[dict[str, float], dict[str, str]]:
    """How much padded tokens change other logits, by side, or why the model refuses the mask."""
    T = min(adapter.block_size, 24)
    ids, place = adapter.tokens(3, T), torch.arange(T)
    other, lengths = adapter.other_ids(ids), torch.tensor([T, 2 * T // 3, T // 3])[:, None]
    real_on = {"left": place >= T - lengths, "right": place < lengths}
    extra = {key: adapter.fitted(key, 3, T) for key in adapter.extra}
    changes, refused = {}, {}
    for side in sides:
        real = real_on[side]
        given = (real.long() if polarity == "1 = token" else ~real).to(adapter.device)
        masked = replace(adapter, rows=3, text=None, extra={**extra, name: given})
        try:
            first, second = (masked.logits(x) for x in (ids, torch.where(real, ids, other)))
            changes[side] = relative(second[real], first[real])
        except REFUSALS as error:
            refused[side] = first_line(error, with_class=True)
    return changes, refused


def check_documents(
    adapter: ModelAdapter, documents: Documents | None, separator: int | None, reset: bool
) -> Finding:
    """Does the second of two packed documents read the first, or get other logits than alone?"""
    name, T = "documents", min(adapter.block_size, 32)
    if documents is None and separator is None:
        return skipped(name, "neither documents nor separator was given")
    n = T // 2  # the first token of the second document, or the separator between them
    first = n if documents else n + 1

    def logits(ids: Tensor, document: Tensor) -> Tensor:
        if documents is None:
            return adapter.logits(ids)
        with torch.no_grad():
            output = documents(adapter.model, ids.to(adapter.device), document.to(adapter.device))
        return find_logits(output, tuple(ids.shape), adapter.vocab_size).to("cpu", torch.float64)

    border, ids = -1 if separator is None else separator, adapter.tokens(T)
    ids = adapter.next_ids(ids).where(ids == border, ids)
    changed = adapter.next_ids(ids)
    changed = adapter.next_ids(changed).where(changed == border, changed)
    if separator is not None:
        ids[n] = separator
    rows = torch.cat([ids[None], torch.where(torch.eye(T, dtype=torch.bool)[:n], changed, ids)])
    document = (torch.arange(T) >= n).long().expand(len(rows), T)
    whole = logits(rows, document)
    moved = movement(whole)  # (n, T), by the token changed
    reads = moved > max(adapter.tolerance, 1e-6) * moved.max()
    if not reads[:, :n].any():
        return skipped(name, "the first document does not read itself")
    across = reads[:, first:].any(-1).nonzero().flatten().tolist()
    if not across and reads[:, n].sum() <= _SMEAR:  # a separator that ends it reads all of it
        across = reads[:, n].nonzero().flatten().tolist()
    if across:
        cause = "documents_smeared" if across[0] >= n - _SMEAR else "documents_read"
        headline = f"in a document that begins at {n}, tokens of the one before are read"
        return Finding(name, FAULT, f"{headline} ({span('position', across)})", cause)
    if not reset:
        return passed(name, "a document does not read the one before")
    alone = (logits(ids[None, k:], document[:1, k:] * 0)[:, first - k :] for k in (n, first))
    change = min(relative(x, whole[:1, first:]) for x in alone)
    if change <= 1e-3:
        return passed(name, "a document gets the logits that it gets alone", {"change": change})
    headline = f"a document reads only itself, but gets other logits alone (by {change:.2g})"
    return Finding(name, FAULT, headline, "positions_not_reset", {"change": change})


def check_precision(adapter: ModelAdapter, precise: ModelAdapter) -> Finding:
    """How far do bf16 and the model's own precision deviate from fp64?"""
    ids, numbers, reason = adapter.tokens(2, adapter.block_size), {}, ""
    reference = precise.logits(ids)
    if precise is not adapter:
        numbers["own precision"] = _deviation(adapter.logits(ids), reference)
    low = adapter.copied()
    cast_weights(low.module, torch.bfloat16)
    try:
        numbers["bfloat16"] = _deviation(low.logits(ids), reference)
    except REFUSALS as error:
        reason = f"does not run in bf16: {first_line(error)}"
    if reason and numbers.get("own precision", 0.0) <= 0.25:
        return skipped("precision", reason, numbers)
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
