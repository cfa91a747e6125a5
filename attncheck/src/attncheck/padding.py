"""Padding and packed documents. Letters: B batch, T time."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from typing_extensions import Unpack

from .calls import DOCUMENTS, Call, Model, Own, arguments_of
from .causal import require_causal
from .outcomes import (
    PROBE_ERRORS,
    REFUSALS,
    CannotCheck,
    CheckFailed,
    Passed,
    as_assertion,
    cause_from,
    in_one_line,
    is_deliberate,
    not_applicable_if_refused,
    ranges_in_words,
)
from .states import EVALUATION, TRAINING, State
from .subject import (
    PADDINGS,
    Sizes,
    Subject,
    is_rounding,
    mask_dtype,
    prepared,
    prime_up_to,
    relative,
    steady,
)
from .visits import Visits

# With gradients, evaluation mode may be on another path.
PADDING_STATES = (EVALUATION, State(grad=True), TRAINING)
PACKED_MODES = (EVALUATION, TRAINING)
MOVED = 1e-6  # of the standard deviation, by which other padded tokens may move outputs
PADDED = 23  # tokens of a padded row
EVERY_SIDE = "every side"
# Arguments for a mask of padding; of another one than the first, nobody knows what 1 means.
MASKS = ("attention_mask", "mask", "padding_mask", "key_padding_mask", "src_key_padding_mask")
Masked = Callable[[Own, Tensor, Tensor], object]
Numbered = Callable[[Own, Tensor, Tensor], object]


@as_assertion
def assert_padding_ignored(
    model: Model,
    side: str = EVERY_SIDE,
    sample: Tensor | None = None,
    *,
    call: Masked | None = None,
    **sizes: Unpack[Sizes],
) -> str:
    """Assert that padded tokens do not affect the outputs of others, in rows of three lengths and
    in one row alone, in evaluation and training mode. A remark says if a padded row gets other
    outputs than the row alone.

    Args:
        side: where the padding is, "left", "right", "both sides", "between" the tokens of a row,
            or by default each of these.
        call: from the model, ids, and a mask (B, T) int64, 1 = token; None for `attention_mask`.
    """
    return str(check_padding_ignored(prepared(model, sample, **sizes), side, call))


def mask_argument(tried: Subject) -> Masked:
    """The call with `attention_mask`, of the dtype that the model takes; CannotCheck if the model
    takes a mask under another name, whose meaning is not known."""
    takes = arguments_of(tried.model)
    others = [name for name in MASKS if name in takes]
    if "attention_mask" not in takes and others:
        raise CannotCheck(
            f"whether 1 is a token in {others[0]} is not known: give call to "
            "assert_padding_ignored"
        )
    dtype = mask_dtype(tried)

    def masked(model: Model, ids: Tensor, real: Tensor) -> object:
        return tried.call(model, ids, attention_mask=real.to(dtype))

    return masked


def check_padding_ignored(
    tried: Subject, side: str = EVERY_SIDE, masked: Masked | None = None
) -> Passed:
    """Padded tokens do not affect others, see `assert_padding_ignored`."""
    if side not in (EVERY_SIDE, *PADDINGS):
        raise CannotCheck(f'side is "{side}"; give {", ".join(PADDINGS)}, or {EVERY_SIDE}')
    call = masked or mask_argument(tried)
    T = tried.accepted_length(min(PADDED, tried.dense_length))
    visits = Visits(tried, "padding ")
    wanted = PADDINGS if side == EVERY_SIDE else (side,)
    sides, refused = _accepted_sides(tried, wanted, call, T)
    visits.not_tried += refused
    for state in visits.through(PADDING_STATES):
        # Of a large model, states beside evaluation mode are tried with one side.
        every_side = state == EVALUATION or tried.effort.every_state
        sides_of_state = sides if every_side else sides[:1]
        with visits.noting(state):
            subject = replace(tried, held_before=bool(visits.held_in))
            _require_unread_in_some_dtype(subject, state, sides_of_state, call, T)
    visits.held_in += _causal_beside_padding(tried, sides)
    visits.remarks += _against_the_row_alone(tried, sides, call, T)
    _, *counts = (~padded_rows("left", T)).sum(1).tolist()  # of padded tokens, the first is 0
    said = f"padding is not read (mask: 1 = token), {ranges_in_words(counts)} of {T} tokens"
    return visits.passed(f"{said}: {', '.join(sides)}")


def _accepted_sides(
    tried: Subject, sides: tuple[str, ...], call: Masked, T: int
) -> tuple[tuple[str, ...], list[str]]:
    """On which of the sides the model takes padding, and a phrase for the report on each one that
    it deliberately refuses; CannotCheck if it refuses all. A crash is raised."""
    taken: list[str] = []
    refused: list[str] = []
    with tried.in_state(EVALUATION) as there:
        for side in sides:
            masked = _with_mask(call, padded_rows(side, T)[-1:])
            try:
                replace(there, rows=1, fixed_rows=False, call=masked)(there.draw(1, T))
            except PROBE_ERRORS as error:
                if isinstance(error, CannotCheck) or not is_deliberate(error):
                    raise
                refused.append(f"padding, {side}, which is refused ({in_one_line(error)})")
            else:
                taken.append(side)
    if not taken:
        raise CannotCheck(refused[0])
    return tuple(taken), refused


def padded_rows(side: str, T: int) -> Tensor:
    """Where three rows of T have tokens, (3, T) bool: the first has no padding, and the others
    have it on a side, as many tokens as two different primes, so that no chunks of tokens hide
    it."""
    at = torch.arange(T)
    fewer = prime_up_to(T // 3)
    more = max(prime_up_to(3 * T // 5), fewer + 1)
    n = torch.tensor([T, T - fewer, T - more])[:, None]
    match side:
        case "left":
            return at >= T - n
        case "right":
            return at < n
        case "both sides":
            begin = (T - n) // 2
            return (at >= begin) & (at < begin + n)
        case _:  # n tokens, half of them before the padding and half after
            return (at < n // 2) | (at >= T - (n - n // 2))


def _with_mask(call: Masked, real: Tensor) -> Call:
    """The call of a model with inputs and a mask, which is always `real` (B, T), True = token."""

    def called(model: Model, x: Tensor) -> object:
        return call(model, x, real.long().to(x.device))

    return called


class NotFinite(CheckFailed):
    """Outputs at tokens beside padding are NaN or infinite."""


def _require_unread_in_some_dtype(
    tried: Subject, state: State, sides: tuple[str, ...], call: Masked, T: int
) -> None:
    """CheckFailed if padding is read in a state; in the model's own dtype if outputs are not
    finite in the best one: a mask that is filled with the lowest number of one dtype may be lost
    in another."""
    try:
        _require_unread_in(tried, state, sides, call, T)
    except NotFinite:
        if tried.best_dtype is None:
            raise
        _require_unread_in(tried, replace(state, in_own_dtype=True), sides, call, T)


def _require_unread_in(
    tried: Subject, state: State, sides: tuple[str, ...], call: Masked, T: int
) -> None:
    """CheckFailed if padding on one of the sides is read in a state."""
    with tried.in_state(state) as there:
        # Only what calls change, as in training mode, is undone: padded rows must stay together.
        undone = replace(there, restore_each_call=steady(there).restore_each_call)
        for side in sides:
            _require_unread(undone, side, call, T)


def _padding_batches(tried: Subject, side: str, T: int) -> list[Tensor]:
    """Where the rows of each batch to try have tokens, (B, T) bool: rows with different padding
    together, and one row alone. A large model gets fewer rows and, unless padding is on the left,
    no row alone; a model that takes one row at a time gets each padded row alone."""
    without, less, more = padded_rows(side, T).split(1)
    if tried.rows == 1:
        return [less, more]
    if tried.effort.every_padding:
        return [torch.cat([without, less, more]), more]
    if side == "left":
        return [torch.cat([without, less]), more]
    return [torch.cat([less, more])]


def _require_unread(tried: Subject, side: str, call: Masked, T: int) -> None:
    """CheckFailed if outputs at tokens move as padded tokens are replaced, in one of the batches
    of `_padding_batches`; `NotFinite` if outputs at tokens are not finite."""
    for real in _padding_batches(tried, side, T):
        rows = len(real)
        padded = replace(tried, rows=rows, call=_with_mask(call, real), seed_each_call=True)
        ids = tried.draw(rows, T)
        is_token = real.view(*real.shape, *[1] * (ids.ndim - 2))
        new_ids = torch.where(is_token, ids, tried.other_inputs(ids))
        outputs = padded(ids)
        change = relative(padded(new_ids)[real], outputs[real])
        if change <= MOVED:
            continue
        finite = bool(outputs[real].isfinite().all())
        if finite and is_rounding(tried, partial(_difference, padded, new_ids, ids, real)):
            continue
        count = "1 row" if rows == 1 else f"{rows} rows"
        where = f"with padding, {side}, in {count} (mask: 1 = token)"
        if not finite:
            raise NotFinite(
                f"{where}, outputs of the rest are NaN or infinite",
                "as if a query without keys reached them: let padded queries see themselves",
                state=str(tried.state),
            )
        inverted = replace(padded, call=_with_mask(call, ~real))
        # False if the model raises an error with that mask: then it is not known to be the cause.
        if cause_from(partial(_ignores_padding, inverted, ids, new_ids, real), unknown=False):
            look = "with a mask of 0 = token they do not: is the mask meant the other way around?"
            grave = False
        else:
            look = "keep them out of attention, of states, and of places that tokens compete for"
            grave = True
        raise tried.failed(
            f"{where}, other inputs at the padding change the outputs of the rest by {change:.2g} "
            "of their std",
            look,
            grave=grave,
        )


def _ignores_padding(tried: Subject, ids: Tensor, new_ids: Tensor, real: Tensor) -> bool:
    """Whether outputs at tokens, where `real` (B, T) is true, depend on earlier tokens, but not on
    padding, at which alone the ids differ."""
    moved = relative(tried(new_ids)[real], tried(ids)[real])
    # Padding is also unread if nothing is read, as under a mask of queries instead of keys.
    return moved <= MOVED and _reads_first_token(tried, ids, real)


def _reads_first_token(tried: Subject, ids: Tensor, real: Tensor) -> bool:
    """Whether outputs at later tokens depend on the first token of their row; `real` (B, T) is
    true at tokens."""
    rows = torch.arange(len(real))
    first = real.int().argmax(1)
    later = real.clone()
    later[rows, first] = False
    new_ids = ids.clone()
    new_ids[rows, first] = tried.other_inputs(ids)[rows, first]
    return relative(tried(new_ids)[later], tried(ids)[later]) > MOVED


def _difference(tried: Subject, new_ids: Tensor, ids: Tensor, real: Tensor) -> Tensor:
    """By how much outputs differ at tokens, where `real` (B, T) is true: (number of tokens, V)."""
    return (tried(new_ids) - tried(ids))[real]


def _causal_beside_padding(tried: Subject, sides: tuple[str, ...]) -> list[str]:
    """CheckFailed if tokens beside padding on one of the sides read later ones, unless they also
    do so without padding, as in an encoder. Returns the states in which they read none, in words;
    without those in which the model raises an error."""
    states: list[str] = []
    for side in sides:
        padding = f"padding on the {side}"
        if padding not in tried.optional_tensors:
            continue
        modes = PACKED_MODES if tried.effort.given_in_training else PACKED_MODES[:1]
        for mode in modes if tried.weights else (EVALUATION,):
            state = replace(mode, given_tensor=padding)
            try:
                _require_causal_in(replace(tried, held_before=True), state)
            except REFUSALS as error:
                if isinstance(error, CheckFailed) and not _reads_ahead_in(tried, mode):
                    raise
                continue  # an encoder; or an error with padding, which is told already
            states.append(str(state))
    return states


def _require_causal_in(tried: Subject, state: State) -> None:
    """CheckFailed if an output depends on a later input in a state."""
    with tried.in_state(state) as there:
        require_causal(steady(there), there.dense_length)


def _reads_ahead_in(tried: Subject, state: State) -> bool:
    """Whether an output depends on a later input in a state."""
    try:
        _require_causal_in(tried, state)
    except CheckFailed:
        return True
    return False


def _against_the_row_alone(
    tried: Subject, sides: tuple[str, ...], call: Masked, T: int
) -> list[str]:
    """Remarks: one on a mask of ones, if outputs differ from those without a mask; else one on
    each side, left or right, on which a padded row gets other outputs than alone. Padding between
    tokens is not compared, for a right model may count its places."""
    change = _change_by_padding(tried, call, torch.ones(1, T, dtype=torch.bool))
    if change > 1e-5:
        return [f"a mask of ones gives other outputs than no mask, by {change:.2g} of the std"]
    remarks: list[str] = []
    for side in ("left", "right"):
        if side not in sides:
            continue
        _, *padded = padded_rows(side, T).split(1)  # the first row has no padding
        for real in padded if tried.effort.every_padding else padded[-1:]:
            change = _change_by_padding(tried, call, real)
            if change > 1e-5:
                remarks.append(
                    f"a row of {int(real.sum())} tokens padded on the {side} gets other outputs "
                    f"than alone, by {change:.2g} of the std: it depends on how much padding "
                    "there is"
                )
                break
    return remarks


def _change_by_padding(tried: Subject, call: Masked, real: Tensor) -> float:
    """By how much outputs at the tokens of a padded row differ from those of the tokens alone,
    without a mask, where `real` (1, T) is true at tokens; 0 if only by rounding, or if the model
    refuses one of the calls."""
    with tried.in_state(EVALUATION) as there:
        there = steady(there)
        ids = there.draw(1, real.shape[1])
        padded = replace(there, rows=1, call=_with_mask(call, real), fixed_rows=False)
        alone = replace(there, rows=1, fixed_rows=False)

        def both() -> tuple[Tensor, Tensor]:
            """The outputs of the tokens in the padded row, and those of the tokens alone."""
            return padded(ids)[:, real[0]], alone(ids[:, real[0]])

        def difference() -> Tensor:
            in_padded_row, by_themselves = both()
            return in_padded_row - by_themselves

        try:
            change = relative(*both())
        except REFUSALS:  # such as a model of one length
            return 0.0
        return 0.0 if change <= 1e-5 or is_rounding(there, difference) else change


# ---- documents


@as_assertion
def assert_documents_separate(
    model: Model,
    sample: Tensor | None = None,
    *,
    separator: int | None = None,
    call: Numbered | None = None,
    reset_positions: bool = False,
    **sizes: Unpack[Sizes],
) -> str:
    """Assert that nothing crosses the borders of three packed documents, in evaluation and in
    training mode.

    Args:
        separator: the id that begins or ends a document.
        call: from the model, ids, and each token's document (B, T) to what the model returns; by
            default the argument of the model that is named so, such as `document_ids`.
        reset_positions: whether a packed document should also get the outputs that it gets alone.
    """
    tried = prepared(model, sample, **sizes)
    if separator is None and call is None:
        call = documents_argument(tried)
    return str(check_documents_separate(tried, separator, call, reset_positions=reset_positions))


def documents_argument(tried: Subject) -> Numbered:
    """The call that gives the numbers of documents as the argument that is named so; if there are
    several, as the first with which calls have worked. CannotCheck if there is none."""
    names = [name for name in DOCUMENTS if name in arguments_of(tried.model)]
    if not names:
        raise CannotCheck("give separator, or call(model, ids, document)")
    worked = [tensor.name for tensor in tried.optional_tensors.values() if tensor.name in names]
    name = [*worked, *names][0]

    def numbered(model: Model, ids: Tensor, document: Tensor) -> object:
        return tried.call(model, ids, **{name: document})

    return numbered


def check_documents_separate(
    tried: Subject,
    separator: int | None = None,
    call: Numbered | None = None,
    *,
    reset_positions: bool = False,
) -> Passed:
    """Nothing crosses the borders of documents, see `assert_documents_separate`; CannotCheck if
    the model refuses documents. That a packed document gets other outputs than alone is a remark,
    or with `reset_positions` a fault."""
    if separator is None and call is None:
        call = documents_argument(tried)
    visits = Visits(tried, "documents ")
    for state in visits.through(PACKED_MODES):
        refused = "a mark of documents is refused"
        with not_applicable_if_refused(refused), visits.visit(state) as there:
            change = _require_documents_apart(there, separator, call)
            if change <= 1e-3:
                continue
            said = f"a packed document gets other outputs than alone, by {change:.2g} of their std"
            if reset_positions:
                raise there.failed(said, "does something count from the first token of the row?")
            if state == EVALUATION:
                visits.remarks.append(said)
    return visits.passed("a document does not read those before it")


def _require_documents_apart(
    tried: Subject,
    separator: int | None,
    call: Numbered | None,
) -> float:
    """CheckFailed if one of three packed documents reads another, or if documents of one row
    change another row. Returns by how much the outputs of the middle document differ from those
    that it gets alone; 0 if that is not compared.

    Documents begin at their number for `call`, or else at the id `separator`.
    """
    tried = steady(tried)
    T = tried.accepted_length(32)
    at = torch.arange(T)
    borders = torch.tensor([T // 3, 2 * T // 3])  # where documents begin, or separators are
    (x,) = tried.draw(1, T)
    other = tried.other_inputs(x)
    if separator is not None:
        for ids in (x, other):
            ids[ids == separator] = tried.usable_ids[tried.usable_ids != separator][0]
            ids[borders] = separator
    document = torch.bucketize(at, borders, right=True)  # (T,): 0, 1 or 2
    # A separator is in the document before it as an output, and in the one after it as an input:
    # it may be the last token or the first one.
    of_output = document if call is not None else torch.bucketize(at, borders)
    crosses = document[:, None] < of_output  # (T, T): from the input j to the output t
    in_prefix = torch.maximum(at[:, None], at) < tried.prefix  # where all may see each other
    crosses &= ~in_prefix

    def outputs(ids: Tensor, document: Tensor) -> Tensor:
        """The outputs for ids (B, T), each token of which is in a document, (T,) or (B, T)."""
        if call is None:
            return tried(ids)
        return replace(tried, call=partial(_call_with_documents, call, document))(ids)

    whole = outputs(x[None], document)
    if not bool(whole.isfinite().all()):
        raise tried.failed(
            f"with documents that begin at {borders.tolist()}, outputs are NaN or infinite"
        )
    one_input = torch.eye(T, dtype=torch.bool).view(T, T, *[1] * (x.ndim - 1))
    moved = (outputs(torch.where(one_input, other, x), document) - whole).abs().amax(-1)  # (T, T)
    tolerance = max(1e-6, tried.tolerance)
    crossing = ((moved > tolerance * moved.max()) & crosses).nonzero().tolist()
    if crossing:
        j, t = crossing[-1]
        raise tried.failed(
            f"output {t} depends on input {j} ({len(crossing)} pairs), across the borders of "
            f"documents at {borders.tolist()}",
            "block keys of others, and reset what a shift, a convolution or a state carries",
        )
    takes_two_rows = tried.rows > 1 and not tried.fixed_rows
    if call is not None and takes_two_rows:
        later = torch.bucketize(at, borders + 2, right=True)
        _require_own_documents(tried, outputs, x, document, later)
    if tried.state.in_own_dtype:
        return 0.0  # rounding is another one at another length
    begin, end = borders.tolist()
    first = begin if call is not None else begin + 1  # the first token behind a separator
    changes = []
    for start in (begin, first):  # alone, the document may have its separator or not
        alone = outputs(x[None, start:end], torch.zeros(end - start, dtype=torch.int64))
        changes.append(relative(alone[:, first - start :], whole[:, first:end]))
    return min(changes)


def _require_own_documents(
    tried: Subject,
    outputs: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    document: Tensor,
    other: Tensor,
) -> None:
    """CheckFailed if other documents in one row of a batch change the outputs of another row.

    Args:
        outputs: of ids (B, T, ...) and the number of each token's document (B, T).
        x, document: the inputs (T, ...) and documents (T,) of each of two rows.
        other: the documents that one of the rows gets instead (T,). There are as many of them, for
            some models stack the lengths of the documents of all rows.
    """
    two = torch.stack([x, x])
    alike = torch.stack([document, document])
    for row, changed_row in ((0, 1), (1, 0)):
        different = alike.clone()
        different[changed_row] = other
        change = relative(outputs(two, different)[row], outputs(two, alike)[row])
        if change > max(1e-6, tried.tolerance):
            raise tried.failed(
                f"the documents of row {changed_row} of a batch change the outputs of row {row}, "
                f"by {change:.2g} of their std",
                "use the documents of each row for itself",
            )


def _call_with_documents(call: Numbered, document: Tensor, model: Model, x: Tensor) -> object:
    """What a model returns for x (B, T, ...) and the number of each token's document: (T,), the
    same in each row, or (B, T)."""
    return call(model, x, document.expand(len(x), -1).to(x.device))
