"""Detectors that only call the model: ids in, logits out. Letters: B batch, T time, V symbols."""

import time
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from attnlab.checkup.dependence import Dependence, changes, gradient_map
from attnlab.checkup.findings import FAULT, SUSPICIOUS, Finding, passed, read_causes, skipped, span
from attnlab.checkup.model_adapter import REFUSALS, ModelAdapter
from attnlab.checkup.recognize import Shapes, explain, explain_scramble
from attnlab.checkup.trace import SeenOperations, draws_random_numbers
from attnlab.errors import first_line
from attnlab.rng import seed_all


def accepted_lengths(adapter: ModelAdapter) -> list[int]:
    """The sequence lengths to examine, longest first: those that the model accepts."""
    T, lengths = adapter.block_size, []
    candidates = {T, T - 1, T // 2 + 1, T // 2, T // 3, 7, 3, 2, 1} & set(range(1, T + 1))
    for length in sorted(candidates, reverse=True):
        try:
            adapter.logits(adapter.pool[:1].expand(2, length))
        except Exception:  # a model may raise anything
            continue
        lengths.append(length)
    return lengths


def check_finite(adapter: ModelAdapter, lengths: list[int]) -> tuple[Finding, list[int]]:
    """Are all logits finite, for random and extreme tokens? And the lengths with only such."""
    T = lengths[0]
    low, high = adapter.pool[0].expand(T), adapter.pool[-1].expand(T)
    extreme = torch.stack([low, high, torch.where(torch.arange(T) % 2 == 0, low, high)])
    inputs = [adapter.tokens(2, n) for n in lengths]
    inputs[0] = torch.cat([inputs[0], extreme])
    bad = [~adapter.logits(ids).isfinite().all(-1) for ids in inputs]  # (B, T) each
    usable = [n for n, wrong in zip(lengths, bad, strict=True) if not wrong.any()]
    first = next((wrong for wrong in bad if wrong.any()), None)
    if first is None:
        shown = ", ".join(map(str, lengths))
        return passed("finite", f"all logits are finite in sequences of {shown}"), usable
    rows, T = first.any(0).nonzero().flatten().tolist(), first.shape[1]
    numbers = {"share": float(first.double().mean()), "T": float(T)}
    if T > 1 and rows in ([0], [T - 1]):  # in a sequence of one token, other causes are likelier
        only = f"only position {rows[0]} of {T} gives NaN or infinity"
        headline = f"{only}, as if the mask left query {rows[0]} without keys"
        return Finding("finite", FAULT, headline, "empty_row", numbers), usable
    where = span("position", rows) if len(rows) < T else "all positions"
    headline = f"NaN or infinity at {where} in a sequence of {T}"
    return Finding("finite", FAULT, headline, "not_finite", numbers), usable


def check_deterministic(adapter: ModelAdapter, T: int) -> Finding:
    """Do the same tokens give the same logits in eval mode, whatever is computed in between?"""
    name = "same twice"
    ids, others = adapter.tokens(2, 2, T)
    seed_all(1, adapter.device)
    first, second, _, third = (adapter.logits(x) for x in (ids, ids, others, ids))
    seed_all(1, adapter.device)
    again = adapter.logits(ids)
    numbers = {"change": relative(second, first), "after other tokens": relative(third, first)}
    change = max(numbers.values())
    if change <= 1e-5:
        return passed(name, "the same tokens give the same logits twice", numbers)
    if relative(again, first) > 1e-5:
        headline = f"the same tokens give different logits later (by {change:.2g} of their std)"
        return Finding(name, FAULT, headline, "keeps_state", numbers)
    headline = (
        f"in eval mode the same tokens give different logits the second time (by {change:.2g} of "
        f"their std), but the same logits with the same random seed"
    )
    with SeenOperations(draws_random_numbers) as seen, torch.no_grad():
        adapter.raw(ids)
    if any(part in op for op in seen.names for part in ("drop", "bernoulli", "attention")):
        return Finding(name, FAULT, f"{headline}: dropout is left on", "dropout_on", numbers)
    by = f": {', '.join(sorted(seen.names))} draws random numbers" if seen.names else ""
    return Finding(name, SUSPICIOUS, headline + by, "random_in_eval", numbers)


def check_rows_independent(adapter: ModelAdapter, T: int) -> Finding:
    """Do the sequences of a batch leave each other's logits unchanged?"""
    if adapter.rows == 1:
        reason = "its logits are random" if adapter.seeded else "it takes one sequence at a time"
        return skipped("batch", f"the model's rows cannot be compared: {reason}")
    B = 5
    ids = adapter.tokens(B, T)
    other = torch.cat([adapter.next_ids(ids[:1]), adapter.tokens(B - 1, T)])
    whole = adapter.logits(ids)
    one = torch.eye(B, dtype=torch.bool)[..., None]  # row changed, row read, position
    moved = [(adapter.logits(other.where(row, ids)) - whole).abs().amax(-1) for row in one]
    between = torch.stack(moved) * ~one  # (B, B, T)
    by_others = float(between.max() / (whole.std() or 1.0))
    numbers = {"by other rows": by_others}
    if by_others > 1e-6 and _mixes_rows_instead_of_time(adapter, ids, whole):
        headline = (
            "a token changes logits of other sequences at its own position, but no other position "
            "of its own sequence: the batch and time axes are exchanged"
        )
        return Finding("batch", FAULT, headline, "batch_time_swapped", numbers)
    if by_others > 1e-6:
        source, target = divmod(int(between.amax(-1).argmax()), B)
        amount = f"(by {by_others:.2g} of their std)"
        headline = f"changing row {source} of a batch changes the logits of row {target} {amount}"
        return Finding("batch", FAULT, headline, "rows_mix", numbers)
    alone = numbers["alone"] = relative(adapter.logits(ids[:1]), whole[:1])
    if alone <= 1e-4:
        return passed("batch", "the rows of a batch do not influence each other", numbers)
    headline = f"a sequence gets other logits alone than in a batch (by {alone:.2g} of their std)"
    return Finding("batch", SUSPICIOUS, headline, "batch_size", numbers)


def _mixes_rows_instead_of_time(adapter: ModelAdapter, ids: Tensor, whole: Tensor) -> bool:
    """Whether a changed token is seen at its own position only, and there in other rows."""
    for row, position in product((0, -1), (0, ids.shape[1] // 2)):
        changed = ids.clone()
        changed[row, position] = adapter.next_ids(ids)[row, position]
        moved = (adapter.logits(changed) - whole).abs().amax(-1) > 1e-6 * whole.std()  # (B, T)
        moved[:, position] = False
        if moved.any():
            return False
    return True


def check_future(
    maps: list[Dependence], shapes: Shapes = (), *, detector: str = "future", state: str = ""
) -> Finding:
    """Does a later token change an earlier logit, in this state of the model?

    The maps are ordered from the longest down.
    """
    if not all(m.finite for m in maps):
        return Finding(detector, FAULT, "some changed tokens give NaN or infinity", "not_finite")
    leaking = [m for m in maps if bool(m.ahead.any())]
    numbers = {f"largest ahead, T={m.T}": m.largest_ahead for m in maps}
    shown = (leaking or maps)[0]
    maps_ = {f"which position reads which{state}, T = {shown.T}": shown.single}
    if not leaking:
        scramble = explain_scramble(maps[0].reads, maps[0].tried, shapes)
        if scramble is not None:
            return Finding(detector, FAULT, scramble[1], scramble[0], numbers, maps=maps_)
        columns = int(maps[0].tried.sum())
        headline = f"no position depends on later ones ({columns} of {maps[0].T} tokens changed)"
        return replace(passed(detector, headline, numbers), maps=maps_)
    worst = leaking[0]
    clean = [m.T for m in maps if m.T < worst.T and not bool(m.ahead.any())]
    found = explain(worst.reads, worst.tried, shapes=shapes, clean_up_to=max(clean, default=0))
    if found is not None and worst is not maps[0] and found[0] not in read_causes()["scrambles"]:
        only = f"in sequences of {worst.T} {found[1]}, but nothing reads ahead in {maps[0].T}"
        found = "short_leak", only
    evidence = (
        f"changing later tokens changes earlier logits by up to {worst.largest_ahead:.2g} of the "
        f"largest change anywhere (rounding: {worst.tolerance:.0e}), T = {worst.T}",
    )
    if found is None:  # only changing whole suffixes shows it
        where = span("position", worst.ahead.any(-1).nonzero().flatten().tolist())
        together = "change when all later tokens change together"
        found = "reads_ahead", f"the logits at {where} {together}"
    return Finding(detector, FAULT, found[1], found[0], numbers, evidence, maps_)


def check_past(whole: Dependence, jittered: Dependence | None) -> Finding:
    """Is the past used, and how far back?"""
    for map_, state in ((whole, ""), (jittered, " after adding noise to the weights")):
        if map_ is None:
            continue
        earlier = torch.ones(map_.T, map_.T, dtype=torch.bool).tril(-1)
        pairs = (map_.reads & earlier).nonzero()  # (n, 2): reader and what it reads
        if len(pairs):
            back = int((pairs[:, 0] - pairs[:, 1]).max())
            share = len(pairs) / int((earlier & map_.tried).sum())
            numbers = {"furthest back": float(back), "share of pairs": share}
            return passed("past", f"the past is used, as far back as t - {back}{state}", numbers)
    headline = "no position depends on an earlier one: the past is not used"
    return Finding("past", FAULT, headline, "no_past")


def check_gradients(adapter: ModelAdapter, whole: Dependence, seconds: float) -> Finding:
    """Does a gradient reach later tokens? Also counts the pairs where the two maps disagree."""
    name = "gradient"
    try:
        map_ = gradient_map(adapter, whole.T, seconds)
    except REFUSALS as error:  # not a verdict; changing tokens gives one
        return skipped(name, f"no gradients: {first_line(error, with_class=True)}")
    if map_ is None:
        return skipped(name, "no gradients from the logits to the token embeddings are available")
    if bool(map_.isinf().any()):
        return Finding(name, FAULT, "some gradients are NaN or infinite", "not_finite")
    tolerance, rows = max(whole.tolerance, 1e-6), ~map_[:, 0].isnan()
    differ = int(((map_ > tolerance) != whole.reads)[rows][:, whole.tried].sum())
    ahead = map_.nan_to_num().triu(1)
    largest = float(ahead.max())
    t, j = divmod(int(ahead.argmax()), len(map_))
    numbers = {"largest ahead": largest, "pairs that differ": float(differ)}
    maps = {"the same by gradients": map_}
    if largest <= tolerance:
        asked = f"{int(rows.sum())} of {len(rows)} positions"
        headline = f"no gradient from {asked} reaches later tokens; {differ} pairs differ from "
        return replace(passed(name, f"{headline}changing tokens", numbers), maps=maps)
    headline = f"the logits at {t} have a gradient from token {j} ({largest:.2g} of the largest)"
    return Finding(name, FAULT, headline, "reads_ahead", numbers, maps=maps)


def check_prefixes(adapter: ModelAdapter, lengths: list[int]) -> Finding:
    """Does a prefix alone get the same logits as in a longer sequence?"""
    longest, *shorter = lengths
    if not shorter:
        return skipped("prefixes", f"the model takes only sequences of {longest}")
    ids = adapter.tokens(2, longest)
    whole = adapter.logits(ids)
    changes = {n: relative(adapter.logits(ids[:, :n]), whole[:, :n]) for n in shorter}
    n = max(changes, key=lambda n: changes[n])
    numbers = {"largest change": changes[n], "at length": float(n)}
    if changes[n] <= 1e-3:
        headline = "a prefix gets the same logits alone and in a longer sequence"
        return passed("prefixes", headline, numbers)
    which = "the first token alone gets" if n == 1 else f"the first {n} tokens alone get"
    by = f"different logits (by {changes[n]:.2g} of their std) than at the start of {longest}"
    return Finding("prefixes", FAULT, f"{which} {by}", "prefix_differs", numbers)


def check_tokens(adapter: ModelAdapter, T: int, seconds: float) -> Finding:
    """Does a particular token open a leak, such as a separator that sees everything?

    After about `seconds`, the remaining ids are left out.
    """
    begin, n, place, tried = time.thread_time(), len(adapter.pool), torch.arange(T), 0
    cuts = torch.tensor([T - 1, T // 2])[:, None]
    # From both ends, where special ids are.
    ends = torch.stack([adapter.pool, adapter.pool.flip(0)], 1).flatten()
    for part in ends[: n + n % 2].split(T - 1):
        ids = torch.cat([part, adapter.pool[place % n]])[:T]
        change = changes(adapter, ids, torch.where(place >= cuts, adapter.next_ids(ids), ids))
        tried = min(tried + len(part), n)
        early = (change > adapter.tolerance * change.max()) & (place < cuts)  # (2, T)
        if not bool(change.isfinite().all()):
            headline = f"a sequence of the ids {part[:3].tolist()}, ... gives NaN or infinity"
            return Finding("tokens", FAULT, headline, "not_finite")
        if early.any():
            row, t = early.nonzero()[0].tolist()
            reads = f"depends on tokens from {int(cuts[row])} on"
            headline = f"position {t}, which holds token id {int(ids[t])}, {reads}; sequences of "
            return Finding("tokens", FAULT, f"{headline}random tokens show no leak", "token_leak")
        if time.thread_time() - begin > seconds:
            break
    headline = f"no token id opens a leak ({tried} of {n} ids were tried)"
    return passed("tokens", headline, {"ids": float(n), "tried": float(tried)})


def relative(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to b's standard deviation."""
    spread = float(b.std()) or 1.0
    return float((a - b).abs().max()) / spread
