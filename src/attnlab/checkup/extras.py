"""Detectors of what goes with attention: caches, padding, low precision; and a look at weights."""

import inspect
import math
from functools import partial

import torch
from torch import Tensor

from attnlab.checkup.blackbox import relative
from attnlab.checkup.findings import Finding, Status, attempt
from attnlab.checkup.model_adapter import REFUSALS, ModelAdapter
from attnlab.checkup.preserve_state import working_copy
from attnlab.errors import BadInput


def all_of(
    adapter: ModelAdapter, sharp: ModelAdapter, generator: torch.Generator
) -> list[Finding]:
    """The detectors of this file, on a model that is finite."""
    return [
        attempt("padding", partial(padding, sharp, generator), REFUSALS),
        attempt("precision", partial(low_precision, adapter, sharp, generator), REFUSALS),
    ]


def _takes(adapter: ModelAdapter, *names: str) -> bool:
    module = adapter.module
    if module is None:
        return False
    parameters = inspect.signature(module.forward).parameters
    return all(name in parameters for name in names)


def cache(adapter: ModelAdapter, generator: torch.Generator) -> Finding:
    """Does going on from a cache give what one pass gives? (Hugging Face's convention.)"""
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
            name, Status.OK, "token by token with the cache as in one pass", "", numbers
        )
    headline = f"with the cache, logits differ by {change:.2g} of their spread"
    return Finding(name, Status.SUSPICIOUS, headline, "cache_differs", numbers)


def padding(adapter: ModelAdapter, generator: torch.Generator) -> Finding:
    """Do padded tokens on the left stay unread, where the model takes an attention mask?"""
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
        return Finding(name, Status.OK, "padding on the left is not read", "", numbers)
    headline = f"other tokens under the padding change the rest by {change:.2g} of the spread"
    return Finding(name, Status.SUSPICIOUS, headline, "padding_read", numbers)


def low_precision(
    adapter: ModelAdapter, sharp: ModelAdapter, generator: torch.Generator
) -> Finding:
    """How far do bf16 and the model's own precision stray from the sharpest one?"""
    name = "precision"
    if adapter.module is None or sharp.module is None:
        return Finding(name, Status.NOT_APPLICABLE, "only a torch module changes its precision")
    ids = adapter.tokens(generator, 2, adapter.block_size)
    reference = sharp.logits(ids)
    numbers = {"own precision": _stray(adapter.logits(ids), reference)}
    copy, note = working_copy(adapter.module)
    if not note:
        try:
            low = adapter.replaced(copy.to(torch.bfloat16)).logits(ids)
            numbers["bfloat16"] = _stray(low, reference)
        except (*REFUSALS, BadInput) as error:
            headline = f"does not run in bf16: {str(error).splitlines()[0]}"
            return Finding(name, Status.NOT_APPLICABLE, headline, "", numbers)
    worst = max(numbers, key=lambda key: numbers[key])
    if all(value <= 0.25 for value in numbers.values()):
        shown = ", ".join(f"{key} {value:.1e}" for key, value in numbers.items())
        return Finding(name, Status.OK, f"errors as shares of the spread: {shown}", "", numbers)
    headline = f"in {worst} the logits are off by {numbers[worst]:.2g} of their spread"
    return Finding(name, Status.SUSPICIOUS, headline, "low_precision", numbers)


def _stray(logits: Tensor, reference: Tensor) -> float:
    return float((logits - reference).square().mean().sqrt() / reference.std().clamp_min(1e-30))


def looks_untrained(adapter: ModelAdapter) -> bool:
    """Whether the weight matrices look like independent draws.

    The largest singular value of an m x n matrix of independent entries of size s is about
    s (sqrt(m) + sqrt(n)); training adds directions that stand out (Marchenko and Pastur 1967).
    """
    ratios = sorted(_outstanding(p) for p in adapter.parameters() if _is_matrix(p))
    return not ratios or ratios[len(ratios) // 2] < 1.3


def _is_matrix(parameter: Tensor) -> bool:
    return parameter.ndim == 2 and min(parameter.shape) >= 8 and parameter.is_floating_point()


def _outstanding(parameter: Tensor) -> float:
    """The largest singular value in units of what independent entries would give."""
    matrix = parameter.detach().float()
    matrix = matrix[:, : 4 * matrix.shape[0]][: 4 * matrix.shape[1]]
    size = float(matrix.square().mean().sqrt())
    if size == 0:
        return 0.0
    x = torch.ones(matrix.shape[1], device=matrix.device)
    for _ in range(20):  # power iteration
        x = matrix.mT @ (matrix @ x)
        x = x / x.norm().clamp_min(1e-30)
    edge = size * (math.sqrt(matrix.shape[0]) + math.sqrt(matrix.shape[1]))
    return float((matrix @ x).norm()) / edge
