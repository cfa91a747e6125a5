"""Leaks that open in another state: with noise, under large scores, after training."""

from collections.abc import Iterable
from dataclasses import replace

import torch

from attnlab.checkup.attention_calls import AttentionCall
from attnlab.checkup.blackbox import check_future
from attnlab.checkup.dependence import dependence, movement
from attnlab.checkup.findings import FAULT, SUSPICIOUS, Finding, passed, skipped
from attnlab.checkup.locate import first_leak
from attnlab.checkup.martingale import bet_on_uniform_text
from attnlab.checkup.model_adapter import REFUSALS, ModelAdapter, cast_weights
from attnlab.checkup.trace import AttentionTracer, trace
from attnlab.errors import first_line

# A published model has scores below -1e5 (TransformerLens issue 318).
STRESS_SCORE = 2e5
_CAUSES = {"trained": "learned_leak", "training mode": "training_leak"}


@torch.no_grad()
def disturbed(adapter: ModelAdapter) -> ModelAdapter:
    """A copy with noise on all weights, which opens gates that start at 0 a little."""
    noisy = adapter.copied()
    for parameter in noisy.module.parameters():
        if parameter.is_floating_point():
            size = 0.1 * float(parameter.float().square().mean().sqrt()) + 0.01
            parameter.add_(adapter.random_like(parameter), alpha=size)
    return noisy


def check_trained(adapter: ModelAdapter, precise: ModelAdapter, T: int, seconds: float) -> Finding:
    """Does a short training open a path, such as a gate that starts at 0?"""
    student = adapter.copied()
    bet_on_uniform_text(student, batch_size=4, steps=10)
    cast_weights(student.module, precise.dtype)
    return _leaks("trained", student, "after a short training", T, seconds)


def check_training_mode(adapter: ModelAdapter, T: int, seconds: float) -> Finding:
    """Does training mode open one, by a mask that depends on it or a BatchNorm over time?"""
    student = replace(adapter.copied(), rows=1, seeded=True)  # drops the same in every call
    student.module.train()
    return _leaks("training mode", student, "in training mode", T, seconds)


def _leaks(detector: str, adapter: ModelAdapter, state: str, T: int, seconds: float) -> Finding:
    """Does a later token change an earlier logit in this state of the model?"""
    ids = adapter.tokens(1, T)
    first, again = adapter.logits(ids), adapter.logits(ids)
    map_ = dependence(adapter, T, rounds=1, seconds=seconds)
    found = check_future([map_], detector=detector, state=f", {state}")
    found = replace(found, headline=f"{state}, {found.headline}")
    if found.cause == "not_finite":  # training that diverges is not a fault of the model
        return skipped(detector, found.headline) if detector == "trained" else found
    if not torch.equal(first, again):
        headline = f"{state}, logits are random even with a fixed seed and cannot be compared"
        return skipped(detector, headline)
    if found.status is not FAULT:
        return replace(found, maps={})
    place = first_leak(adapter, T)
    evidence = () if place is None else (place.sentence,)
    return replace(found, cause=_CAUSES[detector], evidence=evidence)


def check_stress(adapter: ModelAdapter, calls: list[AttentionCall]) -> Finding:
    """Multiply all scores of the recorded calls until the largest is 2e5: does the mask hold?

    A mask that fails is a fault only if it also fails under scores that the model's own queries
    and keys would give if they were parallel.
    """
    products = [call for call in calls if call.queries is not None]
    if not products:
        return skipped("stress", "scores are not a product, so they cannot be enlarged")
    largest = max(float(call.unmasked.abs().amax(-1).median()) for call in products)
    if not 0 < largest < STRESS_SCORE:
        return skipped("stress", f"scores of {largest:.3g} cannot be enlarged to 2e5")
    share = _share_ahead(adapter, calls, STRESS_SCORE / largest)
    if share is None:
        headline = f"scores of {STRESS_SCORE:.0e} give NaN or infinity"
        return Finding("stress", SUSPICIOUS, headline, "overflow")
    reach = min(max(call.largest_possible for call in products), STRESS_SCORE)
    numbers = {"largest score": STRESS_SCORE, "ahead": share, "within reach": reach}
    if share <= 1e-6:
        return passed("stress", "the mask holds under scores of 2e5", numbers)
    status = SUSPICIOUS
    what = f"under scores of 2e5 the mask fails; this model reaches {reach:.3g}"
    if (_share_ahead(adapter, calls, reach / largest) or 0.0) > 1e-6:
        status = FAULT
        what = f"under scores of {reach:.3g} the mask fails, which this model can reach"
    lowest = [float(call.scores.triu(1).min()) for call in calls if call.scores is not None]
    fill = next((x for x in lowest if -1e8 < x < -20), None)
    if fill is None:
        return Finding("stress", status, what, "stress", numbers)
    headline = f"blocked scores are about {fill:.3g}, a finite number: {what}"
    return Finding("stress", status, headline, "finite_fill", numbers)


