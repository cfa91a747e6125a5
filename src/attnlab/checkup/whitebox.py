"""Detectors that read recorded attention calls. Letters: N heads, T time, D head channels."""

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from attnlab.checkup.attention_calls import AttentionCall
from attnlab.checkup.findings import FAULT, SUSPICIOUS, Finding, passed, read_causes, skipped, span
from attnlab.checkup.model_adapter import ModelAdapter
from attnlab.checkup.recognize import explain_pattern


def check_calls(calls: list[AttentionCall], adapter: ModelAdapter) -> list[Finding]:
    """What the recorded calls of a model show, but for their windows."""
    found = [f for call in calls for f in (check_rows(call), check_mask(call)) if f]
    wrong = {f.detector for f in found}
    sound = {"rows": "the weights of every query sum to 1 over the keys"}
    sound["mask"] = "nothing reads ahead in any recorded attention pattern"
    found += [passed(*pair) for pair in sound.items() if pair[0] not in wrong]
    critical = math.sqrt(2 * math.log(adapter.block_size))
    found += check_scale(calls, critical, looks_untrained(adapter))
    return [*found, *check_heads(calls), check_head_order(calls)]


def check_rows(call: AttentionCall) -> Finding | None:
    """Do the weights of every query sum to 1 over the keys? If not, over what?"""
    assert call.pattern is not None
    pattern, sums = call.weights, call.weights.sum(-1)  # (N, T, T), (N, T)
    if not bool(sums.isfinite().all()):
        if call.axis == -3:
            headline = f"{call.place}: the softmax runs over the heads and gives NaN"
            return Finding("rows", FAULT, headline, "softmax_heads")
        empty = span("row", (~sums.isfinite()).any(0).nonzero().flatten().tolist())
        headline = f"{call.place}: NaN in {empty} of the pattern: queries without keys"
        return Finding("rows", FAULT, headline, "empty_row")
    low, high, off = float(sums.min()), float(sums.max()), float((sums - 1).abs().max())
    # A sink is one more key of the softmax, which takes some weight.
    raw, masked = call.raw, call.masked
    has_sink = masked is not None and masked.numel() == raw.numel() + raw[..., 0].numel()
    precise = call.pattern.dtype not in (torch.bfloat16, torch.float16)
    if off <= (1e-4 if precise else 1e-2) or (has_sink and high <= 1 + 1e-4):
        return None
    cause, sentence = _normalized_over(call, pattern)
    # These two are on purpose in sinks and linear attention.
    status = SUSPICIOUS if cause in ("row_sums", "no_softmax") else FAULT
    headline = f"{call.place}: {sentence} (rows sum to {low:.3g} to {high:.3g})"
    return Finding("rows", status, headline, cause, {"largest deviation": off})


def _normalized_over(call: AttentionCall, pattern: Tensor) -> tuple[str, str]:
    """The cause and a sentence for rows that do not sum to 1."""
    if _all_ones(pattern.sum(-2)):
        return "softmax_queries", "the weights sum to 1 over the queries, not over the keys"
    if len(pattern) > 1 and _all_ones(pattern.sum(0)):
        return "softmax_heads", "the weights sum to 1 over the heads, not over the keys"
    if _all_ones(pattern.abs()):
        return "softmax_batch", "all weights in a batch of one are 1: a softmax over the batch"
    soft = call.after_softmax
    if soft is not None and _reads_ahead(soft) and not _reads_ahead(pattern):
        sentence = "the mask is applied after the softmax, whose sum includes the future"
        return "post_softmax_mask", sentence
    if call.softened is None and not bool((pattern >= 0).all()):
        return "no_softmax", "there is no softmax: some weights are negative"
    return "row_sums", "the weights of a query do not sum to 1"


def _reads_ahead(weights: Tensor) -> bool:
    return bool((weights.triu(1) > 1e-12).any())


def _all_ones(values: Tensor) -> bool:
    """Whether all values are 1, apart from zeros."""
    used = values[values > 1e-12]
    return len(used) > 0 and bool((used - 1).abs().max() < 1e-4)


def check_mask(call: AttentionCall) -> Finding | None:
    """What does the mask of this call let through, and by which mistake?"""
    pattern = call.weights.nan_to_num(nan=0.0)  # `rows` reports NaN
    support = pattern > 1e-12  # a finite fill in place of -inf may leave smaller weights
    heads = support.triu(1).flatten(1).any(-1).nonzero().flatten().tolist()
    if not heads:
        found = explain_pattern(support.any(0))
        return found and Finding("mask", FAULT, f"{call.place}: {found[1]}", found[0])
    which = "all heads" if len(heads) == len(pattern) else f"heads {heads}"
    mass = pattern.triu(1).sum(-1).mean(-1)  # (N,), the weight on the future
    numbers = {"mass on the future": float(mass.max()), "heads": float(len(heads))}
    named = _recognize_fill(call) or explain_pattern(support[heads].any(0))
    if call.after_softmax is not None and not _reads_ahead(call.after_softmax):
        sentence = "the softmax gives no weight to later keys, but what averages the values does"
        named = "mixed_after_softmax", sentence
    assert named is not None, "there is weight above the diagonal"
    maps = {f"pattern of {call.place}, head {heads[0]}": call.weights[heads[0]]}
    said = f"{call.place}, {which}: {named[1]}"
    return Finding("mask", FAULT, said, named[0], numbers, maps=maps)


