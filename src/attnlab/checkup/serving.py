"""Properties that matter when a model is served: rows, caches, padding, packed documents.

Letters: B batch, T time, V symbols.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, product
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from .causal import calm
from .models import (
    REFUSALS,
    CannotCheck,
    CheckFailed,
    Subject,
    best_dtype,
    outputs_of,
    relative,
    state,
    subject,
)

# From the model, the next ids (B, n), and the cache (None at first), to logits (B, n, V) and the
# cache. `real` (B, T) is 1 for tokens and 0 for padding, of all tokens so far.
Step = Callable[[Any, Tensor, Any], tuple[object, Any]]
PaddedStep = Callable[[Any, Tensor, Any, Tensor], tuple[object, Any]]
PREFILL, CHUNK, ROUNDING = 12, 3, 1e-3


def assert_deterministic(model: Any, sample: Tensor | None = None, **given: Any) -> str:
    """Assert that in eval mode the same inputs give the same outputs, even after other calls."""
    __tracebackhide__ = True
    tried = calm(subject(model, sample, **given))  # refuses a state between calls
    with state(model):
        x = tried.draw(1, tried.length)
        first, second = (replace(tried, seeded=False)(x) for _ in range(2))
    if (change := relative(second, first)) > 1e-5:
        raise CheckFailed(
            f"in eval mode the same inputs give different outputs, by {change:.2g} of their std, "
            f"but the same with the same random seed",
            "look for dropout or noise that is on: F.scaled_dot_product_attention ignores eval()"
            if tried.weights
            else "call eval() first; no torch module is known behind this function",
        )
    return "in eval mode the same inputs give the same outputs"


def assert_rows_independent(model: Any, sample: Tensor | None = None, **given: Any) -> str:
    """Assert that in eval mode no row of a batch depends on another, or on the batch size."""
    __tracebackhide__ = True
    tried = subject(model, sample, **given)
    if tried.rows == 1:
        raise CannotCheck("the model takes one sequence at a time")
    B = tried.rows if tried.exact else 4
    tried = replace(tried, rows=max(B, tried.rows), seeded=True)
    with state(model, dtype=best_dtype(tried)):
        x = tried.draw(B, tried.length)
        other, whole = tried.other(x), tried(x)
        if not bool(whole.isfinite().all()):
            raise CheckFailed(f"outputs are NaN or infinite in sequences of {tried.length}")
        limit = max(1e-6, tried.tolerance) * float(whole.std())
        for row in range(B):
            changed = x.clone()
            changed[row] = other[row]
            moved = (tried(changed) - whole).abs().amax(-1)  # (B, T)
            moved[row] = 0
            if not float(moved.max()) <= limit:
                raise CheckFailed(
                    f"row {row} of a batch changes the outputs of row {moved.amax(-1).argmax()}",
                    "look for a statistic over the batch, and batch and time that are exchanged "
                    "(batch_first=True)",
                )
        free = replace(tried, seeded=False)
        same = relative(free(x), free(x)) <= 1e-5  # dropout drops others in another batch
        change = relative(free(x[:1]), free(x)[:1]) if same and not tried.exact else 0.0
        if change > ROUNDING:
            raise CheckFailed(f"a row alone gets other outputs than in a batch, by {change:.2g}")
    return "rows of a batch do not depend on each other"


def assert_cache_equal(
    model: Any,
    step: Step | None = None,
    sample: Tensor | None = None,
    *,
    padded_step: PaddedStep | None = None,
    **sizes: Any,
) -> str:
    """Assert that decoding with a cache gives the outputs of one pass, whatever the steps are.

    Args:
        step: see `Step`; None for `past_key_values` of transformers.
        padded_step: the same with a mask, to decode rows of different lengths.
    """
    __tracebackhide__ = True
    tried = calm(subject(model, sample, **sizes))
    step, L = step or transformers_step, tried.length
    half = any(w.dtype in (torch.float16, torch.bfloat16) for w in tried.weights)
    dtype = torch.float32 if half and best_dtype(tried) else None
    tasks: dict[str, tuple[Any, list[int], Tensor | None]]
    tasks = {name: (step, plan, None) for name, plan in plans(L).items()}
    for how in ("after a prefill", "several tokens at a time") if padded_step else ():
        plan = tasks[how][1]
        for shape, real in paddings(sum(plan), tried.rows).items():
            tasks[f"{how}, {shape}"] = padded_step, plan, real
    refused: list[str] = []
    wrong: list[Wrong] = []
    with state(model, dtype=dtype), torch.no_grad():
        for name, task in tasks.items():
            try:
                wrong += first_wrong(name, tried, *task)
            except REFUSALS as error:
                refused.append(f"{name} is refused ({error!r:.80})")
    if not all(each.fits_a_ring for each in wrong):
        count = f"and {len(wrong) - 3} more ways" if len(wrong) > 3 else ""
        head = f"with the cache the outputs differ in {len(wrong)} of {len(tasks)} ways to step:"
        raise CheckFailed(head, *map(str, wrong[:3]), count, advice(wrong))
    if len(refused) == len(tasks):
        raise CannotCheck(f"no step with a cache works: {refused[0]}")
    if wrong:
        told = "; ".join(map(str, wrong))
        refused.append(f"but not in long steps, as with a ring that has no room for them: {told}")
    return "; ".join(["decoding with a cache gives the outputs of one pass", *refused])


@dataclass(frozen=True)
class Wrong:
    """The first step of a plan whose outputs differ from those of one pass."""

    plan: str
    begin: int
    size: int
    change: float  # relative to the standard deviation
    ahead: bool  # whether the step reads its own later tokens
    padded: bool

    @property
    def fits_a_ring(self) -> bool:
        """Whether a ring of the window's size, which has no room for long steps, explains it."""
        late = self.begin >= CHUNK and self.begin + self.size > 2 * CHUNK
        return late and self.size > 1 and isfinite(self.change) and not (self.ahead or self.padded)

    def __str__(self) -> str:
        by = f"by {self.change:.2g} of the std{', and reads its own later tokens' * self.ahead}"
        return f"{self.plan}: first at position {self.begin} (a step of {self.size}, {by})"


