"""Does an output depend on later inputs? Proven by changing them. Letters: B batch, T time."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .models import (
    MOST_IDS,
    REFUSALS,
    UNDECLARED,
    Call,
    CannotCheck,
    CheckFailed,
    Subject,
    best_dtype,
    is_rounding,
    module_of,
    relative,
    state,
    subject,
)
from .words import SHAPES, differ, explain, followed, place_of

DENSE = 64  # up to this length, every suffix is changed
MAP = 48  # the largest map, in which every input is changed alone
ROUNDS = 2  # sequences that are drawn for each length
SURE = 0.01  # a change of this share is no rounding


def with_noise(weight: Tensor, rng: torch.Generator) -> Tensor:
    """A weight with noise, which opens gates that start at 0 a little."""
    size = 0.1 * float(weight.float().square().mean().sqrt()) + 0.01
    return weight + size * torch.randn(weight.shape, generator=rng).to(weight)


STATES: Mapping[str, dict[str, Any]] = {
    "": {},
    "with noise on the weights, though not without": {"change": with_noise},
    "in training mode, though not in eval mode": {"training": True},  # with gradients
}


def assert_causal(
    model: Any,
    sample: Tensor | None = None,
    *,
    call: Call | None = None,
    vocab_size: int | None = None,
    block_size: int | None = None,
    dense: int = DENSE,
) -> str:
    """Assert that no output depends on later inputs, in eval mode or training, at any length.

    Every suffix of sequences of up to `dense` inputs is replaced, and longer sequences are cut at
    halves, thirds, powers of two and their neighbors, and at random. The first outputs of a cut
    sequence must not move, and must be those of the prefix alone. Outputs must also be the same
    with and without gradients. With at most 300 ids, each is tried.

    Args:
        model: any callable from `sample` to outputs (B, T, V), or to something that holds them.
        sample: ids (N, T) int64, or vectors (N, T, C) for a layer; random ids by default.
        call: from the model and inputs to what it returns, such as
            `lambda model, ids: model(ids, targets=ids)`.
        vocab_size, block_size: of random ids; by default those of the model or its config.
        dense: the length up to which any single pair is found.

    Returns:
        What was tried, in a sentence.

    Raises:
        CheckFailed: an output depends on later inputs; the message says which, and names the first
            module that lets them through.
        CannotCheck: the model cannot be called.
    """
    __tracebackhide__ = True
    tried = subject(model, sample, call, vocab_size=vocab_size, block_size=block_size)
    dtype = best_dtype(tried)
    tried = calm(tried, dtype)
    said, skipped = "", []
    for name, change in STATES.items() if tried.weights else [("", {})]:
        training = "training" in change
        with state(model, dtype=dtype, **change):
            try:
                asked = replace(tried, grad=True) if training else tried
                if training and not _settled(asked):
                    asked = replace(asked, rows=tried.rows if tried.exact else 1, seeded=True)
                here = _examine(asked, name, dense)
                said = said or here
                if training or not tried.seeded:
                    _gradients_switched(asked, name, dense)
            except REFUSALS as error:
                if isinstance(error, CheckFailed | CannotCheck) or not said:
                    raise
                skipped.append(
                    f"{name.partition(',')[0] or 'with gradients'} it fails: {error!r:.99}"
                )
    with state(model):
        more = [*skipped, tried.untried()]
    if not tried.declared:
        more.append(f"the model declares no length, so {UNDECLARED} was taken; give block_size")
    return "; ".join(["nothing depends on later inputs", said, *filter(None, more)])


def calm(tried: Subject, dtype: torch.dtype | None = None) -> Subject:
    """The subject, called row by row and seeded where it is random or rows mix; CheckFailed if
    its outputs depend on earlier calls, which could hide a leak."""
    __tracebackhide__ = True
    with state(tried.model, dtype=dtype):
        if _settled(tried):
            return tried
        still = replace(tried, rows=tried.rows if tried.exact else 1, seeded=True)
        x = still.draw(2, tried.length)
        first, _, second = still(x), still(still.other(x)), still(x)
    if relative(second, first) > 1e-5:
        raise CheckFailed(
            "outputs depend on earlier calls, even with the same random seed",
            "look for a cache, a buffer or a counter that a call leaves changed",
        )
    return still


def _settled(tried: Subject) -> bool:
    """Whether outputs depend neither on chance, nor on earlier calls, nor on other rows."""
    x, more = tried.draw(2, tried.length), tried.draw(2, tried.length)
    first, _, second, beside = tried(x), tried(more), tried(x), tried(torch.cat([x, more]))[:2]
    return relative(second, first) <= 1e-5 and relative(beside, first) <= 1e-5


def _examine(tried: Subject, where: str, dense: int) -> str:
    """Look for a leak in the present state of the model: at two lengths, then by prefixes."""
    __tracebackhide__ = True
    L, short = tried.length, tried.fitting(dense)
    plans = {T: cuts_of(T, 4 * dense if short == T else 0) for T in (short, L)}
    first = [(short, [1, 2, short // 2])] * 8  # what few sequences show, mostly at their beginning
    rounds = [plan for plan in plans.items() for _ in range(1 if where else ROUNDS)]
    for T, cuts in rounds if where else rounds + first:
        _raise(tried, where, first_leak(tried, T, cuts))
    if not where and tried.sample.ndim == 2 and len(tried.pool) <= MOST_IDS:
        _raise(tried, where, _leak_of_an_id(tried, tried.fitting(12)))
    if not tried.seeded:  # dropout drops others at another length
        check_prefixes(tried, where)
    said = f"every suffix of sequences of {short} was changed"
    if max(plans) > len(plans[short]) + 1:
        said += (
            f", and {len(plans[L])} places in sequences of {L}; a single pair beyond {dense} may "
            f"be missed (dense={L} finds any)"
        )
    return said


def _raise(tried: Subject, where: str, leak: "Leak | None") -> None:
    __tracebackhide__ = True
    if leak is None:
        return
    if where.startswith("in training"):  # later inputs may change what dropout drops, of experts
        with _WithoutDropout():
            moved = tried.moved(leak.x, leak.changed[None])[0]
        if float(moved[leak.places].max()) <= tried.tolerance * float(moved.max()):
            return
    said, map_ = described(tried, leak)
    raise CheckFailed(*said[:1], where and f"only {where}", *said[1:], map=map_)


class _WithoutDropout(TorchFunctionMode):
    """Dropout, of modules and functions, does nothing."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), named: Any = None
    ) -> Any:
        off = "dropout" in getattr(function, "__name__", "")
        return args[0] if off else function(*args, **(named or {}))


