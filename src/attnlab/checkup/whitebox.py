"""Detectors on the attention calls that `attnlab.checkup.trace` has seen inside a model.

Letters: N heads, T time, D channels of a head.
"""

import math
from collections import defaultdict

import torch
from torch import Tensor

from attnlab.checkup.attention_calls import AttentionCall
from attnlab.checkup.findings import Finding, Status
from attnlab.checkup.recognize import explain_pattern

OK, FAULT, SUSPICIOUS, NOT_APPLICABLE = (
    Status.OK,
    Status.FAULT,
    Status.SUSPICIOUS,
    Status.NOT_APPLICABLE,
)


def place(call: AttentionCall) -> str:
    """Where a call happened, in words."""
    return call.module or "the model"


def weights(call: AttentionCall) -> Tensor:
    """The pattern of a completed call, (N, T, T) in fp64."""
    assert call.pattern is not None
    return call.pattern.detach().double()


def rows(call: AttentionCall) -> Finding | None:
    """Do the weights of every query sum to 1 over the keys, and if not, over what?"""
    pattern = weights(call)
    if not bool(pattern.isfinite().all()):
        return _empty_rows(call, pattern)
    sums = pattern.sum(-1)
    off = float((sums - 1).abs().max())
    numbers = {"largest deviation": off}
    if off <= 1e-2 if call.pattern is not None and call.pattern.dtype in _LOW else off <= 1e-4:
        return None
    if call.has_sink and float(sums.max()) <= 1 + 1e-4:
        return None
    cause, sentence = _axis(call, pattern)
    # Sinks, and attention that is linear by design, are not normalized and yet are published.
    status = SUSPICIOUS if cause in ("row_sums", "no_softmax") else FAULT
    low, high = float(sums.min()), float(sums.max())
    headline = f"{place(call)}: {sentence} (rows sum to {low:.3g} to {high:.3g})"
    return Finding("rows", status, headline, cause, numbers)


_LOW = {torch.bfloat16, torch.float16}


def _empty_rows(call: AttentionCall, pattern: Tensor) -> Finding:
    if call.axis == -3:
        headline = f"{place(call)}: the softmax runs over the heads and gives NaN"
        return Finding("rows", FAULT, headline, "softmax_heads")
    empty = (~pattern.isfinite().all(-1)).any(0).nonzero().flatten().tolist()
    some = f"row {empty[0]}" if len(empty) == 1 else f"rows {empty[0]} to {empty[-1]}"
    headline = f"{place(call)}: {some} of the pattern are NaN, queries without keys"
    return Finding("rows", FAULT, headline, "empty_row")


def _axis(call: AttentionCall, pattern: Tensor) -> tuple[str, str]:
    def ones(sums: Tensor) -> bool:
        used = sums[sums > 1e-12]
        return len(used) > 0 and bool((used - 1).abs().max() < 1e-4)

    soft = call.softened
    same = soft is not None and soft.numel() == pattern.numel()
    before = soft.double().reshape(pattern.shape) if soft is not None and same else None
    if ones(pattern.sum(-2)):
        return (
            "softmax_queries",
            "a key's weights over the queries sum to 1, not a query's over keys",
        )
    if len(pattern) > 1 and ones(pattern.sum(0)):
        return "softmax_heads", "weights sum to 1 over the heads, not over the keys"
    if bool((pattern[pattern.abs() > 1e-12] - 1).abs().max() < 1e-4):
        return (
            "softmax_batch",
            "in a batch of one all weights are 1: the softmax runs over the batch",
        )
    if before is not None:
        seen = bool((before.triu(1) > 1e-12).any())
        if seen and not bool((pattern.triu(1) > 1e-12).any()):
            sentence = "the mask acts after the softmax, whose sum has seen the future"
            return "post_softmax_mask", sentence
    if soft is None and not bool((pattern >= 0).all()):
        return "no_softmax", "there is no softmax: weights are negative as well"
    return "row_sums", "a query's weights do not sum to 1"