def advice(wrong: list[Wrong]) -> str:
    """Where to look, by the steps that are wrong."""
    if all(each.padded for each in wrong):
        return "only with padding: apply the mask in every step, to its own tokens"
    if all(each.begin == 0 for each in wrong):
        return "the first step, whose cache is empty, differs: by its length, or by another path"
    if all(each.size > 1 for each in wrong):
        return "only in steps of several: the mask of n new tokens has n rows, aligned right"
    if any(each.begin in (1, PREFILL) for each in wrong):
        return "from the first cached step on: what was written is not read, or not carried on"
    return "only beyond a position: a window or a ring differs"


def plans(T: int) -> dict[str, list[int]]:
    """The sizes of the steps to try."""
    short = min(T, 2 * PREFILL)
    prefill = min(PREFILL, short - 1)
    tried = {
        "one token at a time": [1] * short,
        "after a prefill": [prefill] + [1] * (short - prefill),
        "several tokens at a time": [CHUNK] * (short // CHUNK),
    }
    if short + 8 < T:  # beyond a window
        tried[f"up to {T}"] = [T - 8] + [1] * 8
        tried[f"several up to {T}"] = [T - 8, CHUNK, CHUNK]
    if T > 2 * CHUNK:
        tried[f"a long step after {CHUNK}"] = [CHUNK, T - CHUNK]
    return tried


def decoded(
    tried: Subject, step: Any, ids: Tensor, plan: list[int], real: Tensor | None = None
) -> Tensor:
    """(B, sum of the plan, V) fp64 on the CPU, in steps of these sizes."""
    parts, cache, begin = [], None, 0
    device = tried.weights[0].device if tried.weights else "cpu"
    for size in plan:
        new, begin = ids[:, begin : begin + size].to(device), begin + size
        mask = [] if real is None else [real[:, :begin].long().to(device)]
        returned, cache = step(tried.model, new, cache, *mask)
        parts.append(outputs_of(returned, tuple(new.shape)).to("cpu", torch.float64))
    return torch.cat(parts, 1)


def paddings(T: int, rows: int) -> dict[str, Tensor]:
    """(B, T) bool, True = token: padding before or after the first tokens of a row."""
    at = torch.arange(T)[None]
    left, after = at >= T // 6, (at < T // 3) | (at >= T // 2)
    full = [torch.ones_like(left)] * (rows > 1)
    rows_left, rows_after = torch.cat([*full, left]), torch.cat([*full, after])
    return {"a padded row alone": left, "rows padded left": rows_left, "right": rows_after}


def first_wrong(
    name: str, tried: Subject, step: Any, plan: list[int], real: Tensor | None
) -> list[Wrong]:
    """The first step whose outputs differ from those of one pass, or of one step if padded."""
    ids = tried.draw(min(2, tried.rows) if real is None else len(real), sum(plan))
    run = partial(decoded, tried, step, real=real)
    whole = tried(ids) if real is None else run(ids, [ids.shape[1]])
    off = (run(ids, plan) - whole).abs().amax(-1)  # (B, T)
    off = (off if real is None else off.where(real, 0.0)).amax(0) / whole.std()
    for n, end in enumerate(accumulate(plan)):
        size, begin = plan[n], end - plan[n]
        if not (change := float(off[begin:end].max())) <= ROUNDING:
            new, same, ahead = tried.other(ids), run(ids, plan[: n + 1]), False
            for cut in range(begin + 1, end, max(size // 3, 1)):
                y = run(torch.cat([ids[:, :cut], new[:, cut:]], 1), plan[: n + 1])
                ahead |= relative(y[:, begin:cut], same[:, begin:cut]) > ROUNDING
            return [Wrong(name, begin, size, change, ahead, real is not None)]
    return []


def transformers_step(model: Any, ids: Tensor, cache: Any, real: Tensor | None = None) -> Any:
    """The interface of transformers."""
    output = model(ids, attention_mask=real, past_key_values=cache, use_cache=True)
    return output, output.past_key_values


def assert_padding_ignored(
    model: Any,
    side: str = "every side",
    sample: Tensor | None = None,
    *,
    call: Callable[[Any, Tensor, Tensor], object] | None = None,
    **sizes: Any,
) -> str:
    """Assert that padded tokens do not affect the outputs of others, in rows of three lengths and
    in one row alone, with and without gradients.

    Args:
        side: where the padding is, "left", "right", "both sides", or by default each of these.
        call: from the model, ids, and a mask (B, T) int64, 1 = token; None for `attention_mask`.
    """
    __tracebackhide__ = True
    masked = call or (lambda net, ids, real: net(ids, attention_mask=real))
    tried = subject(model, sample, **sizes)
    T = tried.fitting(24)
    at, n = torch.arange(T), torch.tensor([T, 2 * T // 3, T // 3])[:, None]
    device = tried.weights[0].device if tried.weights else "cpu"
    begins = {"left": T - n, "right": 0 * n, "both sides": (T - n) // 2}
    chosen = {side: begins[side]} if side in begins else begins
    for (name, begin), rows, grad in product(chosen.items(), (3, 1), (False, True)):
        real = ((at >= begin) & (at < begin + n))[-rows:]  # (rows, T)
        own = lambda net, x, real=real: masked(net, x, real.long().to(device))  # noqa: E731
        padded = replace(tried, rows=rows, call=own, seeded=True, grad=grad)
        ids = tried.draw(rows, T)
        with state(model):
            whole, new = padded(ids), padded(torch.where(real, ids, padded.other(ids)))
        if not (change := relative(new[real], whole[real])) <= 1e-4:
            why = "keep them out of attention and states; is the polarity right?"
            if not bool(whole[real].isfinite().all()):
                why = "as if a query without keys reached them: let padded queries see themselves"
            raise CheckFailed(
                f"with padding, {name} (1 = token), in {rows} rows, other padded tokens change "
                f"the outputs of the rest by {change:.2g} of their std",
                why,
                grave=False,
            )
    return f"padding is not read (1 = token): {', '.join(chosen)}"


def assert_documents_separate(
    model: Any,
    sample: Tensor | None = None,
    *,
    separator: int | None = None,
    call: Callable[[Any, Tensor, Tensor], object] | None = None,
    reset_positions: bool = False,
    **sizes: Any,
) -> str:
    """Assert that nothing crosses the borders of three packed documents.

    Args:
        separator: the id that begins or ends a document.
        call: from the model, ids, and each token's document (B, T) to what the model returns.
        reset_positions: whether a packed document should also get the outputs that it gets alone.
    """
    __tracebackhide__ = True
    if separator is None and call is None:
        raise CannotCheck("give separator, or call(model, ids, document)")
    tried = calm(subject(model, sample, **sizes))
    T = tried.fitting(32)
    at, borders = torch.arange(T), torch.tensor([T // 3, 2 * T // 3])  # documents or separators
    (x,) = tried.draw(1, T)
    other = tried.other(x)
    for each in (x, other):  # no other separators
        each[each == separator] = tried.pool[tried.pool != separator][0]
    if separator is not None:
        x[borders] = other[borders] = separator
    document = torch.bucketize(at, borders, right=True)
    # A separator may be the last token of a document or the first one of the next.
    last = document if call is not None else torch.bucketize(at, borders)
    crosses = document[:, None] < last  # (T, T): from the input j to the output t

    def outputs(ids: Tensor, of: Tensor) -> Tensor:
        if call is None:
            return tried(ids)
        return replace(tried, call=lambda net, y: call(net, y, of.expand(y.shape)))(ids)

    with state(model, dtype=best_dtype(tried)):
        one = torch.eye(T, dtype=torch.bool)
        whole = outputs(x[None], document)
        moved = (outputs(torch.where(one, other, x), document) - whole).abs().amax(-1)  # (T, T)
        crossing = ((moved > 1e-6 * moved.max()) & crosses).nonzero().tolist()
        if crossing:
            j, t = crossing[-1]
            raise CheckFailed(
                f"output {t} depends on input {j} ({len(crossing)} pairs), across the borders of "
                f"documents at {borders.tolist()}",
                "block keys of others, and reset what a shift, a convolution or a state carries",
            )
        begin, end = borders.tolist()
        first = begin + (call is None)
        alone = (outputs(x[None, k:end], 0 * at[k:end])[:, first - k :] for k in (begin, first))
        changes = (relative(y, whole[:, first:end]) for y in alone)
        change = min(changes) if reset_positions else 0.0
    if change > ROUNDING:
        said = f"a document gets other outputs alone, by {change:.2g} of their std"
        raise CheckFailed(said, "does something count from the first token of the row?")
    return "a document does not read those before it"
