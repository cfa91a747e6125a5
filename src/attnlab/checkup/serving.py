"""Detectors for what matters when a model is served: caches, padding, low precision."""

import inspect

import torch
from torch import Tensor

from attnlab.checkup.blackbox import relative
from attnlab.checkup.findings import Finding, Status
from attnlab.checkup.model_adapter import REFUSALS, ModelAdapter
from attnlab.checkup.preserve_state import working_copy
from attnlab.errors import BadInput, first_line


def _takes(adapter: ModelAdapter, *names: str) -> bool:
    module = adapter.module
    if module is None:
        return False
    parameters = inspect.signature(module.forward).parameters
    return all(name in parameters for name in names)


def cache(adapter: ModelAdapter, generator: torch.Generator) -> Finding:
    """Does decoding with a cache give the logits of one pass? (Hugging Face's convention.)"""
    name, module = "cache", adapter.module
    if module is None or not _takes(adapter, "past_key_values", "use_cache"):
        return Finding(name, Status.NOT_APPLICABLE, "the model takes no past_key_values")
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
    numbers = {"change": change}
    if change <= 1e-3:
        return Finding(
            name,
            Status.OK,
            "decoding token by token with the cache gives the logits of one pass",
            "",
            numbers,
        )
    headline = f"with the cache, the logits differ by {change:.2g} of their standard deviation"
    return Finding(name, Status.SUSPICIOUS, headline, "cache_differs", numbers)


def padding(adapter: ModelAdapter, generator: torch.Generator) -> Finding:
    """Is left padding ignored, if the model takes an attention mask?"""
    name, module = "padding", adapter.module
    if module is None or not _takes(adapter, "attention_mask"):
        return Finding(name, Status.NOT_APPLICABLE, "the model takes no attention mask")
    T = min(adapter.block_size, 24)
    ids, other = adapter.tokens(generator, 2, 1, T).to(adapter.device)
    padded = torch.arange(T, device=ids.device) < T // 3
    keep = (~padded).long()[None]
    with torch.no_grad():
        first = module(ids, attention_mask=keep).logits
        second = module(torch.where(padded, other, ids), attention_mask=keep).logits
    change = relative(second[:, T // 3 :], first[:, T // 3 :])
    numbers = {"change": change}
    if change <= 1e-4:
        return Finding(name, Status.OK, "left padding is not read", "", numbers)
    headline = f"changing the padded tokens changes the other logits by {change:.2g} of their std"
    return Finding(name, Status.SUSPICIOUS, headline, "padding_read", numbers)


def low_precision(
    adapter: ModelAdapter, precise: ModelAdapter, generator: torch.Generator
) -> Finding:
    """How far do bf16 and the model's own precision deviate from fp64?"""
    name = "precision"
    if adapter.module is None or precise.module is None:
        return Finding(name, Status.NOT_APPLICABLE, "only a torch module can change its precision")
    ids = adapter.tokens(generator, 2, adapter.block_size)
    reference = precise.logits(ids)
    numbers = {"own precision": _deviation(adapter.logits(ids), reference)}
    copy, reason = working_copy(adapter.module)
    if not reason:
        try:
            low = adapter.replaced(copy.to(torch.bfloat16)).logits(ids)
            numbers["bfloat16"] = _deviation(low, reference)
        except (*REFUSALS, BadInput) as error:
            headline = f"does not run in bf16: {first_line(error)}"
            return Finding(name, Status.NOT_APPLICABLE, headline, "", numbers)
    worst = max(numbers, key=lambda key: numbers[key])
    if all(value <= 0.25 for value in numbers.values()):
        shown = ", ".join(f"{key} {value:.1e}" for key, value in numbers.items())
        return Finding(
            name, Status.OK, f"errors relative to the standard deviation: {shown}", "", numbers
        )
    headline = f"in {worst} the logits deviate by {numbers[worst]:.2g} of their standard deviation"
    return Finding(name, Status.SUSPICIOUS, headline, "low_precision", numbers)


def _deviation(logits: Tensor, reference: Tensor) -> float:
    return float((logits - reference).square().mean().sqrt() / reference.std().clamp_min(1e-30))
