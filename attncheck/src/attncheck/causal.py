"""Does an output depend on later inputs? Proven by changing them. Letters: B batch, T time."""

from dataclasses import asdict, dataclass, replace
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
    steady_call_of,
)
from .visits import Visits

MAP = 48  # the largest map, in which every input is changed alone
SHORT = 32  # the length of sequences of properties for which few positions are enough
SURE = 0.01  # a change of this share is no rounding in the best precision
WITH_GIVEN = 16  # the length of sequences with optional tensors, and of those of TRAINED_AS_IS
WITH_EACH_ID = 12  # the length of the two sequences that each id takes
ORDERED = 13  # the length of sequences whose order is reversed; a prime, so no chunk hides it
TRAINED_AS_IS = replace(TRAINING, in_own_dtype=True)  # as a fused kernel, which has no fp64, is
CAUSAL_STATES = (
    EVALUATION, State(weights=Weights.NOISE), TRAINING, TRAINED_AS_IS, State(in_own_dtype=True)
)  # fmt: skip
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
    mode, noise on the weights, training mode without dropout, both modes in the model's own
    precision, and in both with each optional tensor that is known (a mask of ones, documents).

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
    """No output depends on later inputs, see `assert_causal`. `dense` is the length up to which
    every suffix of a sequence is changed."""
    _require_beyond_prefix(tried)
    dense = tried.accepted_length(dense or tried.dense_length)
    said = f"nothing depends on later inputs; every suffix of sequences of {dense} was changed"
    if tried.prefix:
        said += f" from position {tried.prefix} on"
    visits = Visits(tried)
    not_tried = visits.not_tried
    for state in causal_states(tried):
        with visits.visit(state) as there:
            refused = require_causal(steady(there), dense)
            if state == EVALUATION:  # other states refuse the same lengths
                not_tried += refused
    if tried.length > dense:
        n = len(_affordable_cuts(tried, tried.length, dense))
        said += f", and {n} places in sequences of {tried.length}"
        not_tried.append(
            f"each single pair of positions beyond {dense} (assert_causal with "
            f"dense={tried.length} tries all)"
        )
    if not tried.sample.is_floating_point() and len(tried.usable_ids) > MOST_IDS:
        not_tried.append(f"each single id, for {len(tried.usable_ids)} ids are used")
    if not tried.length_declared:
        not_tried.append(
            f"other lengths than {UNDECLARED}, for the model declares none; give block_size"
        )
    crashed = ""
    if TRAINING in visits.crashed:  # in which every model must work
        crashed = f"{TRAINING} the model raises {visits.crashed[TRAINING]}"
    return visits.passed(said, crashed)


def _require_beyond_prefix(tried: Subject) -> None:
    """CannotCheck if all inputs belong to the prefix, so that each may depend on any other."""
    if tried.prefix >= tried.length:
        raise CannotCheck(
            f"all {tried.length} inputs may see each other, as causal or prefix says"
        )


def causal_states(tried: Subject) -> list[State]:
    """The states in which nothing may depend on later inputs, evaluation first: with noise on the
    weights, in training mode, in both modes in the model's own dtype, and with each optional
    tensor, except for padding."""
    if not tried.weights:  # nothing of a plain function can be changed
        return [EVALUATION]
    states = list(CAUSAL_STATES)
    if tried.best_dtype is None:  # then all states are in the model's own dtype
        states = [state for state in states if not state.in_own_dtype]
    if not tried.effort.given_in_training and TRAINED_AS_IS in states:  # of a large model
        states.remove(TRAINED_AS_IS)
    modes = MODES_WITH_GIVEN if tried.effort.given_in_training else MODES_WITH_GIVEN[:1]
    for name, optional in tried.optional_tensors.items():
        if not optional.pads:  # see `assert_padding_ignored`
            states += [replace(mode, given_tensor=name) for mode in modes]
    return states


def require_causal(tried: Subject, dense: int) -> list[str]:
    """CheckFailed if an output depends on a later input in the state that the model is in. Returns
    which lengths the model refuses, a phrase for the report, or nothing."""
    for T, cuts in _scans(tried, dense):
        _raise_if_found(tried, first_leak(tried, T, cuts))
    if tried.state.given_tensor:  # what follows was tried without the tensor
        return []
    few_ids = not tried.sample.is_floating_point() and len(tried.usable_ids) <= MOST_IDS
    if few_ids and tried.state == EVALUATION:
        T = tried.accepted_length(max(WITH_EACH_ID, 2 * tried.prefix))
        _raise_if_found(tried, _leak_of_an_id(tried, T))
    refused: list[str] = []
    # A model that draws random numbers gives other outputs to a prefix alone, even if seeded: it
    # draws fewer of them.
    if not tried.seed_each_call:
        refused = check_prefixes(tried)
    # In a low precision of its own, outputs differ with gradients by rounding in other kernels.
    if not tried.state.in_own_dtype:
        _require_the_same_with_gradients_switched(tried, dense)
    return refused