def mask(call: AttentionCall) -> Finding | None:
    """What does this call's mask let through, and by which mistake?"""
    pattern = weights(call)
    if not bool(pattern.triu(1).nan_to_num(nan=0.0).any()):  # NaN is told by `rows`
        found = explain_pattern(_support(pattern))
        if found is None:
            return None
        return Finding("mask", FAULT, f"{place(call)}: {found.headline}", found.cause)
    mass = pattern.triu(1).nan_to_num(nan=0.0).sum(-1).mean(-1)  # (N,) of the future
    heads = (mass > 1e-12).nonzero().flatten().tolist()
    which = "all heads" if len(heads) == len(mass) else f"heads {heads}"
    numbers = {"mass on the future": float(mass.max()), "heads": float(len(heads))}
    cause, sentence = _fill(call) or _by_pattern(pattern[heads])
    headline = f"{place(call)}, {which}: {sentence}"
    pictures = {f"pattern of {place(call)}, head {heads[0]}": pattern[heads[0]]}
    return Finding("mask", FAULT, headline, cause, numbers, maps=pictures)


def _support(pattern: Tensor) -> Tensor:
    return (pattern.nan_to_num(nan=0.0) > 1e-12).any(0)  # NaN rows are told by `rows`


def _by_pattern(pattern: Tensor) -> tuple[str, str]:
    found = explain_pattern(_support(pattern))
    assert found is not None, "there is weight above the diagonal"
    return found.cause, found.headline


def _fill(call: AttentionCall) -> tuple[str, str] | None:
    """Recognize a mask by the numbers it leaves in the scores."""
    masked = call.scores
    if masked is None:
        return None
    T = masked.shape[-1]
    above = torch.ones(T, T, dtype=torch.bool).triu(1)
    blocked = masked[:, above]
    if bool((blocked == 0).all()):
        return "zero_fill", "blocked scores are 0, so blocked keys keep the weight e^0"
    added = masked - call.raw.detach().double() * (call.scale / call.scale_before)
    if _is_binary(added[:, above]) and _is_binary(added[:, ~above]):
        up, down = float(added[:, above].mean()), float(added[:, ~above].mean())
        if abs(up - down) > 0.5:
            return "added_bool", "the mask is added to the scores as 0 and 1, which blocks nothing"
    return None


def _is_binary(values: Tensor) -> bool:
    rounded = values.round()
    close = bool((values - rounded).abs().max() < 1e-3)
    return close and bool(((rounded == 0) | (rounded == 1)).all())


def scale(calls: list[AttentionCall], critical: float, untrained: bool) -> list[Finding]:
    """Are scores scaled by 1/sqrt(D), and how far are they apart?

    Published models depart from 1/sqrt(D) on purpose, so another factor is suspicious, and a fault
    only where it has frozen the softmax of an untrained model: its scores' spread then exceeds
    sqrt(2 ln T), where a random softmax condenses on single keys (random energy model).
    """
    findings = []
    for cause, group in _by_cause(calls).items():
        spread = max(spread_of(call) for call in group)
        D = group[0].width
        numbers = {
            "scale": group[0].scale,
            "1/sqrt(D)": 1 / math.sqrt(D),
            "spread": spread,
            "critical spread": critical,
        }
        frozen = untrained and spread > critical
        places = _places(group)
        if cause:
            status = FAULT if frozen else SUSPICIOUS
            headline = f"{places}: {_SCALE_SENTENCES[cause].format(scale=group[0].scale, D=D)}"
            findings.append(Finding("scale", status, headline, cause, numbers))
        elif frozen:
            headline = (
                f"{places}: scores spread by {spread:.2g} at the start, above {critical:.2g}"
            )
            findings.append(Finding("scale", SUSPICIOUS, headline, "frozen_scores", numbers))
        else:
            headline = f"scores are scaled as usual; they spread by {spread:.2g}"
            findings.append(Finding("scale", OK, headline, "", numbers))
    return findings


_SCALE_SENTENCES = {
    "no_scale": "scores are not scaled (1/sqrt(D) would be 1/sqrt({D}))",
    "double_scale": "scores are scaled by 1/sqrt(D) twice, D = {D}",
    "inverse_scale": "scores are scaled by 1/D = 1/{D}, not by its root",
    "width_scale": "scores are scaled by 1/sqrt(C), the width of all heads, not of one (D = {D})",
    "inverted_scale": "scores are multiplied by sqrt(D), not divided, D = {D}",
    "other_scale": "scores are scaled by {scale:.4g}, which is not 1/sqrt({D})",
}


