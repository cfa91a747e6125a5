"""Leaks in sequences that are longer than the maps. Letters: T time, V symbols."""

import time

import torch

from attnlab.checkup.findings import FAULT, Finding, number_of, passed, skipped, span
from attnlab.checkup.model_adapter import MOST_LOGITS, REFUSALS, ModelAdapter

_PASSES = 12  # forward passes of the longest sequence that should fit into the time
_MOST_POSITIONS = 4096  # memory grows with the square


def check_lengths(
    adapter: ModelAdapter, noisy: ModelAdapter | None, seconds: float, at_random: int
) -> Finding:
    """Do suffixes change earlier logits, or prefixes alone get others, at lengths without a map?

    Args:
        noisy: a copy with noise on its weights, which opens gates; None without one.
        seconds: of this thread, after which no further position is tried.
        at_random: how many random positions to try after the likely ones.
    """
    name, begin, model = "lengths", time.thread_time(), noisy or adapter
    T = _longest_affordable(model, seconds)
    numbers = {"positions": float(T), "declared": float(adapter.declared)}
    if adapter.block_size >= T:
        return skipped(name, f"the maps show all {T} positions examined", numbers)
    ids = model.tokens(T)
    other, whole, spread = model.other_ids(ids), model.logits(ids[None])[0], 0.0  # whole (T, V)
    cuts = _cuts(T, adapter, at_random)
    for cut in cuts:
        changed = torch.cat([ids[:cut], other[cut:]])[None]
        moved = (model.logits(changed)[0] - whole).abs().amax(-1)  # (T,)
        spread = max(spread, float(moved.max()))
        early = (moved[:cut] > max(adapter.tolerance, 1e-6) * spread).nonzero().flatten().tolist()
        if early:
            without = [adapter.logits(x)[0, :cut] for x in (ids[None], changed)]
            noise = ", after adding noise to the weights" * torch.equal(*without)
            where = f"the logits at {span('position', early)} depend on tokens from {cut} on"
            headline = f"in sequences of {T}, {where}{noise}"
            return Finding(name, FAULT, headline, "late_leak", numbers)
        alone = float((model.logits(ids[None, :cut])[0] - whole[:cut]).abs().max() / whole.std())
        if alone > 1e-3:
            headline = f"the first {cut} tokens of {T} get different logits alone (by {alone:.2g})"
            return Finding(name, FAULT, headline, "prefix_differs", numbers)
        if time.thread_time() - begin > seconds:
            break
    tried = number_of(cuts.index(cut) + 1, "position")
    return passed(name, f"nothing reads ahead in sequences of {T}, cut at {tried}", numbers)


def _longest_affordable(model: ModelAdapter, seconds: float) -> int:
    """The longest length that the model accepts and of which several passes fit into the time."""
    T, most = 0, min(_MOST_POSITIONS, max(MOST_LOGITS // model.vocab_size, model.block_size))
    # Beyond its positions, a model of unknown length fails in a way that a GPU does not survive.
    unknown = most if model.device.type == "cpu" else model.block_size
    longer, most = model.block_size, min(most, model.declared or unknown)
    while longer > T:
        begin = time.thread_time()
        try:
            model.logits(model.tokens(1, longer))
        except REFUSALS:
            break
        T, cost = longer, time.thread_time() - begin
        if 3 * _PASSES * cost <= seconds:  # twice the length costs up to four times
            longer = min(2 * T, most)
    return T or model.block_size


def _cuts(T: int, adapter: ModelAdapter, at_random: int) -> list[int]:
    """Where to cut: halves, thirds, powers of two and their neighbors, then at random."""
    powers = [2**e + d for e in range(T.bit_length(), 2, -1) for d in (0, -1, 1)]
    random = (torch.randperm(T - 1, generator=adapter.generator) + 1).tolist()
    chosen = dict.fromkeys([T // 2, T // 3, 2 * T // 3, T - 1, *powers, *random[:at_random]])
    return [cut for cut in chosen if 0 < cut < T]