def _share_ahead(adapter: ModelAdapter, calls: list[AttentionCall], factor: float) -> float | None:
    """How much later tokens change earlier logits if all scores are multiplied by the factor.

    As a share of the largest change; None if logits are not finite.
    """
    T, scores = calls[0].length, frozenset(call.product for call in calls if call.product)
    ids, place = adapter.tokens(T), torch.arange(T)
    cuts = torch.tensor(sorted({1, T // 4, T // 2, T - 1}))[:, None]
    rows = torch.cat([ids[None], torch.where(place >= cuts, adapter.next_ids(ids), ids)])
    ahead, total = 0.0, 1e-30
    for sign in (1, -1):  # of the scores: far above the fill of a mask, and far below
        boosted = [AttentionTracer(T, sign * factor, scores) for _ in rows]
        outputs = [trace(adapter, x[None], t) for x, t in zip(rows, boosted, strict=True)]
        change = movement(torch.cat(outputs).detach().to("cpu", torch.float64))  # (cuts, T)
        if not bool(change.isfinite().all()):
            return None
        ahead = max(ahead, float(change[place < cuts].max()))
        total = max(total, float(change.max()))
    return ahead / total


def check_dropout(adapter: ModelAdapter, T: int) -> Finding:
    """Are scores dropped in training before the softmax, so that they keep a weight of e^0?"""
    student = adapter.copied()
    student.module.train()
    calls, reason = record(student, [T])
    if reason:
        return skipped("dropout", reason)
    for call in calls:
        if call.dropped:
            headline = f"{call.place}: in training mode, scores are dropped before the softmax"
            return Finding("dropout", SUSPICIOUS, headline, "dropped_scores")
    return passed("dropout", "no scores are dropped before the softmax in training mode")


def check_values(adapter: ModelAdapter, T: int) -> Finding:
    """Are the values of equal tokens in the first layer one vector, rotated by its position?"""
    calls, _ = record(adapter, [T], equal=True)
    x = calls[0].values if calls else None
    if x is None or x.shape[-1] % 2 or x.shape[-2] != T:
        return skipped("values", "no values of an even width were seen")
    x = x.detach().double()  # (N, T, E)
    pairs = [x.unflatten(-1, (-1, 2)).norm(dim=-1), x.unflatten(-1, (2, -1)).norm(dim=-2)]
    differ = float((x - x[:, :1]).abs().max()) > 1e-3 * float(x.abs().max())
    if differ and any(float((n - n[:, :1]).abs().max()) <= 1e-4 * float(n.max()) for n in pairs):
        headline = f"{calls[0].place}: equal tokens have values that are rotated by their position"
        return Finding("values", SUSPICIOUS, headline, "rotated_values")
    return passed("values", "the values of equal tokens are not rotated")


def record(
    adapter: ModelAdapter, lengths: Iterable[int], *, equal: bool = False
) -> tuple[list[AttentionCall], str]:
    """The attention calls of one sequence of the first accepted length, or why there are none.

    Args:
        equal: whether all tokens of the sequence are equal.
    """
    if not adapter.is_module:
        return [], "the model is not a torch module, so its operations cannot be recorded"
    reason = ""
    for T in lengths:
        tracer, ids = AttentionTracer(T), adapter.tokens(1, T)
        try:
            trace(adapter, ids[:, :1].expand(1, T) if equal else ids, tracer)
        except REFUSALS as error:
            reason = reason or f"the model's operations cannot be recorded ({first_line(error)})"
            continue
        calls = [call for call in tracer.calls if call.pattern is not None]
        return calls, "" if calls else "no attention was found in the model's operations"
    return [], reason
