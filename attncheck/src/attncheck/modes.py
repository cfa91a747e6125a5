"""Are outputs the same again, alone, and in training mode? Chance, rows, and the two modes.

Letters: B batch, T time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from torch import Tensor
from typing_extensions import Unpack

from .calls import DOCUMENTS, Model, module_of
from .outcomes import REFUSALS, CannotCheck, CheckFailed, Passed, as_assertion, in_one_line
from .states import (
    EVALUATION,
    TRAINING,
    State,
    Weights,
    changed_by_a_call,
    seed_all,
)
from .subject import (
    MOST_ROWS,
    OptionalTensor,
    SizesAndCall,
    Subject,
    call_with,
    is_rounding,
    prepared,
    relative,
    two_documents,
)
from .visits import Visits

SAME_OUTPUTS = 1e-5  # of the standard deviation; two calls of the same kernels differ by less
# So many, at most, for a model that draws random numbers: if one of ten seeds changes outputs,
# 64 seeds miss it once in 850 times.
SEEDS = 64
COMPARED_MODES = (TRAINING, replace(TRAINING, weights=Weights.LARGER))  # compared with evaluation


# ---- the same outputs again


@as_assertion
def assert_deterministic(
    model: Model, sample: Tensor | None = None, **given: Unpack[SizesAndCall]
) -> str:
    """Assert that in evaluation mode the same inputs give the same outputs, and that in training
    mode, with the same random seed, they do not depend on the inputs of earlier calls.

    In evaluation mode also with each optional tensor that is known, which must not change the
    outputs of later calls without it, or with another one.
    """
    return str(check_deterministic(prepared(model, sample, **given)))


def check_deterministic(tried: Subject) -> Passed:
    """The same inputs give the same outputs, see `assert_deterministic`."""
    visits = Visits(tried)
    with visits.visit(State(in_own_dtype=True)) as there:
        x = there.draw(1, there.usual_length)
        require_memoryless(there, x)
        outputs, draws = require_same_twice(there, x)
        if draws:
            visits.remarks.append(
                "in evaluation mode a call draws random numbers, though outputs were the same "
                f"with {SEEDS} random seeds"
            )
        _require_the_same_after_other_lengths(there, x)
        _require_the_same_with_given(there, x, outputs)
    if tried.weights:
        with visits.visit(TRAINING) as there:
            if require_memoryless(there, x):
                visits.remarks.append(
                    "in training mode outputs depend on the number of earlier calls"
                )
    return visits.passed("in evaluation mode the same inputs give the same outputs")


def require_same_twice(tried: Subject, x: Tensor) -> tuple[Tensor, bool]:
    """CheckFailed if x gets other outputs the second time in evaluation mode, or with another seed
    if calls draw random numbers. Returns the outputs, and whether they do.

    For a model that remembers nothing, see `require_memoryless`.
    """
    with tried.restoring():
        first = tried(x)
        again, draws = tried.unseeded_outputs(x)
        change = max(relative(again, first), _by_another_seed(tried, x, first) if draws else 0)
    if not change > SAME_OUTPUTS:  # NaN is another fault
        return again, draws
    seeded = f"{'but the same' if draws else 'also'} with the same random seed"
    raise tried.failed(
        f"in evaluation mode the same inputs give different outputs, by {change:.2g} of their "
        f"std, {seeded}",
        "look for dropout or noise that is on: F.scaled_dot_product_attention ignores eval()"
        if tried.weights
        else "call eval() first; no torch module is known behind this function",
    )


def require_memoryless(tried: Subject, x: Tensor) -> bool:
    """CheckFailed if outputs depend on the inputs of earlier calls, all with the same random seed;
    no grave one in training mode if what a call changes is saved with the model. Returns whether
    outputs depend on how many calls were before."""
    tried = replace(tried, seed_each_call=True)
    with tried.restoring():
        first = tried(x)
        after_itself = tried(x)
    with tried.restoring():
        tried(tried.other_inputs(x))
        after_another = tried(x)
    change = relative(after_another, after_itself)
    if change > SAME_OUTPUTS:
        names = _left_changed(tried, x)
        raise tried.failed(
            f"outputs depend on the inputs of earlier calls, by {change:.2g} of their std, even "
            "with the same random seed",
            _what_changes("a call", names),
            grave=not (tried.state.training and _are_saved(tried, names)),
        )
    return relative(first, after_itself) > SAME_OUTPUTS


def _require_the_same_after_other_lengths(tried: Subject, x: Tensor) -> None:
    """CheckFailed if a call with the text x (1, T, ...) changes the outputs of the next call, with
    half of it, or the other way around. Nothing is tried if the model is of one length."""
    long = x.shape[1]
    short = tried.accepted_length(long // 2)
    if not 0 < short < long:
        return
    for earlier, later in ((x, x[:, :short]), (x[:, :short], x)):
        said = _other_outputs_after(tried, earlier, later)
        if said:
            raise tried.failed(said, _what_changes("such a call", _left_changed(tried, earlier)))


def _other_outputs_after(tried: Subject, earlier: Tensor, later: Tensor) -> str:
    """A sentence if a later text (1, T, ...) gets other outputs after an earlier one than without
    it, or is refused then; "" if not. CheckFailed if it gets NaN or infinity without it."""
    lengths = f"after a text of {earlier.shape[1]}, a text of {later.shape[1]}"

    def outputs_of_last(*texts: Tensor) -> Tensor:
        """The outputs for the last of the texts, which are given one after another."""
        with tried.restoring():
            return [tried(text) for text in texts][-1]

    def difference() -> Tensor:
        return outputs_of_last(earlier, later) - outputs_of_last(later)

    first = outputs_of_last(later)
    if not first.isfinite().all():
        raise tried.failed(f"outputs are NaN or infinite in sequences of {later.shape[1]}")
    try:
        after = outputs_of_last(earlier, later)
    except REFUSALS as error:
        return f"{lengths} is refused, which is taken at first: {in_one_line(error)}"
    change = relative(after, first)
    if change <= SAME_OUTPUTS or is_rounding(tried, difference):
        return ""
    return f"{lengths} gets other outputs than at first, by {change:.2g} of their std"


def _left_changed(tried: Subject, x: Tensor) -> list[str]:
    """The names of the numbers and tensors of the model that a call with x changes; the model is
    restored."""
    with tried.restoring():
        return changed_by_a_call(tried.model, lambda: tried(x))


def _what_changes(call: str, names: list[str]) -> str:
    """What a call, such as "a call", leaves changed, in a sentence with the first five names."""
    if not names:
        return "look for a cache, a buffer or a counter that a call leaves changed"
    return f"{call} changes {', '.join(names[:5])}"


def _are_saved(tried: Subject, names: list[str]) -> bool:
    """Whether all that a call changes, by these names, is saved with the model, as a statistic is:
    that of a norm, the load of experts, the entries of a codebook. False if there are no names."""
    module = module_of(tried.model)
    return bool(names) and module is not None and set(names) <= set(module.state_dict())


def _require_the_same_with_given(tried: Subject, x: Tensor, after_plain: Tensor) -> None:
    """CheckFailed if two calls with the same optional tensor give different outputs, also with
    another one in between, or if such a call changes the outputs of a later call without it.

    `after_plain` are the outputs for x after a call without the tensor. Of a large model, only one
    of the tensors is tried.
    """
    most = None if tried.effort.every_state else 1
    for name, optional in list(tried.optional_tensors.items())[:most]:
        judged = optional.judged(x.shape[1])
        call = partial(call_with, optional, tried.call)
        given = replace(tried, call=call, state=replace(tried.state, given_tensor=name))
        with tried.restoring():
            first = given(x)[:, judged]
            again = given(x)[:, judged]
            after_given = tried(x)
        if not bool(first.isfinite().all()):
            continue  # see `assert_padding_ignored`
        change = relative(again, first)
        if change > SAME_OUTPUTS:
            raise given.failed(
                f"the same inputs give different outputs, by {change:.2g} of their std",
                "look for dropout that is on where the mask is used",
            )
        change = relative(after_given, after_plain)
        if change > SAME_OUTPUTS:
            raise given.failed(
                f"after a call with {name}, outputs of calls without it are others, by "
                f"{change:.2g} of their std",
                _what_changes("such a call", _left_changed(given, x)),
            )
    for optional in list(tried.optional_tensors.values())[:most]:
        _require_the_same_after_others(tried, x, optional)


def _require_the_same_after_others(tried: Subject, x: Tensor, optional: OptionalTensor) -> None:
    """CheckFailed if x (B, T, ...) with an optional tensor gets other outputs after a call with
    another value of it."""
    judged = optional.judged(x.shape[1])
    call = partial(call_with, optional, tried.call)
    given = replace(tried, call=call, state=replace(tried.state, given_tensor=optional.said))
    for between in _others_like(tried, optional):
        with tried.restoring():
            first = given(x)[:, judged]
        with tried.restoring():
            replace(tried, call=partial(call_with, between, tried.call))(x)
            after = given(x)[:, judged]
        change = relative(after, first)
        if change > SAME_OUTPUTS:  # NaN is another fault
            raise given.failed(
                f"after a call with {between.said}, outputs of a call with {optional.said} are "
                f"others, by {change:.2g} of their std",
                "look for a mask that is kept, as by its shape",
            )


def _others_like(tried: Subject, optional: OptionalTensor) -> list[OptionalTensor]:
    """One other value of the same argument, in a list: another mask, or other documents; none if
    only one mask is known."""
    if optional.name in DOCUMENTS:
        return [replace(optional, said=f"{optional.name} of two", values=two_documents)]
    masks = tried.optional_tensors.values()
    return [mask for mask in masks if mask.name == optional.name and mask != optional][:1]


# ---- rows


@as_assertion
def assert_rows_independent(
    model: Model, sample: Tensor | None = None, **given: Unpack[SizesAndCall]
) -> str:
    """Assert that in evaluation mode no row depends on another, or on the size of the batch."""
    return str(check_rows_independent(prepared(model, sample, **given)))


def check_rows_independent(tried: Subject) -> Passed:
    """No row of a batch depends on another, see `assert_rows_independent`."""
    if tried.rows == 1:
        raise CannotCheck("the model takes one sequence at a time")
    with tried.in_state(EVALUATION) as there:
        require_rows_apart(there)
    said = f"rows of a batch of {rows_compared(tried)} do not depend on each other"
    return Passed(said, states=(str(EVALUATION),))


def rows_compared(tried: Subject) -> int:
    """The size of the batch whose rows are compared with themselves alone: as many as a call of
    any other property has, of a large model fewer."""
    affordable = tried.affordable_sequences(tried.usual_length, share=0.25)
    return tried.rows_at_once(max(tried.effort.rows_mixed, min(MOST_ROWS, affordable)))


def require_rows_apart(tried: Subject) -> None:
    """CheckFailed if a row depends on another one or, in evaluation mode, on where in a batch it
    is."""
    said = rows_mixed(tried)
    if said:
        raise tried.failed(
            said,
            "look for a statistic over the batch, or for batch and time that are exchanged "
            "(batch_first=True)",
        )
    x = tried.draw(rows_compared(tried), tried.usual_length)
    # Where calls draw random numbers, as for dropout, those of a row depend on its place.
    if tried.state.training or relative(tried(x), tried(x)) > SAME_OUTPUTS:
        return
    said = _other_outputs_in_another_row(tried, x)
    if not said and not tried.fixed_rows:  # else it takes no row alone
        said = _other_outputs_alone(tried, x)
    if said:
        raise tried.failed(said)


def rows_mixed(tried: Subject) -> str:
    """Which row of a batch changes the outputs of which other if its inputs change, in words; ""
    if none does. CheckFailed if outputs are not finite."""
    B = tried.rows_at_once(tried.effort.rows_mixed)
    # In one call, also if the subject is called row by row; seeded, so that only x changes.
    in_one_call = replace(tried, rows=max(B, tried.rows), seed_each_call=True)
    x = tried.draw(B, tried.usual_length)
    other = tried.other_inputs(x)
    outputs = in_one_call(x)
    if not bool(outputs.isfinite().all()):
        raise tried.failed(f"outputs are NaN or infinite in sequences of {tried.length}")
    limit = max(1e-6, tried.tolerance) * float(outputs.std())
    for row in range(B):
        changed_row = x.clone()
        changed_row[row] = other[row]
        moved = (in_one_call(changed_row) - outputs).abs().amax(-1)  # (B, T)
        moved[row] = 0
        if not float(moved.max()) <= limit:  # not >, so that NaN is found
            return f"row {row} of a batch changes the outputs of row {moved.amax(-1).argmax()}"
    return ""


def _other_outputs_alone(tried: Subject, x: Tensor) -> str:
    """A sentence if a row of x (B, T, ...) gets other outputs alone; "" if none does."""
    one_by_one = replace(tried, rows=1)

    def difference() -> Tensor:
        return one_by_one(x) - tried(x)

    change = relative(one_by_one(x), tried(x))
    if change <= SAME_OUTPUTS or is_rounding(tried, difference):
        return ""
    row = int(difference().abs().amax((1, 2)).argmax())
    return (
        f"a row alone gets other outputs than as row {row} of a batch of {len(x)}, by "
        f"{change:.2g} of the std"
    )


def _other_outputs_in_another_row(tried: Subject, x: Tensor) -> str:
    """A sentence if the texts x (B, T, ...) get other outputs in other rows of the batch; "" if
    they do not."""

    def outputs_in_other_rows() -> Tensor:
        """The outputs for x, each text of which is given in the next row."""
        return tried(x.roll(1, 0)).roll(-1, 0)

    def difference() -> Tensor:
        return outputs_in_other_rows() - tried(x)

    change = relative(outputs_in_other_rows(), tried(x))
    if change <= SAME_OUTPUTS or is_rounding(tried, difference):
        return ""
    return (
        f"a text gets other outputs in another row of the batch, by {change:.2g} of the std\n"
        "look for positions, a mask or a bias that run over the batch, not over time"
    )


# ---- training against evaluation


@as_assertion
def assert_modes_agree(
    model: Model, sample: Tensor | None = None, **given: Unpack[SizesAndCall]
) -> str:
    """Assert that in training mode, without dropout, a model computes what it computes in
    evaluation mode, also with larger weights. Statistics of the batch are told as such."""
    return str(check_modes_agree(prepared(model, sample, **given)))


def check_modes_agree(tried: Subject) -> Passed:
    """Training mode computes what evaluation mode does, see `assert_modes_agree`."""
    if not tried.weights:
        raise CannotCheck("no torch module is known behind the model, which has no modes")
    B = tried.rows_at_once(2)
    x = tried.draw(B, tried.usual_length)
    not_tried: list[str] = []
    states: list[str] = []
    modes_round = False  # whether the modes differ, but only by rounding
    for state in COMPARED_MODES:
        if modes_round:  # with larger weights it would look like a difference, see `is_rounding`
            not_tried.append(f"{state}, for the modes differ by rounding")
            continue
        with tried.in_state(replace(state, training=False)) as evaluation:
            try:
                trained, by_chance = _outputs_and_chance(tried, state, x)
            except REFUSALS as error:
                if state == TRAINING:
                    raise
                not_tried.append(f"{state}: {in_one_line(error)}")
                continue
            if not bool(trained.isfinite().all()):
                not_tried.append(f"{state}, in which outputs are not finite")
                continue
            evaluated = evaluation(x)
            if trained.shape != evaluated.shape:
                raise CannotCheck("outputs in training mode are of another shape")
            change = relative(trained, evaluated)
        states.append(str(state))
        if change <= 1e-7:  # most models compute the very same
            continue
        if not _modes_differ(tried, state, x):
            modes_round = change > SAME_OUTPUTS
            continue
        if by_chance > SAME_OUTPUTS:
            not_tried.append(
                f"{state} against evaluation mode, for it draws random numbers beside dropout"
            )
            continue
        why, grave = _why_modes_differ(tried, state, x)
        raise CheckFailed(
            f"{state} and without dropout, outputs differ from those in evaluation mode, by "
            f"{change:.2g} of their std",
            why,
            grave=grave,
            state=str(state),
        )
    said = "training mode without dropout computes what evaluation mode does"
    if not_tried and not states:
        said = "training mode was not compared with evaluation mode"
    return Passed(said, states=tuple(states), not_tried=tuple(not_tried))


def _outputs_and_chance(tried: Subject, state: State, x: Tensor) -> tuple[Tensor, float]:
    """The outputs for x in the mode of a state, see `_in_mode_of`, and by how much another random
    seed changes them; 0 if a call draws no random numbers."""
    with _in_mode_of(tried, state) as there:
        outputs = there(x)
        with there.restoring():
            _, draws = there.unseeded_outputs(x)
        return outputs, _by_another_seed(there, x, outputs) if draws else 0.0


def _why_modes_differ(tried: Subject, state: State, x: Tensor) -> tuple[str, bool]:
    """What explains in a sentence that outputs for x are others in a state of training mode, and
    whether it is grave: not if rows of a batch mix, or if outputs depend on earlier calls."""
    with tried.in_state(state) as there:
        there = replace(there, seed_each_call=True, restore_each_call=True)
        mixed = rows_mixed(there) if tried.rows > 1 else ""
        counts = require_memoryless(replace(there, restore_each_call=False), x)
    if mixed:
        return f"in training mode {mixed}: a statistic of the batch", False
    if counts:
        return "in training mode they depend on the number of earlier calls", False
    why = "neither chance nor other rows explain it: look for code that asks self.training"
    return why, True


def _by_another_seed(tried: Subject, x: Tensor, before: Tensor) -> float:
    """By how much the outputs for x, which are `before` with one random seed, change with the
    first of other seeds that changes them; 0 if none does."""
    for seed in range(1, SEEDS + 1):
        seed_all(seed, tried.device)
        change = relative(replace(tried, seed_each_call=False)(x), before)
        if change > SAME_OUTPUTS:
            return change
    return 0.0


def _modes_differ(tried: Subject, state: State, x: Tensor) -> bool:
    """Whether the outputs for x in a state of training mode differ from those in the same state of
    evaluation mode by more than rounding."""
    evaluation = replace(state, training=False)

    def difference() -> Tensor:
        """Of the weights that the model has now, which `is_rounding` changes."""
        with _in_mode_of(tried, state) as there:
            trained = there(x)
        with _in_mode_of(tried, evaluation) as there:
            return trained - there(x)

    with tried.in_state(evaluation) as there:
        return not is_rounding(there, difference)


@contextmanager
def _in_mode_of(tried: Subject, state: State) -> Iterator[Subject]:
    """The subject inside of `in_state`, in the mode of another state that has the same weights and
    the same dtype, which are not changed again; each call is seeded, and what it changes is
    restored."""
    mode_alone = replace(state, weights=Weights.OWN, in_own_dtype=True)
    with tried.in_state(mode_alone) as there:
        yield replace(there, state=state, seed_each_call=True, restore_each_call=True)
