"""Does an output depend on later inputs? Proven by changing them. Letters: B batch, T time."""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from typing_extensions import Unpack

from .calls import Call, Model, module_of
from .leaks import (
    SHAPES,
    Description,
    Recorded,
    any_differ,
    explain_map,
    place_of_leak,
    record_modules,
)
from .outcomes import REFUSALS, CannotCheck, CheckFailed, Passed, as_assertion, in_one_line
from .states import EVALUATION, TRAINING, State, Weights, changed
from .subject import (
    MOST_IDS,
    UNDECLARED,
    Sizes,
    SizesAndCall,
    Subject,
    is_rounding,
    prepared,
    relative,
    steady,
)
from .visits import Visits

MAP = 48  # the largest map, in which every input is changed alone
SURE = 0.01  # a change of this share is no rounding in the best precision
WITH_GIVEN = 16  # the length of sequences with optional tensors
CAUSAL_STATES = (EVALUATION, State(weights=Weights.NOISE), TRAINING, State(own_dtype=True))
PAST_STATES = (EVALUATION, State(weights=Weights.NOISE))
MODES_WITH_GIVEN = (EVALUATION, TRAINING)  # the modes in which optional tensors are given


@as_assertion
def assert_causal(
    model: Model,
    sample: Tensor | None = None,
    *,
    call: Call | None = None,
    dense: int | None = None,
    **sizes: Unpack[Sizes],
) -> str:
    """Assert that no output depends on later inputs, in each of the states, at any length.

    Every suffix of sequences of up to `dense` inputs is replaced, and longer sequences are cut at
    halves, thirds, powers of two and their neighbors, and at random. The first outputs of a cut
    sequence must not move, and must be those of the prefix alone. Outputs must also be the same
    with and without gradients. With at most 300 ids, each is tried. The states are evaluation
    mode, noise on the weights, training mode without dropout, the model's own precision, and in
    both modes with each optional tensor that is known (a mask of ones, documents).

    Args:
        model: any callable from `sample` to outputs (B, T, V), or to something that holds them.
        sample: ids (N, T) int64, or vectors (N, T, C) for a layer; random ids by default.
        call: from the model and inputs to what it returns, such as
            `lambda model, ids: model(ids, targets=ids)`.
        dense: the length up to which any single pair is found; by default 64, less for a large
            model.
        sizes: `vocab_size`, `block_size`, `rows`, `prefix` of `prepared`.

    Returns:
        What was tried, in a sentence.

    Raises:
        CheckFailed: an output depends on later inputs; the message says which, and names the first
            module that lets them through.
        CannotCheck: the model cannot be called.
    """
    tried = prepared(model, sample, call, **sizes)
    passed = check_causal(tried, dense)
    with changed(model):
        missing = tried.not_tried(set())
    return str(replace(passed, not_tried=(*passed.not_tried, *missing)))


def check_causal(tried: Subject, dense: int | None = None) -> Passed:
    """No output depends on later inputs, see `assert_causal`."""
    _require_beyond_prefix(tried)
    dense = tried.fitting(dense or tried.dense)
    said = f"nothing depends on later inputs; every suffix of sequences of {dense} was changed"
    if tried.prefix:
        said += f" from position {tried.prefix} on"
    visits = Visits(tried)
    not_tried = visits.not_tried
    for state in causal_states(tried):
        with visits.visit(state) as there:
            refused = require_causal(steady(there), dense)
            if state == EVALUATION:
                not_tried += refused
    if tried.length > dense:
        n = len(_affordable_cuts(tried, tried.length, dense))
        said += f", and {n} places in sequences of {tried.length}"
        not_tried.append(
            f"each single pair of positions beyond {dense} (assert_causal with "
            f"dense={tried.length} tries all)"
        )
    if not tried.sample.is_floating_point() and len(tried.pool) > MOST_IDS:
        not_tried.append(f"each single id, for {len(tried.pool)} ids are used")
    if not tried.declared:
        not_tried.append(
            f"other lengths than {UNDECLARED}, for the model declares none; give block_size"
        )
    crashed = ""
    if TRAINING in visits.crashed:
        crashed = f"{TRAINING} the model raises {visits.crashed[TRAINING]}"
    return visits.passed(said, crashed)


