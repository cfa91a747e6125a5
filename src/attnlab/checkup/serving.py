"""Detectors for what matters when a model is served: caches, padding, low precision."""

import inspect
import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from attnlab.checkup.blackbox import relative
from attnlab.checkup.findings import NOT_APPLICABLE, SUSPICIOUS, Finding, within
from attnlab.checkup.model_adapter import REFUSALS, ModelAdapter
from attnlab.checkup.preserve_state import working_copy
from attnlab.errors import BadInput, first_line


def _takes(module: nn.Module, *names: str) -> bool:
    return inspect.signature(module.forward).parameters.keys() >= set(names)


def cache(adapter: ModelAdapter, generator: torch.Generator) -> Finding:
    """Does decoding with a cache give the logits of one pass? (Hugging Face's convention.)"""
    module = adapter.module
    if module is None or not _takes(module, "past_key_values", "use_cache"):
        return Finding("cache", NOT_APPLICABLE, "the model takes no past_key_values")
    T = min(adapter.block_size, 24)
    ids = adapter.tokens(generator, 1, T).to(adapter.device)
    with torch.no_grad():
        whole = module(ids).logits
        start = module(ids[:, : T // 2], use_cache=True)
        parts, state = [start.logits], start.past_key_values
        for t in range(T // 2, T):
            step = module(ids[:, t : t + 1], past_key_values=state, use_cache=True)
            parts.append(step.logits)
            state = step.past_key_values
    change = relative(torch.cat(parts, 1), whole)
    return within(
        "cache",
        change,
        1e-3,
        ok="decoding token by token with the cache gives the logits of one pass",
        wrong=f"with the cache, the logits differ by {change:.2g} of their standard deviation",
        cause="cache_differs",
        status=SUSPICIOUS,
        numbers={"change": change},
    )


def padding(adapter: ModelAdapter, generator: torch.Generator) -> Finding:
    """Is left padding ignored, if the model takes an attention mask?"""
    module = adapter.module
    if module is None or not _takes(module, "attention_mask"):
        return Finding("padding", NOT_APPLICABLE, "the model takes no attention mask")
    T = min(adapter.block_size, 24)
    ids, other = adapter.tokens(generator, 2, 1, T).to(adapter.device)
    padded = torch.arange(T, device=ids.device) < T // 3
    keep = (~padded).long()[None]
    with torch.no_grad():
        first = module(ids, attention_mask=keep).logits
        second = module(torch.where(padded, other, ids), attention_mask=keep).logits
    change = relative(second[:, T // 3 :], first[:, T // 3 :])
    return within(
        "padding",
        change,
        1e-4,
        ok="left padding is not read",
        wrong=f"changing the padded tokens changes the other logits by {change:.2g} of their std",
        cause="padding_read",
        status=SUSPICIOUS,
        numbers={"change": change},
    )


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
    return within(
        "precision",
        largest,
        0.25,
        ok=f"errors relative to the standard deviation: {shown}",
        wrong=f"in {worst} the logits deviate by {largest:.2g} of their standard deviation",
        cause="low_precision",
        status=SUSPICIOUS,
        numbers=numbers,
    )


def _deviation(logits: Tensor, reference: Tensor) -> float:
    return float((logits - reference).square().mean().sqrt() / reference.std().clamp_min(1e-30))