def _scans(tried: Subject, dense: int) -> list[tuple[int, list[int]]]:
    """The scans of a state, each of one sequence: its length, and where it is cut. In evaluation
    mode, in which anything may be wrong, all are repeated with other sequences, and some more are
    cut near their beginning; with an optional tensor there is a short scan alone."""
    if tried.state.given_tensor:
        T = tried.accepted_length(min(dense, max(WITH_GIVEN, 2 * tried.prefix)))
        return [(T, _affordable_cuts(tried, T, dense)[:: tried.effort.every_nth_cut_with_given])]
    if tried.state == TRAINED_AS_IS:  # a kernel of its own is wrong everywhere
        T = tried.accepted_length(min(dense, max(WITH_GIVEN, 2 * tried.prefix)))
        return [(T, _affordable_cuts(tried, T, T))]
    scans = [(dense, _affordable_cuts(tried, dense, dense))]
    if tried.length > dense and (tried.state == EVALUATION or tried.effort.long_in_every_state):
        scans.append((tried.length, _affordable_cuts(tried, tried.length, dense)))
    if tried.state == EVALUATION:
        near_beginning = [cut for cut in (1, 2, dense // 2) if cut >= first_cut(tried, dense)]
        scans = scans * tried.effort.scans + [(dense, near_beginning)] * tried.effort.beginnings
    return [(T, cuts) for T, cuts in scans if cuts]


def _affordable_cuts(tried: Subject, T: int, dense: int) -> list[int]:
    """Where sequences of T are cut, behind the prefix: everywhere if T is the length `dense`, else
    at the places of `cuts_of`, of which a large model gets the first."""
    if dense == T:
        return [cut for cut in cuts_of(T, dense=T) if cut >= first_cut(tried, T)]
    cuts = [cut for cut in cuts_of(T) if cut >= first_cut(tried, T)]
    return cuts[: max(2, tried.affordable_sequences(T))]


def first_cut(tried: Subject, T: int) -> int:
    """The first position from which on inputs must not be read earlier: behind the prefix, which
    begins at the first token if padding is before it; 0 without a prefix."""
    padding = int(judged_positions(tried, T).int().argmax())
    return padding + tried.prefix if tried.prefix else 0


def _raise_if_found(tried: Subject, leak: "Leak | None") -> None:
    """CheckFailed that describes a leak, if there is one."""
    if leak is None:
        return
    description, map_ = leak_in_words(tried, leak)
    raise tried.failed(description.what, description.place, description.look, map=map_)


def _require_the_same_with_gradients_switched(tried: Subject, dense: int) -> None:
    """Switch gradients on, or off if the state has them. If outputs differ then, CheckFailed if
    one depends on a later input; in a state without gradients, such as evaluation mode, also if
    none does."""
    rows = tried.rows_at_once(2)  # graphs need memory
    state = replace(tried.state, grad=not tried.state.grad)
    switched = replace(tried, state=state, rows=rows, held_before=True)
    x = tried.draw(tried.effort.rows_switched, tried.usual_length)
    change = relative(switched(x), tried(x))
    limit = max(1e-3, 10 * tried.tolerance)  # other kernels round differently
    if change <= limit or is_rounding(tried, lambda: switched(x) - tried(x)):
        return
    for T, cuts in _scans(switched, dense):
        _raise_if_found(switched, first_leak(switched, T, cuts))
    if not tried.state.grad:  # in training mode, other outputs without gradients are no fault
        raise switched.failed(
            f"outputs with gradients differ from those without, by {change:.2g} of the std"
        )


def cuts_of(T: int, dense: int = 0) -> list[int]:
    """Where to cut a sequence of T, from 1 to T - 1: everywhere, or if it is longer than `dense`,
    at halves, thirds, powers of two and their neighbors, and 16 random places, the same for the
    same T."""
    if dense >= T:
        return list(range(1, T))
    cuts = [T // 2, T // 3, 2 * T // 3, T - 1]
    for exponent in range(T.bit_length(), 2, -1):
        power = 2**exponent
        cuts += [power, power - 1, power + 1]
    cuts += torch.randperm(T, generator=torch.Generator().manual_seed(T))[:16].tolist()
    return [cut for cut in dict.fromkeys(cuts) if 0 < cut < T]  # each once


@dataclass(frozen=True)
class Leak:
    """Two sequences (T, ...) that are equal before a cut, and where their outputs differ there."""

    x: Tensor
    changed: Tensor
    cut: int
    places: list[int]  # before the cut, where outputs differ
    share: float  # by how much they differ, as a share of the largest change anywhere


def first_leak(tried: Subject, T: int, cuts: list[int]) -> Leak | None:
    """The worst leak in a random sequence of T, of which everything from each of the cuts on is
    changed in turn; None if no output before a cut moves. CheckFailed if outputs are not finite.
    """
    (x,) = tried.draw(1, T)
    others, _ = with_other_suffixes(tried, x, cuts)
    return _worst_leak(tried, [x] * len(cuts), others, cuts, tried.output_changes(x, others))


def with_other_suffixes(tried: Subject, x: Tensor, cuts: list[int]) -> tuple[Tensor, Tensor]:
    """x (T, ...) with other inputs from each of N cuts on (N, T, ...), and where these are, (N, T)
    bool.

    Padding stays: whether it is read is another property.
    """
    replaced = torch.arange(len(x)) >= torch.tensor(cuts)[:, None]
    replaced &= judged_positions(tried, len(x))
    like_x = replaced.view(*replaced.shape, *[1] * (x.ndim - 1))
    return torch.where(like_x, tried.other_inputs(x), x), replaced


def _leak_of_an_id(tried: Subject, T: int) -> Leak | None:
    """The worst leak in a sequence of T with each of the ids in it; None if there is none.

    A layer may look up equal ids only. So there are two sequences for each id. Both have it before
    a cut. After the cut the second one has the id again, and other inputs around it.
    """
    (x,) = tried.draw(1, T)
    cut = max(T // 2, tried.prefix)
    ids = tried.usable_ids
    xs = x.repeat(len(ids), 1)  # (V, T)
    xs[:, cut // 2] = ids
    changed_xs = torch.where(torch.arange(T) < cut, xs, tried.other_inputs(x))
    changed_xs[:, (cut + T) // 2] = ids
    outputs = tried(torch.stack([xs, changed_xs], 1).flatten(0, 1))  # the two beside each other
    moved = (outputs[1::2] - outputs[::2]).abs().amax(-1)
    return _worst_leak(tried, xs, changed_xs, [cut] * len(ids), moved)


def _worst_leak(
    tried: Subject, xs: Tensor | list[Tensor], others: Tensor, cuts: list[int], moved: Tensor
) -> Leak | None:
    """The leak that moves an output before its cut most; None if none moves by more than rounding.
    CheckFailed if outputs are not finite, but CannotCheck with an optional tensor.

    Args:
        xs, others: N sequences (T, ...), before and after they were changed from their cuts on.
        moved: (N, T), by how much each output moved.
    """
    T = moved.shape[1]
    judged = judged_positions(tried, T)
    if not bool(moved[:, judged].isfinite().all()):
        if tried.state.given_tensor:
            raise CannotCheck("outputs are NaN or infinite; see padding")
        raise tried.failed(f"outputs are NaN or infinite in sequences of {T}")
    later = torch.arange(T) >= torch.tensor(cuts)[:, None]  # (N, T)
    largest = float(moved[:, judged].max())
    early = moved.where(~later & judged, 0.0) / (largest or 1.0)
    worst = int(early.amax(-1).argmax())
    # In its own precision, early outputs come from equal numbers, so they must not move at all.
    tolerance = 0.0 if tried.state.in_own_dtype else tried.tolerance
    places = (early[worst] > tolerance).nonzero().flatten().tolist()
    if not places:
        return None
    leak = Leak(xs[worst], others[worst], cuts[worst], places, float(early.max()))
    pair = torch.stack([leak.x, leak.changed])

    def difference() -> Tensor:
        x, new = tried(pair)
        return (new - x)[places]

    # A change may be rounding if it is small beside the largest, if all changes are small beside
    # the outputs, or in a low precision.
    all_tiny = largest < 1e-6 * float(tried(pair).std())
    may_be_rounding = leak.share < SURE or all_tiny or tried.state.in_own_dtype
    return None if may_be_rounding and is_rounding(tried, difference) else leak


def judged_positions(tried: Subject, T: int) -> Tensor:
    """(T,) bool: where outputs of a sequence of T mean something in the state of the subject,
    which they do not at padding."""
    if not tried.state.given_tensor:
        return torch.ones(T, dtype=torch.bool)
    return tried.optional_tensors[tried.state.given_tensor].judged(T)


def check_prefixes(tried: Subject) -> list[str]:
    """CheckFailed if the first inputs of a text get other outputs alone, for several numbers of
    them. Returns which numbers the model refuses, in a phrase for the report, or nothing."""
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
        if n < tried.prefix:  # its inputs also see the rest of the prefix
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
    """The map (output t, input j) (T, T) of sequences (N, T, ...): by how much the output at t
    moves if the input at j alone changes, in that sequence in which it moves most, as a share of
    the largest number of the map."""
    T = xs.shape[1]
    map_ = torch.zeros(T, T, dtype=torch.float64)
    one_input = torch.eye(T, dtype=torch.bool)
    for x in xs:
        like_x = one_input.view(T, T, *[1] * (x.ndim - 1))
        others = torch.where(like_x, tried.other_inputs(x), x)
        map_ = map_.maximum(tried.output_changes(x, others).mT)
    return map_ / (float(map_.max()) or 1.0)


def leak_in_words(tried: Subject, leak: Leak) -> tuple[Description, Tensor]:
    """A leak in words, and the map (T, T) from which they come: that of the first inputs of the
    leak's sequence, or of another sequence, where it is larger."""
    T = len(leak.x) if len(leak.x) <= MAP else tried.anew().accepted_length(MAP)
    tolerance = 0.0 if tried.state.in_own_dtype else tried.tolerance
    own = _judged_map(tried, leak.x[None, :T])
    another = _judged_map(tried, tried.draw(1, T))
    map_ = own.maximum(another)
    place = place_of_leak(tried, leak.x, leak.changed, leak.cut)
    description = explain_map(map_ > tolerance)
    if description is None:  # the map is too short to show it
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
    """The map (output t, input j) (T, T) of `dependence` for a sequence (1, T, ...), with 0 for
    the inputs of a prefix, which all outputs may read, and at padding."""
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
    """Nothing depends on later inputs with huge weights, see `assert_mask_is_infinite`.
    CannotCheck if outputs are not finite then, or the weights are not known."""
    if not tried.weights:
        raise CannotCheck(
            "no torch module is known behind the model whose weights can be enlarged"
        )
    _require_beyond_prefix(tried)
    with tried.in_state(EVALUATION) as evaluation:
        call = steady_call_of(steady(evaluation))
    with tried.in_state(State(weights=Weights.HUGE)) as huge:
        # Not steady(huge): with huge weights, rounding alone makes outputs differ.
        there = replace(huge, **asdict(call))
        T = there.accepted_length(min(max(SHORT, 2 * tried.prefix), tried.dense_length))
        if not bool(there(there.draw(tried.effort.rows_enlarged, T)).isfinite().all()):
            raise CannotCheck("with weights 10,000 times as large, outputs are not finite")
        # A blocked score of -1e4 wins only where all others are lower, as may be those of few
        # keys.
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
    T = tried.accepted_length(min(SHORT, tried.dense_length))
    reads = torch.zeros(T, T, dtype=torch.bool)  # (output, input), in any of the states
    remarks = []
    earlier = torch.ones(T, T, dtype=torch.bool).tril(-1)
    states: list[State] = []
    # Without weights there is nothing to put noise on.
    for state in PAST_STATES if tried.weights else (EVALUATION,):
        if states and bool(reads[earlier].all()):
            break  # noise on the weights can only show more
        states.append(state)
        with tried.in_state(state) as there:
            there = steady(there)  # so that outputs move by the changed inputs alone
            reads |= dependence(there, there.draw(2, T)) > there.tolerance
            if state == EVALUATION and _order_ignored(there, there.accepted_length(ORDERED)):
                remarks.append("the first layer ignores the order of inputs")
    past_reads = reads.tril(-1).nonzero()  # (N, 2), the pairs of an output and an earlier input
    if not len(past_reads):
        raise CheckFailed("no output depends on an earlier input", "is attention's output added?")
    furthest = int((past_reads[:, 0] - past_reads[:, 1]).max())
    blind = int((~reads.diagonal(-1)).sum())  # positions that do not read the one before
    if blind > T // 2:
        remarks.append(f"{blind} of {T} positions never read the one before")
    said = f"outputs depend on inputs up to {furthest} positions back"
    return Passed(said, tuple(remarks), tuple(map(str, states)))


def _order_ignored(tried: Subject, T: int) -> bool:
    """Whether the order of earlier inputs has no effect: if all inputs are equal all outputs are,
    and the first module that mixes positions gives the same output at the last of T positions if
    the inputs before it are reversed. False if no module is known."""
    module = module_of(tried.model)
    if module is None:
        return False
    x = tried.draw(1, T)
    of_equal_inputs = tried(x[:, :1].expand_as(x))
    if relative(of_equal_inputs, of_equal_inputs[:, :1].expand_as(of_equal_inputs)) > 1e-5:
        return False
    last = x[:, -1:]

    def recorded_after(earlier: Tensor) -> Recorded:
        """What the modules get and give at the last position, after these inputs."""
        _, recorded = record_modules(tried, module, torch.cat([earlier, last], 1)[0], T - 1, T)
        return recorded

    in_order = recorded_after(x[:, :-1])
    reversed_ = recorded_after(x[:, :-1].flip(1))
    others = recorded_after(tried.other_inputs(x)[:, :-1])
    for call, (_, outputs) in in_order.items():
        mixes_positions = call in others and any_differ(outputs, others[call][1], 1e-4)
        if mixes_positions:
            return not any_differ(outputs, reversed_[call][1], 1e-4)
    return False