def _require_beyond_prefix(tried: Subject) -> None:
    """CannotCheck if all inputs belong to the prefix, so that each may depend on any other."""
    if tried.prefix >= tried.length:
        raise CannotCheck(
            f"all {tried.length} inputs may see each other, as causal or prefix says"
        )


def causal_states(tried: Subject) -> list[State]:
    """The states in which nothing may depend on later inputs, evaluation first."""
    if not tried.weights:
        return [EVALUATION]
    states = [state for state in CAUSAL_STATES if not (state.own_dtype and tried.best is None)]
    modes = MODES_WITH_GIVEN if tried.effort.given_in_training else MODES_WITH_GIVEN[:1]
    for name, optional in tried.optional.items():
        if not optional.pads:  # see `assert_padding_ignored`
            states += [replace(mode, given=name) for mode in modes]
    return states


def require_causal(tried: Subject, dense: int) -> list[str]:
    """Look for a leak in the present state of the model; CheckFailed if there is one. What the
    model refuses is returned, for the report."""
    for T, cuts in _scans(tried, dense):
        _raise(tried, first_leak(tried, T, cuts))
    if tried.state.given:
        return []
    few_ids = not tried.sample.is_floating_point() and len(tried.pool) <= MOST_IDS
    if few_ids and tried.state == EVALUATION:
        T = tried.fitting(max(12, 2 * tried.prefix))
        _raise(tried, _leak_of_an_id(tried, T))
    refused: list[str] = []
    if not tried.seeded:  # chance is another one at another length
        refused = check_prefixes(tried)
    if not tried.state.own_dtype:
        _gradients_switched(tried, dense)
    return refused