def _by_cause(calls: list[AttentionCall]) -> dict[str, list[AttentionCall]]:
    groups: dict[str, list[AttentionCall]] = defaultdict(list)
    for call in calls:
        if call.masked is not None and call.queries is not None:  # dot products, for a softmax
            groups[scale_cause(call)].append(call)
    return groups


def scale_cause(call: AttentionCall) -> str:
    """Name a call's scale, "" for 1/sqrt(D) and for queries and keys of fixed length."""
    D, N = call.width, len(call.raw)
    root = 1 / math.sqrt(D)
    if D == 1 or _close(call.scale, root) or _normalized(call.queries, call.keys):
        return ""
    if _close(call.scale, 1 / D):
        twice = sum(_close(factor, root) for factor in call.factors) == 2
        return "double_scale" if twice else "inverse_scale"
    if _close(call.scale, 1.0):
        return "no_scale"
    if _close(call.scale, 1 / root):
        return "inverted_scale"
    return "width_scale" if N > 1 and _close(call.scale, 1 / math.sqrt(D * N)) else "other_scale"


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= 2e-3 * abs(b)  # scales may have been rounded to bf16


def _normalized(*vectors: Tensor | None) -> bool:
    """Whether all rows of each (N, T, D) have one length, as after a norm of queries and keys."""
    lengths = [x.detach().double().norm(dim=-1) for x in vectors if x is not None]
    return all(float(x.std() / x.mean().clamp_min(1e-30)) < 1e-2 for x in lengths)


def spread_of(call: AttentionCall) -> float:
    """How far apart a row's visible scores are: their standard deviation, averaged over the rows.

    Rows of 8 keys and more count. The scores are had from the pattern, whose logarithm differs
    from them by a constant of the row.
    """
    pattern = weights(call)
    visible = pattern > 1e-30
    enough = visible.sum(-1) >= 8
    if not enough.any():
        return 0.0
    logs = torch.where(visible, pattern.clamp_min(1e-300).log(), torch.nan)
    count = visible.sum(-1, keepdim=True)
    centerd = logs - logs.nansum(-1, keepdim=True) / count
    variance = centerd.square().nansum(-1) / (count[..., 0] - 1).clamp_min(1)
    return float(variance[enough].sqrt().mean())


def heads(calls: list[AttentionCall]) -> list[Finding]:
    """Do several heads of a layer compute one and the same thing?"""
    found = []
    for call in calls:
        N = len(call.raw)
        if N < 2 or float(call.raw.detach().std()) < 1e-12:
            continue
        same = _all_equal(call.raw) and (call.values is None or _all_equal(call.values))
        if same:
            headline = f"{place(call)}: all {N} heads have the same scores and the same values"
            found.append(Finding("heads", FAULT, headline, "identical_heads", {"heads": float(N)}))
    if found or any(len(call.raw) > 1 for call in calls):
        return found or [Finding("heads", OK, "the heads of every layer differ")]
    return [Finding("heads", NOT_APPLICABLE, "no layer with several heads was seen")]


def _all_equal(x: Tensor) -> bool:
    x = x.detach().double()
    x = x.where(x.isfinite(), 0.0)  # blocked scores are equal anyway
    return float((x - x[:1]).abs().max()) <= 1e-5 * float(x.abs().max())


def head_order(calls: list[AttentionCall]) -> Finding:
    """Where several query heads share keys: is it neighbors that share?"""
    name = "grouped heads"
    grouped = 0
    for call in calls:
        keys = call.raw[:0] if call.keys is None else call.keys
        N = len(keys)
        shared = [_all_equal(keys[[0, h]]) for h in range(N)]
        group = sum(shared)
        if N < 4 or group < 2 or group == N:
            continue
        grouped += 1
        if not all(shared[:group]):
            headline = (
                f"{place(call)}: query heads 0 and {shared.index(True, 1)} share keys and values, "
                f"heads 0 and 1 do not: key-value heads were tiled, not repeated"
            )
            return Finding(name, SUSPICIOUS, headline, "head_order")
    if not grouped:
        return Finding(name, NOT_APPLICABLE, "no grouped key-value heads were seen")
    return Finding(name, OK, "neighboring query heads share their key-value head")


def _places(group: list[AttentionCall]) -> str:
    names = list(dict.fromkeys(place(call) for call in group))
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
