"""Detectors that only ask: ids in, logits out.

Letters: B batch, T time, V symbols.
"""

import torch
from torch import Tensor

from attnlab.checkup.dependence import Dependence
from attnlab.checkup.findings import Finding, Status
from attnlab.checkup.model_adapter import REFUSALS, ModelAdapter
from attnlab.checkup.recognize import explain, explain_scramble

OK, FAULT, SUSPICIOUS, NOT_APPLICABLE = (
    Status.OK,
    Status.FAULT,
    Status.SUSPICIOUS,
    Status.NOT_APPLICABLE,
)


def accepted_lengths(adapter: ModelAdapter) -> list[int]:
    """Lengths worth asking, longest first: those of a usual list that the model accepts."""
    T = adapter.block_size
    wanted = [T, T - 1, T // 2 + 1, T // 2, T // 3, 7, 3, 2, 1]
    lengths = []
    for length in sorted({n for n in wanted if 1 <= n <= T}, reverse=True):
        try:
            adapter.logits(torch.zeros(2, length, dtype=torch.long))
        except REFUSALS:
            continue
        lengths.append(length)
    return lengths


def finite(adapter: ModelAdapter, lengths: list[int], generator: torch.Generator) -> Finding:
    """Are all logits numbers, for random tokens and for extreme ones, at every length?"""
    V, T = adapter.vocab_size, lengths[0]
    alternating = torch.arange(T) % 2 * (V - 1)
    extreme = torch.stack([torch.zeros(T).long(), torch.full((T,), V - 1), alternating])
    inputs = [torch.cat([adapter.tokens(generator, 2, T), extreme])]
    inputs += [adapter.tokens(generator, 2, n) for n in lengths[1:]]
    for ids in inputs:
        bad = ~adapter.logits(ids).isfinite().all(-1)  # (B, T)
        if bad.any():
            return _not_finite(bad)
    return Finding("finite", OK, f"all logits are finite at {len(lengths)} lengths")


def _not_finite(bad: Tensor) -> Finding:
    rows = bad.any(0).nonzero().flatten().tolist()
    T = bad.shape[1]
    numbers = {"share": float(bad.double().mean()), "T": float(T)}
    if rows in ([0], [T - 1]):
        return Finding(
            "finite",
            FAULT,
            f"position {rows[0]} of {T} gives NaN or infinity and no other does: the mask leaves "
            f"query {rows[0]} without keys",
            "empty_row",
            numbers,
        )
    where = f"positions {rows[0]} to {rows[-1]}" if len(rows) < T else "every position"
    return Finding("finite", FAULT, f"{where} of {T} gives NaN or infinity", "not_finite", numbers)


def deterministic(
    adapter: ModelAdapter, lengths: list[int], generator: torch.Generator
) -> Finding:
    """Does the same input give the same answer twice, in eval mode, whatever came between?"""
    ids, others = adapter.tokens(generator, 2, 2, lengths[0])
    torch.manual_seed(1)
    first = adapter.logits(ids)
    second = adapter.logits(ids)
    adapter.logits(others)
    third = adapter.logits(ids)
    torch.manual_seed(1)
    again = adapter.logits(ids)
    numbers = {"change": relative(second, first), "after others": relative(third, first)}
    if max(numbers.values()) <= 1e-5:
        return Finding("same twice", OK, "the same tokens give the same logits twice", "", numbers)
    if relative(again, first) <= 1e-5:
        return Finding(
            "same twice",
            FAULT,
            f"in eval mode the same tokens give other logits the second time (by "
            f"{numbers['change']:.2g} of their spread), and equal ones with the same random seed: "
            f"dropout is left on",
            "dropout_on",
            numbers,
        )
    change = max(numbers.values())
    headline = f"the same tokens give other logits later (by {change:.2g} of their spread)"
    return Finding("same twice", FAULT, headline, "keeps_state", numbers)


def rows_independent(
    adapter: ModelAdapter, lengths: list[int], generator: torch.Generator
) -> Finding:
    """Do the other sequences of a batch leave a sequence's logits alone?"""
    if adapter.rows == 1:
        return Finding("batch", NOT_APPLICABLE, "the model takes one sequence at a time")
    name, tolerance = "batch", 1e-4
    ids = adapter.tokens(generator, 5, lengths[0])
    changed = ids.clone()
    changed[1:] = adapter.tokens(generator, 4, lengths[0])
    whole = adapter.logits(ids)
    mixed = relative(adapter.logits(changed)[:1], whole[:1])
    numbers = {"by other rows": mixed}
    if mixed > 1e-6:
        return Finding(
            name,
            FAULT,
            f"a sequence's logits change (by {mixed:.2g} of their spread) when other rows of the "
            f"batch change",
            "rows_mix",
            numbers,
        )
    numbers["alone"] = relative(adapter.logits(ids[:1]), whole[:1])
    if numbers["alone"] > tolerance:
        return Finding(
            name,
            SUSPICIOUS,
            f"a sequence alone gets other logits (by {numbers['alone']:.2g} of their spread) than "
            f"in a batch",
            "batch_size",
            numbers,
        )
    return Finding(name, OK, "rows of a batch do not influence each other", "", numbers)


def future(
    maps: list[Dependence], shapes: list[tuple[int, int]], *, detector: str = "future"
) -> Finding:
    """Does anything that comes later change an earlier answer? Maps from the longest down."""
    leaking = [m for m in maps if bool(m.ahead.any())]
    numbers = {f"largest ahead, T={m.T}": m.largest_ahead for m in maps}
    pictures = {f"who reads whom, T = {maps[0].T}": maps[0].single}
    if not leaking:
        scramble = explain_scramble(maps[0].reads, maps[0].tried, shapes)
        if scramble is not None:
            return Finding(
                detector, FAULT, scramble.headline, scramble.cause, numbers, maps=pictures
            )
        columns = int(maps[0].tried.sum())
        headline = f"no position depends on later ones ({columns} of {maps[0].T} positions tried)"
        return Finding(detector, OK, headline, "", numbers, maps=pictures)
    worst = leaking[0]
    clean = [m.T for m in maps if m.T < worst.T and not bool(m.ahead.any())]
    reads = worst.reads | (worst.ahead & ~worst.tried)
    found = explain(reads, worst.tried, shapes=shapes, clean_up_to=max(clean, default=0))
    evidence = (
        f"changing later tokens moves earlier logits by up to {worst.largest_ahead:.2g} of the "
        f"largest change (rounding: {worst.tolerance:.0e}), T = {worst.T}",
    )
    if found is None:  # only whole suffixes show it
        rows = worst.ahead.any(-1).nonzero().flatten().tolist()
        headline = (
            f"positions {rows[0]} to {rows[-1]} change when all later tokens change together"
        )
        return Finding(detector, FAULT, headline, "reads_ahead", numbers, evidence, pictures)
    return Finding(detector, FAULT, found.headline, found.cause, numbers, evidence, pictures)


def past(whole: Dependence, jittered: Dependence | None) -> Finding:
    """Is the past used at all, and how far back?"""
    for map_, state in ((whole, ""), (jittered, " once its weights are a little disturbed")):
        if map_ is None:
            continue
        below = map_.reads & torch.ones(map_.T, map_.T, dtype=torch.bool).tril(-1)
        if below.any():
            i = torch.arange(map_.T)
            back = (i[:, None] - i[None, :])[below]
            pairs = torch.ones(map_.T, map_.T, dtype=torch.bool).tril(-1) & map_.tried
            share = float(below.sum() / pairs.sum())
            numbers = {"furthest back": float(back.max()), "share of pairs": share}
            headline = f"the past is used, up to {int(back.max())} positions back{state}"
            return Finding("past", OK, headline, "", numbers)
    return Finding(
        "past", FAULT, "no position depends on any earlier one: the past is not used", "no_past"
    )


def gradients(map_: Tensor | None, whole: Dependence) -> Finding:
    """The same question by backpropagation, and where the two answers differ."""
    if map_ is None:
        return Finding(
            "gradient",
            NOT_APPLICABLE,
            "no gradient can be followed from logits to the tokens as given",
        )
    if not bool(map_.isfinite().all()):
        return Finding("gradient", FAULT, "gradients hold NaN or infinity", "not_finite")
    tolerance = max(whole.tolerance, 1e-6)
    reads = map_ > tolerance
    largest = float(map_.triu(1).max())
    pictures = {"the same by gradients": map_}
    differ = int(((reads != whole.reads)[:, whole.tried]).sum())
    numbers = {"largest ahead": largest, "pairs that differ": float(differ)}
    if largest > tolerance:
        t, j = (map_.triu(1) == largest).nonzero()[0].tolist()
        headline = f"logits at {t} have a gradient by token {j} ({largest:.2g} of the largest)"
        return Finding("gradient", FAULT, headline, "reads_ahead", numbers, maps=pictures)
    return Finding(
        "gradient",
        OK,
        f"no gradient reaches later tokens; {differ} pairs differ from the perturbations",
        "",
        numbers,
        maps=pictures,
    )


def prefixes(adapter: ModelAdapter, lengths: list[int], generator: torch.Generator) -> Finding:
    """Does scoring token by token equal scoring in one pass?"""
    shorter = lengths[1:]
    if not shorter:
        return Finding(
            "prefixes", NOT_APPLICABLE, f"the model takes exactly {lengths[0]} positions"
        )
    ids = adapter.tokens(generator, 2, lengths[0])
    whole = adapter.logits(ids)
    changes = {n: relative(adapter.logits(ids[:, :n]), whole[:, :n]) for n in shorter}
    n = max(changes, key=lambda n: changes[n])
    numbers = {"largest change": changes[n], "at length": float(n)}
    if changes[n] <= 1e-3:
        return Finding("prefixes", OK, "a prefix alone scores as it does in one pass", "", numbers)
    headline = (
        f"the first {n} tokens alone score differently (by {changes[n]:.2g} of the spread) than "
        f"at the head of {lengths[0]}"
    )
    return Finding("prefixes", FAULT, headline, "prefix_differs", numbers)


def relative(a: Tensor, b: Tensor) -> float:
    """The largest difference, as a share of b's spread."""
    spread = float(b.std()) or 1.0
    return float((a - b).abs().max()) / spread