def _scans(tried: Subject, dense: int) -> list[tuple[int, list[int]]]:
    """The lengths of sequences, and where each is cut. Evaluation mode, in which anything may be
    wrong, is scanned twice, and some more sequences are cut at their beginning."""
    if tried.state.given:
        T = tried.fitting(min(dense, max(WITH_GIVEN, 2 * tried.prefix)))
        return [(T, _affordable_cuts(tried, T, dense)[:: tried.effort.every_nth_cut_with_given])]
    scans = [(dense, _affordable_cuts(tried, dense, dense))]
    if tried.length > dense and (tried.state == EVALUATION or tried.effort.long_in_every_state):
        scans.append((tried.length, _affordable_cuts(tried, tried.length, dense)))
    if tried.state == EVALUATION:
        first = [cut for cut in (1, 2, dense // 2) if cut >= first_cut(tried, dense)]
        scans = scans * tried.effort.scans + [(dense, first)] * tried.effort.beginnings
    return [(T, cuts) for T, cuts in scans if cuts]


def _affordable_cuts(tried: Subject, T: int, dense: int) -> list[int]:
    """The cuts of a scan, of which a large model gets fewer, and none inside a prefix."""
    every = 4 * dense if dense == T else 0
    cuts = [cut for cut in cuts_of(T, every) if cut >= first_cut(tried, T)]
    return cuts if dense == T else cuts[: max(2, tried.affordable(T))]


def first_cut(tried: Subject, T: int) -> int:
    """The first position from which on inputs must not be read earlier: behind the prefix, which
    begins at the first token if padding is before it."""
    padding = int(judged_positions(tried, T).int().argmax())
    return padding + tried.prefix if tried.prefix else 0


def _raise(tried: Subject, leak: "Leak | None") -> None:
    if leak is None:
        return
    description, map_ = leak_in_words(tried, leak)
    raise tried.failed(description.what, description.place, description.look, map=map_)


def _gradients_switched(tried: Subject, dense: int) -> None:
    """Look for a leak with gradients, or in training without, if outputs then differ; in
    evaluation mode they must not."""
    rows = tried.batch(2)  # graphs need memory
    state = replace(tried.state, grad=not tried.state.grad)
    other = replace(tried, state=state, rows=rows, held=True)  # it held the other way
    x = tried.draw(tried.effort.rows_switched, tried.usual_length)
    change = relative(other(x), tried(x))
    limit = max(1e-3, 10 * tried.tolerance)
    if change <= limit or is_rounding(tried, lambda: other(x) - tried(x)):
        return
    for T, cuts in _scans(other, dense):
        _raise(other, first_leak(other, T, cuts))
    if not tried.state.grad:
        raise other.failed(
            f"outputs with gradients differ from those without, by {change:.2g} of the std"
        )


def cuts_of(T: int, dense: int = 0) -> list[int]:
    """Where to cut a sequence: everywhere, or if it is longer than `dense`, at halves, thirds,
    powers of two and their neighbors, and at random."""
    if dense >= T:
        return list(range(1, T))
    cuts = [T // 2, T // 3, 2 * T // 3, T - 1]
    for exponent in range(T.bit_length(), 2, -1):
        power = 2**exponent
        cuts += [power, power - 1, power + 1]
    cuts += torch.randperm(T, generator=torch.Generator().manual_seed(T))[:16].tolist()
    return [cut for cut in dict.fromkeys(cuts) if 0 < cut < T]


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
    (x,) = tried.draw(1, T)
    others, _ = with_other_suffixes(tried, x, cuts)
    return _worst(tried, [x] * len(cuts), others, cuts, tried.moved(x, others))


def with_other_suffixes(tried: Subject, x: Tensor, cuts: list[int]) -> tuple[Tensor, Tensor]:
    """x (T, ...) with other inputs from each cut on (N, T, ...), and where they are (N, T).

    Padding stays: whether it is read is another property.
    """
    later = torch.arange(len(x)) >= torch.tensor(cuts)[:, None]
    later &= judged_positions(tried, len(x))
    return torch.where(later.view(*later.shape, *[1] * (x.ndim - 1)), tried.other(x), x), later


def _leak_of_an_id(tried: Subject, T: int) -> Leak | None:
    """The worst change of outputs before a cut, for each id.

    A layer may look up equal ids only: the id stands before the cut in both sequences, and after
    it in the second alone, whose suffix is also another.
    """
    (x,) = tried.draw(1, T)
    cut = max(T // 2, tried.prefix)
    ids = tried.pool
    xs = x.repeat(len(ids), 1)  # (V, T)
    xs[:, cut // 2] = ids
    others = torch.where(torch.arange(T) < cut, xs, tried.other(x))
    others[:, (cut + T) // 2] = ids
    outputs = tried(torch.stack([xs, others], 1).flatten(0, 1))  # the two beside each other
    moved = (outputs[1::2] - outputs[::2]).abs().amax(-1)
    return _worst(tried, xs, others, [cut] * len(ids), moved)


def _worst(
    tried: Subject, xs: Tensor | list[Tensor], others: Tensor, cuts: list[int], moved: Tensor
) -> Leak | None:
    """By how much outputs moved (N, T) as sequences were changed from their cuts on."""
    T = moved.shape[1]
    judged = judged_positions(tried, T)
    if not bool(moved[:, judged].isfinite().all()):
        if tried.state.given:
            raise CannotCheck("outputs are NaN or infinite; see padding")
        raise tried.failed(f"outputs are NaN or infinite in sequences of {T}")
    later = torch.arange(T) >= torch.tensor(cuts)[:, None]  # (N, T)
    largest = float(moved[:, judged].max())
    early = moved.where(~later & judged, 0.0) / (largest or 1.0)
    worst = int(early.amax(-1).argmax())
    # In its own precision, early outputs come from equal numbers, so they must not move at all.
    tolerance = 0.0 if tried.state.own_dtype else tried.tolerance
    places = (early[worst] > tolerance).nonzero().flatten().tolist()
    if not places:
        return None
    leak = Leak(xs[worst], others[worst], cuts[worst], places, float(early.max()))
    pair = torch.stack([leak.x, leak.changed])

    def difference() -> Tensor:
        x, new = tried(pair)
        return (new - x)[places]

    tiny = largest < 1e-6 * float(tried(pair).std())
    unsure = leak.share < SURE or tiny or tried.state.own_dtype
    return None if unsure and is_rounding(tried, difference) else leak


def judged_positions(tried: Subject, T: int) -> Tensor:
    """(T,) bool: where outputs mean something, which at padding they do not."""
    if not tried.state.given:
        return torch.ones(T, dtype=torch.bool)
    return tried.optional[tried.state.given].judged(T)


def check_prefixes(tried: Subject) -> list[str]:
    """Require of every prefix that it gets the same outputs alone, or CheckFailed; what the model
    refuses, for the report."""
    L = tried.usual_length
    x = tried.draw(tried.effort.rows_of_prefixes, L)
    whole = tried(x)
    lengths = {1, 2, 3, 7, L // 3, L // 2, L // 2 + 1, L - 1}
    if tried.state != EVALUATION and not tried.effort.every_state:
        lengths = {1, L // 2}
    elif not tried.effort.in_double:  # of the largest models
        lengths = {1, 3, L // 2, L - 1}

    def difference(n: int) -> Tensor:
        return tried(x[:, :n]) - tried(x)[:, :n]

    refused: list[int] = []
    why = ""
    for n in sorted(lengths & set(range(1, L))):
        if n < tried.prefix:
            continue
        try:
            change = relative(tried(x[:, :n]), whole[:, :n])
            if change <= 1e-3 or is_rounding(tried, partial(difference, n)):
                continue
        except REFUSALS as error:  # a model of one length, or of multiples of one
            refused.append(n)
            why = why or in_one_line(error)
            continue
        raise tried.failed(
            f"the first {n} of {L} inputs alone give other outputs, by {change:.2g} of their std",
            "look for positions, a mask, its fill or a statistic that depend on the length",
        )
    if not refused:
        return []
    return [f"texts of {', '.join(map(str, refused))} inputs, which are refused ({why})"]


def dependence(tried: Subject, xs: Tensor) -> Tensor:
    """Sequences (N, T, ...) -> (T, T), the map: by how much the output at t moves if the input at
    j alone changes, as a share of the largest such change."""
    T = xs.shape[1]
    map_ = torch.zeros(T, T, dtype=torch.float64)
    one = torch.eye(T, dtype=torch.bool)
    for x in xs:
        others = torch.where(one.view(T, T, *[1] * (x.ndim - 1)), tried.other(x), x)
        map_ = map_.maximum(tried.moved(x, others).mT)
    return map_ / (float(map_.max()) or 1.0)


def leak_in_words(tried: Subject, leak: Leak) -> tuple[Description, Tensor]:
    """A leak in words, and the map of a short sequence."""
    T = len(leak.x) if len(leak.x) <= MAP else tried.anew().fitting(MAP)
    tolerance = 0.0 if tried.state.own_dtype else tried.tolerance
    own = _judged_map(tried, leak.x[None, :T])
    another = _judged_map(tried, tried.draw(1, T))
    map_ = own.maximum(another)
    place = place_of_leak(tried, leak.x, leak.changed, leak.cut)
    description = explain_map(map_ > tolerance)
    if description is None:
        first, last = leak.places[0], leak.places[-1]
        what = (
            f"in a sequence of {len(leak.x)}, outputs at {first} to {last} depend on inputs from "
            f"{leak.cut} on, by {leak.share:.1g} of the largest change"
        )
        return Description(what, place, SHAPES), map_
    leaks = [bool((each > tolerance).triu(1).any()) for each in (own, another)]
    if not all(leaks):
        look = "not in every sequence, as if blocked scores were finite, or by a choice"
        return Description(description.what, place, look), map_
    return Description(description.what, place, description.look), map_


def _judged_map(tried: Subject, x: Tensor) -> Tensor:
    """The map (T, T) of a sequence (1, T, ...), 0 for inputs that all may read and at padding."""
    T = x.shape[1]
    map_ = dependence(tried, x)
    map_[:, : first_cut(tried, T)] = 0.0
    judged = judged_positions(tried, T)
    return map_ * (judged & judged[:, None])


@as_assertion
def assert_mask_is_infinite(
    model: Model, sample: Tensor | None = None, **given: Unpack[SizesAndCall]
) -> str:
    """Assert that nothing depends on later inputs even with weights 10,000 times as large.

    Blocked scores of -1e4 then lose against others. A published model may never get so far.
    """
    return str(check_mask_is_infinite(prepared(model, sample, **given)))


def check_mask_is_infinite(tried: Subject) -> Passed:
    """Nothing depends on later inputs with huge weights, see `assert_mask_is_infinite`."""
    if not tried.weights:
        raise CannotCheck(
            "no torch module is known behind the model whose weights can be enlarged"
        )
    _require_beyond_prefix(tried)
    with tried.put(EVALUATION) as evaluation:
        how = steady(evaluation)
    with tried.put(State(weights=Weights.HUGE)) as huge:
        # With huge weights rounding alone makes outputs differ, so it is called as with its own.
        there = replace(huge, rows=how.rows, seeded=how.seeded, restored=how.restored)
        T = there.fitting(min(max(32, 2 * tried.prefix), tried.dense))
        if not bool(there(there.draw(tried.effort.rows_enlarged, T)).isfinite().all()):
            raise CannotCheck("with weights 10,000 times as large, outputs are not finite")
        # Scores of the first positions must happen to be low.
        middle = max(T // 2, tried.prefix)
        cuts = [cut for cut in (1, 2, 3, middle) if tried.prefix <= cut < T]
        for _ in range(tried.effort.texts_enlarged):
            if leak := first_leak(there, T, cuts):
                raise there.failed(
                    f"with weights 10,000 times as large, outputs at {leak.places[0]} depend on "
                    f"inputs from {leak.cut} on, as if blocked scores were a finite -1e4",
                    place_of_leak(there, leak.x, leak.changed, leak.cut),
                    "fill with -inf or torch.finfo(dtype).min, after a softcap",
                    grave=False,
                )
    said = "nothing depends on later inputs with weights 10,000 times as large"
    return Passed(said, states=(str(State(weights=Weights.HUGE)),))


@as_assertion
def assert_past_used(
    model: Model, sample: Tensor | None = None, **given: Unpack[SizesAndCall]
) -> str:
    """Assert that some output depends on an earlier input, perhaps with noise on the weights. What
    may be meant is only remarked: the input before is not read, or the order has no effect."""
    return str(check_past_used(prepared(model, sample, **given)))


def check_past_used(tried: Subject) -> Passed:
    """Some output depends on an earlier input, see `assert_past_used`."""
    T = tried.fitting(min(32, tried.dense))
    reads = torch.zeros(T, T, dtype=torch.bool)
    remarks = []
    earlier = torch.ones(T, T, dtype=torch.bool).tril(-1)
    states: list[State] = []
    for state in PAST_STATES if tried.weights else (EVALUATION,):
        if states and bool(reads[earlier].all()):
            break  # noise on the weights can only show more
        states.append(state)
        with tried.put(state) as there:
            there = steady(there)
            reads |= dependence(there, there.draw(2, T)) > there.tolerance
            if state == EVALUATION and _order_ignored(there, there.fitting(13)):
                remarks.append("the first layer ignores the order of inputs")
    past = reads.tril(-1).nonzero()
    if not len(past):
        raise CheckFailed("no output depends on an earlier input", "is attention's output added?")
    furthest = int((past[:, 0] - past[:, 1]).max())
    blind = int((~reads.diagonal(-1)).sum())
    if blind > T // 2:
        remarks.append(f"{blind} of {T} positions never read the one before")
    said = f"outputs depend on inputs up to {furthest} positions back"
    return Passed(said, tuple(remarks), tuple(map(str, states)))


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
    last = x[:, -1:]

    def recorded_after(earlier: Tensor) -> Recorded:
        """What the modules get and give at the last position, after these inputs."""
        _, recorded = record_modules(tried, module, torch.cat([earlier, last], 1)[0], T - 1, T)
        return recorded

    same = recorded_after(x[:, :-1])
    turned = recorded_after(x[:, :-1].flip(1))
    other = recorded_after(tried.other(x)[:, :-1])
    for call, (_, outputs) in same.items():
        mixes_time = call in other and any_differ(outputs, other[call][1], 1e-4)
        if mixes_time:
            return not any_differ(outputs, turned[call][1], 1e-4)
    return False