def _gradients_switched(tried: Subject, where: str, dense: int) -> None:
    """Look for a leak with gradients, or in training without, if outputs then differ; in eval mode
    they must not."""
    __tracebackhide__ = True
    rows = tried.rows if tried.exact else min(tried.rows, 2)  # graphs need memory
    other = replace(tried, grad=not tried.grad, rows=rows)
    x = tried.draw(4, tried.length)
    change = relative(other(x), tried(x))
    limit = max(1e-3, 10 * tried.tolerance)
    if change <= limit or is_rounding(tried, lambda: other(x) - tried(x)):
        return
    name = "without gradients" if tried.grad else "with gradients, though not without"
    _examine(other, f"{where}, {name}" if where else name, dense)
    if not tried.grad:
        raise CheckFailed(
            f"outputs with gradients differ from those without, by {change:.2g} of the std",
            where and f"only {where}",
            "one of the two is on a fast path, or drops a mask or another step",
        )


def cuts_of(T: int, dense: int = 0) -> list[int]:
    """Where to cut a sequence: everywhere, or if it is longer than `dense`, at halves, thirds,
    powers of two and their neighbors, and at random."""
    if dense >= T:
        return list(range(1, T))
    powers = [2**e + d for e in range(T.bit_length(), 2, -1) for d in (0, -1, 1)]
    chance = torch.randperm(T, generator=torch.Generator().manual_seed(T))[:16].tolist()
    chosen = [T // 2, T // 3, 2 * T // 3, T - 1, *powers, *chance]
    return [cut for cut in dict.fromkeys(chosen) if 0 < cut < T]


@dataclass(frozen=True)
class Leak:
    """Two sequences (T, ...) that are equal before a cut, and where their outputs differ there."""

    x: Tensor
    changed: Tensor
    cut: int
    places: list[int]
    share: float  # of the largest change anywhere


def first_leak(tried: Subject, T: int, cuts: list[int]) -> Leak | None:
    """Change everything from each cut on: the worst change before a cut, if any.

    Raises CheckFailed if outputs are not finite.
    """
    __tracebackhide__ = True
    (x,) = tried.draw(1, T)
    changed, _ = with_other_suffixes(tried, x, cuts)
    return _worst(tried, [x] * len(cuts), changed, cuts, tried.moved(x, changed))


def with_other_suffixes(tried: Subject, x: Tensor, cuts: list[int]) -> tuple[Tensor, Tensor]:
    """x (T, ...) with other inputs from each cut on (N, T, ...), and where they are (N, T)."""
    later = torch.arange(len(x)) >= torch.tensor(cuts)[:, None]
    return torch.where(later.view(*later.shape, *[1] * (x.ndim - 1)), tried.other(x), x), later


def _leak_of_an_id(tried: Subject, T: int) -> Leak | None:
    """Give each id to a sequence before a cut, and to another also after it: the worst change."""
    __tracebackhide__ = True
    (x,), cut, ids = tried.draw(1, T), T // 2, tried.pool
    xs = x.repeat(len(ids), 1)  # (V, T)
    xs[:, cut // 2] = ids
    changed = torch.where(torch.arange(T) < cut, xs, tried.other(x))
    changed[:, (cut + T) // 2] = ids
    outputs = tried(torch.stack([xs, changed], 1).flatten(0, 1))  # the two beside each other
    moved = (outputs[1::2] - outputs[::2]).abs().amax(-1)
    return _worst(tried, xs, changed, [cut] * len(ids), moved)


def _worst(
    tried: Subject, xs: Any, changed: Tensor, cuts: list[int], moved: Tensor
) -> Leak | None:
    """By how much outputs moved (N, T) as sequences were changed from their cuts on."""
    __tracebackhide__ = True
    if not bool(moved.isfinite().all()):
        raise CheckFailed(f"outputs are NaN or infinite in sequences of {moved.shape[1]}")
    later = torch.arange(moved.shape[1]) >= torch.tensor(cuts)[:, None]  # (N, T)
    early = (moved * ~later) / (float(moved.max()) or 1.0)
    worst = int(early.amax(-1).argmax())
    places = (early[worst] > tried.tolerance).nonzero().flatten().tolist()
    if not places:
        return None
    leak = Leak(xs[worst], changed[worst], cuts[worst], places, float(early.max()))
    pair = torch.stack([leak.x, leak.changed])

    def difference() -> Tensor:
        x, new = tried(pair)
        return (new - x)[places]

    return None if leak.share < SURE and is_rounding(tried, difference) else leak


def check_prefixes(tried: Subject, where: str = "") -> None:
    """Require of every prefix that it gets the same outputs alone, or CheckFailed."""
    __tracebackhide__ = True
    L = tried.length
    x = tried.draw(2, L)
    whole = tried(x)

    def difference(n: int) -> Tensor:
        return tried(x[:, :n]) - tried(x)[:, :n]

    for n in sorted({1, 2, 3, 7, L // 3, L // 2, L // 2 + 1, L - 1} & set(range(1, L))):
        try:
            change = relative(tried(x[:, :n]), whole[:, :n])
            if change <= 1e-3 or is_rounding(tried, partial(difference, n)):
                continue
        except REFUSALS:  # a model of one length, or of multiples of one
            continue
        raise CheckFailed(
            f"the first {n} of {L} inputs alone give other outputs, by {change:.2g} of their std",
            where and f"only {where}",
            "look for positions, a mask, its fill or a statistic that depend on the length",
        )


def dependence(tried: Subject, xs: Tensor) -> Tensor:
    """Sequences (N, T, ...) -> (T, T), the map: by how much the output at t moves if the input at
    j alone changes, as a share of the largest such change."""
    T = xs.shape[1]
    map_ = torch.zeros(T, T, dtype=torch.float64)
    one = torch.eye(T, dtype=torch.bool)
    for x in xs:
        changed = torch.where(one.view(T, T, *[1] * (x.ndim - 1)), tried.other(x), x)
        map_ = map_.maximum(tried.moved(x, changed).mT)
    return map_ / (float(map_.max()) or 1.0)


def described(tried: Subject, leak: Leak) -> tuple[list[str], Tensor]:
    """A leak in lines, the first says what reads what, and the map of a short sequence."""
    T = min(len(leak.x), MAP)
    short = leak.x[None, :T]
    own, another = (dependence(tried, x) for x in (short, tried.draw(1, T)))
    map_ = own.maximum(another)
    found = explain(map_ > tried.tolerance)
    if found is None:
        first, last = leak.places[0], leak.places[-1]
        found = (
            f"in a sequence of {len(leak.x)}, outputs at {first} to {last} depend on inputs from "
            f"{leak.cut} on, by {leak.share:.1g} of the largest change",
            SHAPES,
        )
    elif not all(bool((x > tried.tolerance).triu(1).any()) for x in (own, another)):
        found = found[0], "not in every sequence, as if blocked scores were finite, or by a choice"
    return [found[0], place_of(tried, leak.x, leak.changed, leak.cut), found[1]], map_


def assert_mask_is_infinite(model: Any, sample: Tensor | None = None, **given: Any) -> str:
    """Assert that nothing depends on later inputs even with weights 10,000 times as large.

    Blocked scores of -1e4 then lose against others. A published model may never get so far.
    """
    __tracebackhide__ = True
    tried = subject(model, sample, **given)
    if not tried.weights:
        raise CannotCheck(
            "no torch module is known behind the model whose weights can be enlarged"
        )
    tried = calm(tried, dtype := best_dtype(tried))
    parts = (module_of(model) or nn.Module()).modules()
    tables = {part.weight.shape for part in parts if isinstance(part, nn.Embedding)}
    with state(model, dtype=dtype, change=partial(enlarged, tables=tables)):
        T = tried.fitting(32)
        if not bool(tried(tried.draw(4, T)).isfinite().all()):
            raise CannotCheck("with weights 10,000 times as large, outputs are not finite")
        # Scores of the first positions must happen to be low.
        leaks = (first_leak(tried, T, [1, 2, 3, T // 2]) for _ in range(8))
        if leak := next(filter(None, leaks), None):
            raise CheckFailed(
                f"with weights 10,000 times as large, outputs at {leak.places[0]} depend on "
                f"inputs from {leak.cut} on, as if blocked scores were a finite -1e4",
                place_of(tried, leak.x, leak.changed, leak.cut),
                "fill with -inf or torch.finfo(dtype).min, after a softcap",
                grave=False,
            )
    return "nothing depends on later inputs with weights 10,000 times as large"


def enlarged(weight: Tensor, rng: torch.Generator, *, tables: set[torch.Size]) -> Tensor:
    """A matrix that is 10,000 times as large, so that scores reach any finite fill of a mask; of
    an embedding, at most so much that its numbers are about 1."""
    if weight.shape in tables:
        return weight / weight.square().mean().sqrt().clamp(1e-4, 1)
    return weight * 1e4 if weight.ndim > 1 else weight


def assert_past_used(model: Any, sample: Tensor | None = None, **given: Any) -> str:
    """Assert that some output depends on an earlier input, perhaps with noise on the weights. What
    may be meant is only remarked: the input before is not read, or the order has no effect."""
    __tracebackhide__ = True
    tried = calm(subject(model, sample, **given))
    T = tried.fitting(32)
    reads = torch.zeros(T, T, dtype=torch.bool)
    for change in (None, with_noise):
        with state(model, change=change):
            reads |= dependence(tried, tried.draw(ROUNDS, T)) > tried.tolerance
    past = reads.tril(-1).nonzero()
    if not len(past):
        raise CheckFailed("no output depends on an earlier input", "is attention's output added?")
    said = f"outputs depend on inputs up to {int((past[:, 0] - past[:, 1]).max())} before"
    if (blind := int((~reads.diagonal(-1)).sum())) > T // 2:
        said += f"; remark: {blind} of {T} positions never read the one before: are keys repeated?"
    with state(model):
        if _order_ignored(tried, tried.fitting(13)):
            said += "; remark: the first layer ignores the order of inputs: are positions used?"
    return said


def _order_ignored(tried: Subject, T: int) -> bool:
    """Whether equal inputs give equal outputs, and the first module that mixes time gives the same
    last output if the order of its earlier inputs is reversed."""
    module = module_of(tried.model)
    if module is None:
        return False
    x = tried.draw(1, T)
    equal = tried(x[:, :1].expand_as(x))
    if relative(equal, equal[:, :1].expand_as(equal)) > 1e-5:
        return False
    ways = (x[:, :-1], x[:, :-1].flip(1), tried.other(x)[:, :-1])
    xs = [torch.cat([early, x[:, -1:]], 1)[0] for early in ways]
    (_, same), (_, turned), (_, other) = (followed(tried, module, x, T - 1, T) for x in xs)
    mixing = [key for key in same if key in other and differ(same[key][1], other[key][1], 1e-4)]
    return bool(mixing) and not differ(same[mixing[0]][1], turned[mixing[0]][1], 1e-4)
