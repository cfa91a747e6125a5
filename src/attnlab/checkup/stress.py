"""Leaks that open in another state of the model: with noise, under large scores, after training.

Letters: B batch, T time, V symbols.
"""

import copy
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from attnlab.checkup.attention_calls import AttentionCall
from attnlab.checkup.dependence import dependence
from attnlab.checkup.findings import FAULT, NOT_APPLICABLE, OK, SUSPICIOUS, Finding
from attnlab.checkup.locate import first_leak
from attnlab.checkup.martingale import bet_on_uniform_text
from attnlab.checkup.model_adapter import REFUSALS, ModelAdapter
from attnlab.checkup.recognize import explain
from attnlab.checkup.trace import AttentionTracer, Product, trace
from attnlab.errors import first_line

# A published model has scores below -1e5 (TransformerLens issue 318).
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


def trained_briefly(
    adapter: ModelAdapter, generator: torch.Generator, dtype: torch.dtype | None
) -> ModelAdapter:
    """A copy after a short training, which opens paths that start closed, then in dtype."""
    assert adapter.module is not None
    copied = copy.deepcopy(adapter.module)
    student = replace(adapter, model=copied)
    bet_on_uniform_text(student, seed=generator.initial_seed(), batch_size=4, steps=10)
    return replace(student, model=copied.to(dtype))


def in_training_mode(adapter: ModelAdapter) -> ModelAdapter:
    """A copy in training mode that drops the same entries in every call, one sequence each."""
    assert adapter.module is not None
    return replace(adapter, model=copy.deepcopy(adapter.module).train(), rows=1, seeded=True)


def leaks_when(
    detector: str,
    state: str,
    cause: str,
    make: Callable[[], ModelAdapter],
    T: int,
    generator: torch.Generator,
    seconds: float,
) -> Finding:
    """Does a later token change an earlier logit in another state of the model?

    Such leaks pass every test of the model as it is: a gate that starts at 0, a mask that depends
    on `self.training`, a BatchNorm over time.

    Args:
        state: in words, for the headline.
        make: brings a copy into that state.
        seconds: for the map.
    """
    adapter = make()
    ids = adapter.tokens(generator, 1, T)
    first, again = adapter.logits(ids), adapter.logits(ids)
    if not bool(first.isfinite().all()):
        # A training that diverges is no fault of the model.
        status = NOT_APPLICABLE if cause == "learned_leak" else FAULT
        return Finding(detector, status, f"{state}, logits are not finite", "not_finite")
    if not torch.equal(first, again):
        headline = f"{state}, logits are random even with a fixed seed and cannot be compared"
        return Finding(detector, NOT_APPLICABLE, headline)
    map_ = dependence(adapter, T, generator, rounds=1, seconds=seconds)
    numbers = {"largest ahead": map_.largest_ahead}
    if not bool(map_.ahead.any()):
        headline = f"{state}, nothing reads ahead ({int(map_.tried.sum())} of {T} tokens changed)"
        return Finding(detector, OK, headline, "", numbers)
    found = explain(map_.reads, map_.tried) or ("", "earlier logits change with later tokens")
    place = first_leak(adapter, T, generator)
    evidence = () if place is None else (place.sentence,)
    maps = {state: map_.single}
    return Finding(detector, FAULT, f"{state}, {found[1]}", cause, numbers, evidence, maps)


def stress(
    adapter: ModelAdapter,
    scores: list[Product],
    calls: list[AttentionCall],
    generator: torch.Generator,
    T: int,
) -> Finding:
    """Multiply all scores until the largest is 2e5: does the mask still hold?

    Args:
        scores: the products that compute them, from an `AttentionTracer` of the same model.
        calls: what that tracer recorded.
        T: length of the sequences, as in that trace.
    """
    products = [call for call in calls if call.queries is not None]
    module = adapter.module
    if not products or module is None:
        headline = "scores are not a product, so they cannot be multiplied from outside"
        return Finding("stress", NOT_APPLICABLE, headline)
    largest = max(
        float(call.raw.detach().abs().amax(-1).median()) * abs(call.scale) for call in products
    )
    if not 0 < largest < STRESS_SCORE:
        return Finding("stress", NOT_APPLICABLE, f"scores reach {largest:.3g} already")
    ids = adapter.tokens(generator, T)
    other = adapter.others(ids)
    cuts = sorted({1, T // 4, T // 2, T - 1})
    batch = torch.stack([ids, *(torch.where(torch.arange(T) >= cut, other, ids) for cut in cuts)])

    def boosted(row: Tensor, factor: float) -> Tensor:
        """(1, T, V) fp64, with all scores multiplied, as by larger query and key weights."""
        found: list[Tensor] = []
        tracer = AttentionTracer(T, factor, frozenset(scores))
        trace(module, lambda: found.append(adapter.raw(row[None]).detach()), tracer)
        return found[0].to("cpu", torch.float64)

    ahead, total = 0.0, 1e-30
    for sign in (1, -1):  # of the scores: far above the fill of a mask, and far below
        factor = sign * STRESS_SCORE / largest
        logits = torch.cat([boosted(row, factor) for row in batch])  # (1 + cuts, T, V)
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
) -> tuple[list[AttentionCall], list[Product], str]:
    """Record one forward pass over one sequence.

    Returns:
        the attention calls, the products of their scores, and why there are none.
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
    pairs = zip(tracer.products, tracer.calls, strict=True)
    scores = [product for product, call in pairs if product and call.pattern is not None]
    return calls, scores, "" if calls else "no attention was seen inside"