def windows_of(calls: list[AttentionCall]) -> list[int]:
    """How many keys up to its own position a query attends to in each call, at most."""
    supports = [(call.weights.nan_to_num(nan=0.0) > 1e-12).any(0).tril() for call in calls]
    pairs = [support.nonzero() for support in supports]  # (n, 2): query and key
    return [1 + int((x[:, 0] - x[:, 1]).max()) if len(x) else 0 for x in pairs]


def check_windows(
    calls: list[AttentionCall], windows: list[int], meant: int | Sequence[int | None] | None
) -> list[Finding]:
    """Are the windows of all calls as wide as they are meant to be?"""
    if meant is None:
        return []
    wanted = [meant] * len(calls) if isinstance(meant, int) else list(meant)
    if len(wanted) != len(calls):
        reason = f"windows of {len(wanted)} layers were given, but {len(calls)} calls were seen"
        return [skipped("windows", reason)]
    T = calls[0].length
    for call, window, width in zip(calls, windows, wanted, strict=True):
        if window != min(width or T, T):
            headline = f"{call.place}: a query attends to {window} keys, not to {width or 'all'}"
            return [Finding("windows", FAULT, headline, "window_differs", {"keys": float(window)})]
    return [passed("windows", f"every window is as wide as meant, of {T} positions")]


def _recognize_fill(call: AttentionCall) -> tuple[str, str] | None:
    """Recognize a mask by the numbers it leaves in the scores."""
    masked = call.scores
    if masked is None:
        return None
    above = torch.ones(masked.shape[-2:], dtype=torch.bool).triu(1)
    if bool((masked[:, above].abs() < 1e-6).all()):
        return "zero_fill", "blocked scores are 0, so blocked keys keep a weight of e^0"
    level, varied = float(masked[:, above].mean()), float(masked[:, ~above].std()) > 1e-6
    if -100 < level < 0 and varied and bool(((masked[:, above] - level).abs() < 1e-6).all()):
        sentence = f"blocked scores are all {level:.3g}, as by a softcap after the mask"
        return "finite_fill", f"{sentence}, and keep a weight of e^{level:.3g}"
    added = masked - call.unmasked
    is_binary = bool(torch.minimum(added.abs(), (added - 1).abs()).max() < 1e-3)
    if is_binary and abs(float(added[:, above].mean() - added[:, ~above].mean())) > 0.5:
        return "added_bool", "a 0/1 mask is added to the scores, which blocks nothing"
    return None


def check_scale(calls: list[AttentionCall], critical: float, untrained: bool) -> list[Finding]:
    """Are the scores scaled by 1/sqrt(D), and how much do they vary?

    Some published models use another factor on purpose, so it is suspicious, and a fault only if
    it saturates the softmax of an untrained model: the spread of its scores then exceeds
    sqrt(2 ln T), beyond which a random softmax condenses on single keys (random energy model,
    Derrida 1981).
    """
    groups: dict[str, list[AttentionCall]] = defaultdict(list)
    for call in calls:
        if call.masked is not None and call.queries is not None:  # dot products before a softmax
            groups[scale_cause(call)].append(call)
    findings = []
    for cause, group in groups.items():
        spread, D, factor = max(map(spread_of, group)), group[0].head_size, group[0].scale
        numbers = {"scale": factor, "1/sqrt(D)": 1 / math.sqrt(D)}
        numbers |= {"spread": spread, "critical spread": critical}
        frozen = untrained and spread > critical
        if not cause and not frozen:
            sentence = f"scores are scaled by 1/sqrt(D); their standard deviation is {spread:.2g}"
            findings.append(passed("scale", sentence, numbers))
            continue
        named, status = cause or "frozen_scores", FAULT if cause and frozen else SUSPICIOUS
        low, high = (f"{of(call.scale for call in group):.4g}" for of in (min, max))
        scale = low if low == high else f"{low} to {high}"
        about = {"scale": scale, "D": D, "spread": spread, "critical": critical}
        sentence = read_causes()["scales"][named].format(**about)
        first, *more = dict.fromkeys(call.place for call in group)
        places = f"{first} and {len(more)} more" if more else first
        findings.append(Finding("scale", status, f"{places}: {sentence}", named, numbers))
    return findings


