"""Leaks that open in another state of the model: with noise, under large scores, after training.

Letters: B batch, T time, V symbols.
"""

import copy
from dataclasses import replace

import torch
from torch import Tensor

from attnlab.checkup.attention_calls import AttentionCall
from attnlab.checkup.dependence import dependence
from attnlab.checkup.findings import FAULT, NOT_APPLICABLE, OK, SUSPICIOUS, Finding
from attnlab.checkup.martingale import bet_on_uniform_text
from attnlab.checkup.model_adapter import REFUSALS, ModelAdapter
from attnlab.checkup.recognize import explain
from attnlab.checkup.trace import AttentionTracer, trace
from attnlab.errors import first_line

# A published model has scores of -1.1e5 (TransformerLens issue 385).
STRESS_SCORE = 2e5


@torch.no_grad()
def disturbed(adapter: ModelAdapter, generator: torch.Generator) -> ModelAdapter:
    """A copy with noise on all weights, which opens gates that start at 0 a little."""
    model = copy.deepcopy(adapter.module)
    assert model is not None
    for parameter in model.parameters():
        if parameter.is_floating_point():
            size = 0.1 * float(parameter.detach().float().square().mean().sqrt()) + 0.01
            noise = torch.randn(parameter.shape, generator=generator) * size
            parameter.add_(noise.to(parameter))
    return replace(adapter, model=model)


def learned_leak(
    adapter: ModelAdapter,
    generator: torch.Generator,
    dtype: torch.dtype,
    tolerance: float,
    seconds: float,
) -> Finding:
    """Compute the map after a short training, which opens paths that start closed.

    Args:
        adapter: the model to train, in its own precision.
        dtype: for the map, with its tolerance.
        seconds: for the map.
    """
    assert adapter.module is not None
    copied = copy.deepcopy(adapter.module)
    student = replace(adapter, model=copied)
    bet_on_uniform_text(student, seed=generator.initial_seed(), batch_size=4, steps=10)
    copied.to(dtype)
    T = adapter.block_size
    map_ = dependence(
        student, T, generator, tolerance=tolerance, bases=1, alternatives=1, seconds=seconds
    )
    found = explain(map_.reads, map_.tried)
    headline = found[1] if found is not None else "earlier logits change with later tokens"
    numbers = {"largest ahead": map_.largest_ahead}
    if not bool(map_.ahead.any()):
        return Finding("trained", OK, "no leak opens in a short training", "", numbers)
    maps = {"after a short training": map_.single}
    headline = f"after a short training: {headline}"
    return Finding("trained", FAULT, headline, "learned_leak", numbers, maps=maps)


def _boosted_logits(
    adapter: ModelAdapter, ids: Tensor, factor: float, at: frozenset[int]
) -> Tensor:
    """(B, T) -> (B, T, V) fp64, with all scores multiplied, as by larger query and key weights."""
    with torch.no_grad(), AttentionTracer(ids.shape[1], boost=factor, at=at):
        return adapter.raw(ids).to("cpu", torch.float64)


def stress(
    adapter: ModelAdapter,
    numbers: list[int],
    calls: list[AttentionCall],
    generator: torch.Generator,
    T: int,
) -> Finding:
    """Multiply all scores until the largest is 2e5: does the mask still hold?

    Args:
        numbers: of the products that compute scores, from an `AttentionTracer` of the same model.
        calls: what that tracer recorded.
        T: length of the sequences, as in that trace.
    """
    products = [call for call in calls if call.queries is not None]
    if not products:
        headline = "scores are not a product, so they cannot be multiplied from outside"
        return Finding("stress", NOT_APPLICABLE, headline)
    largest = max(float(call.raw.detach().abs().max()) * abs(call.scale) for call in products)
    if not 0 < largest < STRESS_SCORE:
        return Finding("stress", NOT_APPLICABLE, f"scores reach {largest:.3g} already")
    ids = adapter.tokens(generator, T)
    other = (ids + 1) % adapter.vocab_size
    cuts = sorted({1, T // 4, T // 2, T - 1})
    batch = torch.stack([ids, *(torch.where(torch.arange(T) >= cut, other, ids) for cut in cuts)])
    ahead, total = 0.0, 1e-30
    for sign in (1, -1):  # of the scores: far above the fill of a mask, and far below
        factor, at = sign * STRESS_SCORE / largest, frozenset(numbers)
        rows = [_boosted_logits(adapter, row[None], factor, at) for row in batch]
        logits = torch.cat(rows)  # (1 + cuts, T, V)
        if not bool(logits.isfinite().all()):
            headline = f"scores of {STRESS_SCORE:.0e} give NaN or infinity"
            return Finding("stress", SUSPICIOUS, headline, "overflow")
        change = (logits[1:] - logits[:1]).abs().amax(-1)  # (cuts, T)
        ahead = max(ahead, *(float(change[i, :cut].max()) for i, cut in enumerate(cuts)))
        total = max(total, float(change.max()))
    share = ahead / total
    found = {"largest score": STRESS_SCORE, "ahead": share}
    if share <= 1e-6:
        return Finding("stress", OK, "the mask holds under scores of 2e5", "", found)
    return Finding("stress", FAULT, *_how_it_fails(calls, share), numbers=found)


def _how_it_fails(calls: list[AttentionCall], share: float) -> tuple[str, str]:
    """A sentence and a cause: the mask is a finite number, or something else fails."""
    lowest = [float(call.scores.triu(1).min()) for call in calls if call.scores is not None]
    fill = next((x for x in lowest if -1e8 < x < -20), None)
    if fill is None:
        headline = f"under scores of 2e5 earlier logits change with later tokens ({share:.2g})"
        return headline, "stress"
    headline = (
        f"blocked scores are about {fill:.3g}, a finite number that scores can exceed: under "
        f"scores of 2e5 the mask fails"
    )
    return headline, "finite_fill"


def try_trace(
    adapter: ModelAdapter, T: int, generator: torch.Generator
) -> tuple[list[AttentionCall], list[int], str]:
    """Record one forward pass over one sequence.

    Returns:
        the attention calls, the numbers of their score products, and why there are none.
    """
    module = adapter.module
    if module is None:
        return [], [], "the model is not a torch module, so its inside cannot be recorded"
    tracer = AttentionTracer(T)
    ids = adapter.tokens(generator, 1, T)
    try:
        calls = trace(module, lambda: adapter.raw(ids), tracer)
    except REFUSALS as error:
        return [], [], f"the inside cannot be recorded ({first_line(error)})"
    pairs = zip(tracer.numbers, tracer.calls, strict=True)
    numbers = [n for n, call in pairs if n and call.pattern is not None]
    return calls, numbers, "" if calls else "no attention was seen inside"
