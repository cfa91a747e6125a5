"""Decoding with a cache against one pass. Letters: B batch, T time, V symbols."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from attnlab.checkup.blackbox import relative
from attnlab.checkup.dependence import movement
from attnlab.checkup.findings import FAULT, Finding, passed, skipped
from attnlab.checkup.model_adapter import REFUSALS, ModelAdapter, parameter_names
from attnlab.checkup.outputs import find_logits
from attnlab.errors import first_line

# From the model, the next ids (B, n), and the cache (None at first), to the logits (B, n, V) and
# the cache. With a fourth parameter, it also gets a mask (B, T) of all tokens so far: 1 = token.
Step = Callable[..., tuple[Tensor, object]]
_PREFILL, _CHUNK = 12, 3


def transformers_step(model: Any, ids: Tensor, cache: Any, mask: Tensor | None) -> Any:
    """The interface of transformers."""
    masked = {} if mask is None else {"attention_mask": mask}
    output = model(ids, past_key_values=cache, use_cache=True, **masked)
    return output.logits, output.past_key_values


def check_cache(adapter: ModelAdapter, step: Step | None = None) -> Finding:
    """Does decoding with a cache give the logits of one pass, whatever the steps are?

    Args:
        step: None for the interface of transformers.
    """
    if step is None and not adapter.takes("past_key_values", "use_cache"):
        reason = "the model takes no past_key_values; assert_cache_equal takes step"
        return skipped("cache", reason)
    masks = adapter.takes("attention_mask") if step is None else len(parameter_names(step)) > 3
    decoding, T = _Decoding(adapter, step or transformers_step, masks), adapter.block_size
    plans, ids = _plans(T), adapter.tokens(min(2, adapter.rows), T)
    attempts = {
        name: partial(decoding.compare, ids[:, : sum(sizes)], sizes)
        for name, sizes in plans.items()
    }
    if masks and adapter.rows > 1:
        sizes = plans["after a prefill"]
        attempts["rows of different lengths"] = partial(decoding.compare_padded, ids, sizes)
    refused: tuple[str, ...] = ()
    changes: dict[str, float] = {}
    wrong: dict[str, tuple[int, int]] = {}  # where the first wrong step begins, and its size
    for name, attempt in attempts.items():
        try:
            changes[name], step_at = attempt()
            wrong |= {name: step_at} if step_at else {}
        except REFUSALS as error:
            refused += (f"{name}, which is refused ({first_line(error, with_class=True)})",)
    if not changes:
        return skipped("cache", f"no step with a cache works: {refused[0]}")
    if all(change <= 1e-3 for change in changes.values()):
        headline = f"decoding with a cache gives the logits of one pass: {', '.join(changes)}"
        said = f"{headline}; not: {'; '.join(refused)}" if refused else headline
        return replace(passed("cache", said, changes), evidence=refused)
    return _explained(decoding, plans, changes, wrong)


def _explained(
    decoding: "_Decoding",
    plans: dict[str, list[int]],
    changes: dict[str, float],
    wrong: dict[str, tuple[int, int]],
) -> Finding:
    """What is wrong with the first steps whose logits differ."""
    small_ring = all("several" in name and wrong[name][0] > _CHUNK for name in wrong)
    different = [name for name, change in changes.items() if not change <= 1e-3]
    first = next((name for name in different if not small_ring or name not in wrong), different[0])
    headline = f"with the cache, {first}, the logits differ by {changes[first]:.2g} of their std"
    if first not in wrong:
        return Finding("cache", FAULT, headline, "cache_padding", changes)
    begin, size = wrong[first]
    if small_ring:
        headline += f" from position {begin} on: a ring that has no room for them, but for one"
        return passed("cache", headline, changes)
    cause, why = decoding.explain(max(begin, _PREFILL), size)
    later = begin > plans[first][0] or "up to" in first  # other steps of this kind are right
    if cause in ("cache_restarts", "cache_smeared") and later:
        cause = "cache_differs"
        why = f"steps before position {begin} are right, as if a window or a size differed"
    return Finding("cache", FAULT, f"{headline}: {why}", cause, changes)


def _plans(T: int) -> dict[str, list[int]]:
    """The sizes of the steps to try."""
    short = min(T, 2 * _PREFILL)
    prefill = min(_PREFILL, short - 1)
    plans = {"one token at a time": [1] * short}
    plans["after a prefill"] = [prefill] + [1] * (short - prefill)
    if short >= 2 * _CHUNK:
        plans["several tokens at a time"] = [_CHUNK] * (short // _CHUNK)
    if short + 8 < T:  # beyond a window
        plans |= {f"up to {T}": [T - 8] + [1] * 8, f"several up to {T}": [T - 8, _CHUNK, _CHUNK]}
    return plans


@dataclass
class _Decoding:
    """A model that is decoded step by step."""

    adapter: ModelAdapter
    step: Step
    masks: bool  # whether the step takes a mask

    @torch.no_grad()
    def logits(self, ids: Tensor, sizes: list[int], mask: Tensor | None = None) -> Tensor:
        """(B, sum of sizes, V) fp64 on the CPU, of steps of these sizes."""
        parts, cache, begin = [], None, 0
        for size in sizes:
            new, end = ids[:, begin : begin + size].to(self.adapter.device), begin + size
            seen = None if mask is None else mask[:, :end].to(new)
            both = self.step(self.adapter.model, new, cache, *[seen] * self.masks)
            cache, begin = both[1], end
            parts.append(find_logits(both[0], tuple(new.shape), self.adapter.vocab_size))
        return torch.cat(parts, 1).to("cpu", torch.float64)

    def compare(self, ids: Tensor, sizes: list[int]) -> tuple[float, tuple[int, int] | None]:
        """The largest change against one pass; where the first wrong step begins, and its size."""
        whole = self.adapter.logits(ids)
        off = (self.logits(ids, sizes) - whole).abs().amax((0, 2)) / whole.std()  # (T,)
        steps = zip(off.split(sizes), accumulate(sizes), sizes, strict=True)
        wrong = [(end - n, n) for part, end, n in steps if not bool((part <= 1e-3).all())]
        return float(off.max()), next(iter(wrong), None)

    def compare_padded(
        self, ids: Tensor, sizes: list[int]
    ) -> tuple[float, tuple[int, int] | None]:
        """The largest change in two rows, of which one is padded on the left."""
        T = sum(sizes)
        real = torch.arange(T) >= torch.tensor([0, max(sizes[0] // 3, 1)])[:, None]
        whole, decoded = (self.logits(ids[:, :T], steps, real) for steps in ([T], sizes))
        return relative(decoded[real], whole[real]), None

    def explain(self, n: int, size: int) -> tuple[str, str]:
        """The cause of a wrong step of this size after a prefill of n tokens, and a sentence."""
        T = min(n + size, self.adapter.block_size)
        n, ids = T - size, self.adapter.tokens(T)
        one = torch.eye(T, dtype=torch.bool)
        rows = torch.cat([ids[None], torch.where(one, self.adapter.next_ids(ids), ids)])
        try:
            both = [x[:, n:] for x in (self.adapter.logits(rows), self.logits(rows, [n, size]))]
        except REFUSALS:
            return "cache_differs", "the reason is not known, as the model takes few rows at once"
        moved = [movement(x).mT for x in both]  # (size, T), by reader
        whole, cached = (x > 1e-6 * x.max() for x in moved)
        lost, gained = whole & ~cached, cached & ~whole
        if cached[:, n:].triu(1).any():
            return "cache_mask", "a token of a cached step reads later tokens of the same step"
        if whole[:, :n].any() and not cached[:, :n].any():
            return "cache_dropped", "a cached step does not read the cache"
        if lost.any():
            i = int(lost.any(-1).nonzero()[0])
            missed = lost[i].nonzero().flatten().tolist()
            where = f"position {n + i} does not read {', '.join(map(str, missed[:4]))}"
            cause = "cache_off_by_one" if len(missed) == 1 else "cache_mask"
            return cause, f"{where}{' ...' * (len(missed) > 4)}, which it reads in one pass"
        if gained.any():
            i, j = gained.nonzero()[0].tolist()
            return "cache_off_by_one", f"position {n + i} reads {j}, which it does not in one pass"
        try:
            off = self.logits(rows[:1], [T - _CHUNK, _CHUNK]) - self.adapter.logits(rows[:1])
            sizes = off.abs().amax(-1)[0, -_CHUNK:]
        except REFUSALS:
            sizes = torch.zeros(_CHUNK)
        if bool(sizes[0] > 5 * sizes[1:].max()):
            return "cache_smeared", "the first token of a cached step misses its predecessor"
        return "cache_restarts", "it reads the right tokens, as if their positions were wrong"