def scale_cause(call: AttentionCall) -> str:
    """The cause for a call's scale, "" for 1/sqrt(D) and for normalized queries and keys."""
    D, N, root = call.head_size, len(call.raw), 1 / math.sqrt(call.head_size)
    if D == 1 or all(map(_normalized, (call.queries, call.keys))):
        return ""
    if _close(call.scale, 1 / D) and sum(_close(x, root) for _, x in call.factors) == 2:
        return "double_scale"
    # A part of the layer, such as a convolution of the keys, may scale its own output.
    own = [x for module, x in call.factors if not module.startswith(f"{call.module}.")]
    if _close(math.prod(own), root):
        return ""
    usual = {"inverse_scale": 1 / D, "no_scale": 1.0, "inverted_scale": 1 / root}
    usual["width_scale"] = 1 / math.sqrt(D * N)
    return next((c for c, scale in usual.items() if _close(call.scale, scale)), "other_scale")


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= 2e-3 * abs(b)  # scales may have been rounded to bf16


def _normalized(x: Tensor | None) -> bool:
    """Whether all rows of (N, T, D) have the same length, as QK norm gives."""
    lengths = torch.zeros(1) if x is None else x.detach().double().norm(dim=-1)
    return bool(lengths.any()) and float(lengths.std() / lengths.mean()) < 1e-2


def spread_of(call: AttentionCall) -> float:
    """The standard deviation of a row's unmasked scores, averaged over rows with 8 keys or more.

    The logarithm of the pattern is used, which differs from the scores by a constant per row.
    """
    pattern = call.weights
    visible = pattern > 1e-30
    if not _reads_ahead(pattern):
        visible = visible.tril()  # blocked scores can be finite numbers
    enough = visible.sum(-1) >= 8
    if not enough.any():
        return 0.0
    logs = torch.where(visible, pattern.clamp_min(1e-300).log(), torch.nan)
    count = visible.sum(-1, keepdim=True)
    centered = logs - logs.nansum(-1, keepdim=True) / count
    variance = centered.square().nansum(-1) / (count[..., 0] - 1).clamp_min(1)
    return float(variance[enough].sqrt().mean())


def check_heads(calls: list[AttentionCall]) -> list[Finding]:
    """Do several heads of a layer compute the same thing?"""
    found, several = [], [call for call in calls if len(call.raw) > 1]
    for call in several:
        N, varies = len(call.raw), float(call.raw.detach().std()) >= 1e-12
        parts = [x for x in (call.raw, call.values) if x is not None]
        if varies and all(map(_all_equal, parts)):
            headline = f"{call.place}: all {N} heads have the same scores and values"
            found.append(Finding("heads", FAULT, headline, "identical_heads", {"heads": float(N)}))
    if not several:
        return [skipped("heads", "no layer with several heads was seen")]
    return found or [passed("heads", "the heads of every layer differ")]


def _all_equal(x: Tensor) -> bool:
    x = x.detach().double()
    x = x.where(x.isfinite(), 0.0)  # blocked scores are always equal
    return float((x - x[:1]).abs().max()) <= 1e-5 * float(x.abs().max())


def check_head_order(calls: list[AttentionCall]) -> Finding:
    """If several query heads share keys: are they neighbors?"""
    name, grouped = "grouped heads", False
    for call in calls:
        shared = _equal_to_first(call.keys)
        group = sum(shared)
        if len(shared) < 4 or group < 2 or group == len(shared):
            continue
        grouped, values = True, _equal_to_first(call.values)
        if sum(values) == group and values != shared:  # differential attention shares more values
            headline = f"{call.place}: the query heads that share keys do not share values"
            return Finding(name, FAULT, headline, "head_order")
        if not all(shared[:group]):
            headline = (
                f"{call.place}: query heads 0 and {shared.index(True, 1)} share keys and values, "
                f"but heads 0 and 1 do not: key-value heads were tiled, not repeated"
            )
            return Finding(name, SUSPICIOUS, headline, "head_order")
    if not grouped:
        return skipped(name, "no grouped key-value heads were seen")
    return passed(name, "neighboring query heads share a key-value head")


def _equal_to_first(x: Tensor | None) -> list[bool]:
    """Which heads of (N, T, D) hold the same as the first."""
    return [] if x is None else [_all_equal(x[[0, h]]) for h in range(len(x))]


def looks_untrained(adapter: ModelAdapter) -> bool:
    """Whether the weight matrices look like independent random draws.

    The largest singular value of an m x n matrix of independent entries with standard deviation s
    is about s (sqrt(m) + sqrt(n)) (Marchenko and Pastur 1967); training adds larger ones.
    """
    ratios = []
    for p in adapter.parameters():
        if p.ndim == 2 and p.is_floating_point() and min(p.shape) >= 8:
            matrix = p.detach().float()
            matrix = matrix[:, : 4 * len(matrix)][: 4 * matrix.shape[1]]
            largest = float(torch.svd_lowrank(matrix, q=2, niter=10)[1][0])
            edge = float(matrix.square().mean().sqrt()) * sum(n**0.5 for n in matrix.shape)
            ratios.append(largest / (edge or 1.0))
    return not ratios or sorted(ratios)[len(ratios) // 2] < 1.3
