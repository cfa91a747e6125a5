"""Properties of one call: chance, rows, training against evaluation, gradients, precision.

Letters: B batch, T time, V symbols.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from .calls import Model, outputs_of, parts_below
from .causal import steady
from .outcomes import REFUSALS, CannotCheck, CheckFailed, Passed, in_one_line
from .states import (
    EVALUATION,
    TRAINING,
    State,
    Weights,
    beside_evaluation,
    changed,
    changed_by_a_call,
    noise_for,
    seed_all,
    with_repeated,
    without_probabilities,
)
from .subject import (
    SizesAndCall,
    Subject,
    call_with_given,
    is_rounding,
    prepared,
    relative,
)

SAME_OUTPUTS = 1e-5  # of the standard deviation; two calls of the same kernels differ by less
COMPARED_MODES = (TRAINING, replace(TRAINING, weights=Weights.LARGER))  # compared with evaluation
# Shares of the weights by which they are moved along the gradient, to see the slope. Small ones
# come first, for the slope changes on the way; the large ones are for models that round.
FINE_SHARES = (1e-8, 3e-8)  # of weights in fp64
STEP_SHARES = (1e-5, 3e-6, 1e-6, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
ROUGH = 2e-3  # two slopes that are further apart say nothing
SMOOTH = 1e-4  # the least difference from the gradient that counts
EXACT_INTEGERS = {"bfloat16": 256, "float16": 2048}  # up to which each is represented


# ---- the same outputs again


def assert_deterministic(
    model: Model, sample: Tensor | None = None, **given: Unpack[SizesAndCall]
) -> str:
    """Assert that in evaluation mode the same inputs give the same outputs, and that in training
    mode, with the same random seed, they do not depend on the inputs of earlier calls.

    In evaluation mode also with each optional tensor that is known, which must not change the
    outputs of later calls without it.
    """
    __tracebackhide__ = True
    return str(check_deterministic(prepared(model, sample, **given)))


def check_deterministic(tried: Subject) -> Passed:
    """The same inputs give the same outputs, see `assert_deterministic`."""
    __tracebackhide__ = True
    with tried.put(State(own_dtype=True)) as there:
        x = there.draw(1, there.usual_length)
        _require_memoryless(replace(there, seeded=True), x)
        first = there(x)
        second = there(x)
    change = relative(second, first)
    if change > SAME_OUTPUTS:
        raise CheckFailed(
            f"in evaluation mode the same inputs give different outputs, by {change:.2g} of their "
            f"std, but the same with the same random seed",
            "look for dropout or noise that is on: F.scaled_dot_product_attention ignores eval()"
            if tried.weights
            else "call eval() first; no torch module is known behind this function",
            state=str(EVALUATION),
        )
    with tried.put(State(own_dtype=True)) as there:
        _require_the_same_after_other_lengths(there, x)
        _require_the_same_with_given(there, x)
    said = "in evaluation mode the same inputs give the same outputs"
    if not tried.weights:
        return Passed(said, states=(str(EVALUATION),))
    remarks: list[str] = []
    not_tried: list[str] = []
    with tried.put(TRAINING) as there:
        try:
            if _require_memoryless(replace(there, seeded=True), x):
                remarks.append("in training mode outputs depend on the number of earlier calls")
        except REFUSALS as error:
            if isinstance(error, CheckFailed):
                raise
            not_tried.append(f"training mode, in which it raises {in_one_line(error)}")
    states = [EVALUATION] if not_tried else [EVALUATION, TRAINING]
    return Passed(said, tuple(remarks), tuple(map(str, states)), tuple(not_tried))


def _require_memoryless(tried: Subject, x: Tensor) -> bool:
    """Whether outputs depend on how many calls were before; CheckFailed if they depend on the
    inputs of those calls. The subject is seeded, so that chance is the same."""
    __tracebackhide__ = True

    def after(before: Tensor | None) -> Tensor:
        with tried.restoring():
            if before is not None:
                tried(before)
            return tried(x)

    fresh = after(None)
    later = after(x)
    change = relative(after(tried.other(x)), later)
    if change > SAME_OUTPUTS:
        mode = "in training mode" if tried.state.training else "in evaluation mode"
        raise CheckFailed(
            f"{mode}, outputs depend on the inputs of earlier calls, by {change:.2g} of "
            f"their std, even with the same random seed",
            "in evaluation mode they do not" if tried.state.training else "",
            _what_changes("a call", tried, x),
            state=str(tried.state),
        )
    return relative(fresh, later) > SAME_OUTPUTS


def _require_the_same_after_other_lengths(tried: Subject, x: Tensor) -> None:
    """CheckFailed if a call with a longer or shorter text changes the outputs of the next call."""
    __tracebackhide__ = True
    long = x.shape[1]
    short = tried.fitting(long // 2)
    if not 0 < short < long:  # a model of one length
        return
    for before, then in ((x, x[:, :short]), (x[:, :short], x)):
        said = _other_after(tried, before, then)
        if said:
            changes = _what_changes("such a call", tried, before)
            raise CheckFailed(said, changes, state=str(EVALUATION))


def _other_after(tried: Subject, before: Tensor, then: Tensor) -> str:
    """A sentence if one text gets other outputs after another one than at first; "" if not.
    CheckFailed if it gets NaN at first."""
    __tracebackhide__ = True
    lengths = f"after a text of {before.shape[1]}, a text of {then.shape[1]}"

    def outputs(*texts: Tensor) -> Tensor:
        """Those of the last of the texts, which follow each other."""
        with tried.restoring():
            return [tried(text) for text in texts][-1]

    def difference() -> Tensor:
        return outputs(before, then) - outputs(then)

    first = outputs(then)
    if not first.isfinite().all():
        T = then.shape[1]
        raise CheckFailed(
            f"outputs are NaN or infinite in sequences of {T}", state=str(EVALUATION)
        )
    try:
        after = outputs(before, then)
    except REFUSALS as error:
        return f"{lengths} is refused, which is taken at first: {in_one_line(error)}"
    change = relative(after, first)
    if change <= SAME_OUTPUTS or is_rounding(tried, difference):
        return ""
    return f"{lengths} gets other outputs than at first, by {change:.2g} of their std"


def _what_changes(call: str, tried: Subject, x: Tensor) -> str:
    """Which numbers and tensors of the model a call with x leaves changed, in words."""
    with tried.restoring():
        names = changed_by_a_call(tried.model, lambda: tried(x))
    if not names:
        return "look for a cache, a buffer or a counter that a call leaves changed"
    return f"{call} changes {', '.join(names[:5])}"


def _require_the_same_with_given(tried: Subject, x: Tensor) -> None:
    """CheckFailed if calls with an optional tensor give different outputs, or change those of a
    later call without it. The subject gives the same outputs without optional tensors."""
    __tracebackhide__ = True
    if not tried.optional:
        return
    with tried.restoring():
        tried(x)
        after_plain = tried(x)
    for name, optional in tried.optional.items():
        judged = optional.judged(x.shape[1])
        given = replace(tried, call=partial(call_with_given, tried.call, optional))
        with tried.restoring():
            first = given(x)[:, judged]
            again = given(x)[:, judged]
            after_given = tried(x)
        if not bool(first.isfinite().all()):
            continue  # see `assert_padding_ignored`
        change = relative(again, first)
        if change > SAME_OUTPUTS:
            raise CheckFailed(
                f"in evaluation mode, with {name}, the same inputs give different outputs, by "
                f"{change:.2g} of their std",
                "look for dropout that is on where the mask is used",
                state=str(State(given=name)),
            )
        change = relative(after_given, after_plain)
        if change > SAME_OUTPUTS:
            raise CheckFailed(
                f"after a call with {name}, outputs of calls without it are others, by "
                f"{change:.2g} of their std",
                _what_changes("such a call", given, x),
                state=str(State(given=name)),
            )


# ---- rows


def assert_rows_independent(
    model: Model, sample: Tensor | None = None, **given: Unpack[SizesAndCall]
) -> str:
    """Assert that in evaluation mode no row depends on another, or on the size of the batch."""
    __tracebackhide__ = True
    return str(check_rows_independent(prepared(model, sample, **given)))


def check_rows_independent(tried: Subject) -> Passed:
    """No row of a batch depends on another, see `assert_rows_independent`."""
    __tracebackhide__ = True
    if tried.rows == 1:
        raise CannotCheck("the model takes one sequence at a time")
    with tried.put(EVALUATION) as there:
        said = rows_mixed(there)
        if said:
            raise CheckFailed(
                said,
                "look for a statistic over the batch, or for batch and time that are exchanged "
                "(batch_first=True)",
                state=str(EVALUATION),
            )
        x = there.draw(tried.batch(tried.effort.rows_mixed), there.usual_length)
        # Dropout that is on in evaluation mode drops others in another batch or row.
        if relative(there(x), there(x)) <= SAME_OUTPUTS:
            said = "" if tried.exact else other_alone(there, x)
            said = said or other_in_another_row(there, x)
            if said:
                raise CheckFailed(said, state=str(EVALUATION))
    said = "rows of a batch do not depend on each other"
    return Passed(said, states=(str(EVALUATION),))


def rows_mixed(tried: Subject) -> str:
    """Which row of a batch changes the outputs of which other, in words; "" if none does."""
    B = tried.batch(tried.effort.rows_mixed)
    whole_batch = replace(tried, rows=max(B, tried.rows), seeded=True)
    x = tried.draw(B, tried.usual_length)
    other = tried.other(x)
    whole = whole_batch(x)
    if not bool(whole.isfinite().all()):
        raise CheckFailed(
            f"outputs are NaN or infinite in sequences of {tried.length}",
            beside_evaluation(tried.state),
            state=str(tried.state),
        )
    limit = max(1e-6, tried.tolerance) * float(whole.std())
    for row in range(B):
        changed_row = x.clone()
        changed_row[row] = other[row]
        moved = (whole_batch(changed_row) - whole).abs().amax(-1)  # (B, T)
        moved[row] = 0
        if not float(moved.max()) <= limit:  # not >, so that NaN is found
            return f"row {row} of a batch changes the outputs of row {moved.amax(-1).argmax()}"
    return ""


def other_alone(tried: Subject, x: Tensor) -> str:
    """A sentence if the first row of x (B, T, ...) gets other outputs alone; "" if it does not."""

    def difference() -> Tensor:
        return tried(x[:1]) - tried(x)[:1]

    change = relative(tried(x[:1]), tried(x)[:1])
    if change <= SAME_OUTPUTS or is_rounding(tried, difference):
        return ""
    return f"a row alone gets other outputs than in a batch, by {change:.2g} of the std"


def other_in_another_row(tried: Subject, x: Tensor) -> str:
    """A sentence if the texts x (B, T, ...) get other outputs in other rows of the batch; "" if
    they do not."""

    def difference() -> Tensor:
        return tried(x.roll(1, 0)).roll(-1, 0) - tried(x)

    change = relative(tried(x.roll(1, 0)).roll(-1, 0), tried(x))
    if change <= SAME_OUTPUTS or is_rounding(tried, difference):
        return ""
    return (
        f"a text gets other outputs in another row of the batch, by {change:.2g} of the std\n"
        "look for positions, a mask or a bias that run over the batch, not over time"
    )


# ---- training against evaluation


def assert_modes_agree(
    model: Model, sample: Tensor | None = None, **given: Unpack[SizesAndCall]
) -> str:
    """Assert that in training mode, without dropout, a model computes what it computes in
    evaluation mode, also with larger weights. Statistics of the batch are told as such."""
    __tracebackhide__ = True
    return str(check_modes_agree(prepared(model, sample, **given)))


def check_modes_agree(tried: Subject) -> Passed:
    """Training mode computes what evaluation mode does, see `assert_modes_agree`."""
    __tracebackhide__ = True
    if not tried.weights:
        raise CannotCheck("no torch module is known behind the model, which has no modes")
    B = tried.batch(2)
    x = tried.draw(B, tried.usual_length)
    not_tried: list[str] = []
    states: list[str] = []
    rounds = False
    for state in COMPARED_MODES:
        if rounds:  # with larger weights that would look like a difference, see `is_rounding`
            not_tried.append(f"{state}, for the modes differ by rounding")
            continue
        with tried.put(replace(state, training=False)) as evaluation:
            try:
                with _in_mode(tried, state) as there:
                    trained = there(x)
                    chance = _by_another_seed(there, x, trained)
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
        if change <= 1e-7:
            continue
        if not _modes_differ(tried, state, x):
            rounds = change > SAME_OUTPUTS
            continue
        if chance > SAME_OUTPUTS:
            not_tried.append(
                f"{state} against evaluation mode, for it draws random numbers beside dropout"
            )
            continue
        said = f"{state} and without dropout, outputs differ from those in evaluation mode"
        with tried.put(state) as there:
            there = replace(there, seeded=True, restored=True)
            mixed = rows_mixed(there) if tried.rows > 1 else ""
            counts = _require_memoryless(replace(there, restored=False), x)
        if mixed:
            why = f"in training mode {mixed}: a statistic of the batch"
        elif counts:
            why = "in training mode they depend on the number of earlier calls"
        else:
            why = "neither chance nor other rows explain it: look for code that asks self.training"
        raise CheckFailed(
            f"{said}, by {change:.2g} of their std",
            why,
            grave=not (mixed or counts),
            state=str(state),
        )
    said = "training mode without dropout computes what evaluation mode does"
    if not_tried and not states:
        said = "training mode was not compared with evaluation mode"
    return Passed(said, states=tuple(states), not_tried=tuple(not_tried))


def _by_another_seed(tried: Subject, x: Tensor, before: Tensor) -> float:
    """By how much outputs change with other random seeds."""
    if not tried.draws_numbers(x):
        return 0.0
    most = 0.0
    for seed in range(1, 9):  # some rarely draw something that matters
        seed_all(seed, tried.device)
        most = max(most, relative(replace(tried, seeded=False)(x), before))
    return most


def _modes_differ(tried: Subject, state: State, x: Tensor) -> bool:
    """Whether outputs in the two modes differ by more than rounding."""
    evaluation = replace(state, training=False, dropout=True)

    def difference() -> Tensor:
        # Weights are changed around both by `is_rounding`, modes inside.
        outputs = []
        for mode in (state, evaluation):
            with _in_mode(tried, mode) as there:
                outputs.append(there(x))
        return outputs[0] - outputs[1]

    with tried.put(evaluation) as there:
        return not is_rounding(there, difference)


@contextmanager
def _in_mode(tried: Subject, state: State) -> Iterator[Subject]:
    """The subject in the mode of a state, with the weights that it has at the moment."""
    own = replace(state, weights=Weights.OWN, own_dtype=True)
    with tried.put(own) as there:
        yield replace(there, state=state, seeded=True, restored=True)


# ---- gradients


def assert_gradients_right(
    model: Model, sample: Tensor | None = None, **given: Unpack[SizesAndCall]
) -> str:
    """Assert that gradients of the weights are the slope of the outputs: along the gradient, a
    random sum of outputs rises by the square of its length. In training mode, with dropout and the
    same random seed."""
    __tracebackhide__ = True
    return str(check_gradients_right(prepared(model, sample, **given)))


def check_gradients_right(tried: Subject) -> Passed:
    """Gradients are the slope of the outputs, see `assert_gradients_right`."""
    __tracebackhide__ = True
    weights = [w for w in tried.weights if w.requires_grad and w.is_floating_point()]
    if not weights:
        raise CannotCheck("no weight of the model is trained")
    with_dropout = replace(TRAINING, dropout=True)
    slope = _slope(tried, with_dropout)
    if slope is None:
        raise CannotCheck("the slope of the outputs is not smooth enough to be compared")
    if slope.right:
        said = "gradients of the weights say how outputs change as the weights move"
        return Passed(said, states=(str(with_dropout),))
    told = (
        f"gradients of the weights are wrong or stopped: if weights move a little, outputs change "
        f"by {slope.ratio:.4g} of what the gradients say"
    )
    if _right_without_dropout(tried):
        raise CheckFailed(
            told,
            "without dropout they are right: the backward pass draws another dropout than the "
            "forward pass, as a checkpoint without preserve_rng_state does",
            state=str(with_dropout),
        )
    raise CheckFailed(
        told,
        "look for a detach, a custom backward, or a checkpoint that computes something else again",
        grave=False,
        state=str(with_dropout),
    )


def _right_without_dropout(tried: Subject) -> bool:
    """Whether the gradient is right if the model's modules drop nothing."""
    with changed(tried.model, training=None):
        if not without_probabilities(tried.model):
            return False
        # The state must not switch dropout off itself: that does not hold in a backward pass.
        try:
            slope = _slope(tried, replace(TRAINING, dropout=True))
        except REFUSALS:
            return False
    return slope is not None and slope.right


@dataclass(frozen=True)
class Slope:
    """A measured slope over the one that the gradient says."""

    ratio: float
    limit: float  # by how much it may miss 1

    @property
    def right(self) -> bool:
        return abs(self.ratio - 1) <= self.limit


def _slope(tried: Subject, state: State) -> Slope | None:
    """The slope of a random sum of outputs as the weights move, half along the gradient and half
    at random; None if it is not smooth."""
    B = tried.batch(tried.effort.rows)
    T = tried.fitting(min(16, tried.dense))
    x = tried.draw(B, T)
    # Put aside before the weights change their dtype: a gradient has that of its weight.
    with _gradients_aside(tried.weights), tried.put(state) as there:
        there = replace(there, seeded=True)
        weights = [w for w in there.weights if w.requires_grad and w.is_floating_point()]
        rng = torch.Generator().manual_seed(1)
        with there.restoring():  # each call begins as this one
            y = _differentiable(there, x)
            if not y.requires_grad:
                raise CannotCheck("the outputs have no gradient")
            sums = torch.randn(y.shape, generator=rng, dtype=torch.float64).to(y)
            try:
                gradient = _gradient((y * sums).sum(), weights)
            except REFUSALS as error:
                raise CannotCheck(f"the backward pass raises {in_one_line(error)}") from error
            del y
        size = _length(weights)
        length = _length(gradient)
        if not 0 < length < math.inf or not size:
            raise CannotCheck("the gradient of the outputs is 0 or not finite")
        # Half of the way is random: along the gradient alone, a part that it misses hardly shows.
        noise = [noise_for(w, rng) for w in weights]
        far = sum(_squares(numbers, w.numel()) for numbers, w in zip(noise, weights, strict=True))
        padded = _padding_rows(tried.model)
        way: list[Tensor] = []
        told = 0.0
        for w, numbers, slope in zip(weights, noise, gradient, strict=True):
            direction = with_repeated(torch.add, slope / length, numbers / far**0.5)
            if id(w) in padded:
                direction[padded[id(w)]] = 0.0
            told += _product(direction, slope)
            way.append(direction)
        del gradient
        for w in weights:  # of a large model, each of these is as large as the model
            w.grad = None
        places = [torch.empty_like(w) for w in weights]

        def value(step: float) -> float:
            """The sum of outputs with weights moved by `step` along the way."""
            with there.restoring(), torch.no_grad(), _moved(weights, way, step, places):
                outputs = _differentiable(there, x)
            return float((outputs.detach() * sums).double().sum())

        is_fine = all(w.dtype is torch.float64 for w in weights)
        shares = (*FINE_SHARES, *STEP_SHARES) if is_fine else STEP_SHARES
        return _measured(value, size, told, shares)


def _padding_rows(model: object) -> dict[int, int]:
    """The rows of embeddings that get no gradient, by the id of the weight: padding_idx."""
    rows: dict[int, int] = {}
    for part in parts_below(model):
        if isinstance(part, nn.Embedding) and part.padding_idx is not None:
            rows[id(part.weight)] = part.padding_idx
    return rows


@contextmanager
def _moved(
    weights: Sequence[Tensor], way: Sequence[Tensor], step: float, places: Sequence[Tensor]
) -> Iterator[None]:
    """Weights with a step along the way added inside, in other places; afterward they are as
    before. New places each time would take longer than the sum."""
    held = [w.data for w in weights]
    try:
        for w, direction, place in zip(weights, way, places, strict=True):
            w.data = torch.add(w.data, direction, alpha=step, out=place)
        yield
    finally:
        for w, own in zip(weights, held, strict=True):
            w.data = own


def _length(tensors: list[Tensor]) -> float:
    return sum(_product(x, x) for x in tensors) ** 0.5


def _squares(numbers: Tensor, count: int) -> float:
    """The sum of squares of so many numbers, which are repeated if there are fewer."""
    if not count:
        return 0.0
    rounds, rest = divmod(count, numbers.numel())
    some = numbers.flatten()[:rest]
    return rounds * _product(numbers, numbers) + _product(some, some)


def _product(a: Tensor, b: Tensor) -> float:
    """The sum of products of two tensors of one shape, in fp64."""
    return float(a.detach().double().flatten() @ b.detach().double().flatten())


@contextmanager
def _gradients_aside(weights: Sequence[Tensor]) -> Iterator[None]:
    """Weights without gradients inside; afterward they have their own again."""
    held = [w.grad for w in weights]
    for w in weights:
        w.grad = None
    try:
        yield
    finally:
        for w, grad in zip(weights, held, strict=True):
            w.grad = grad


def _gradient(value: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """The gradient of a value by weights that have none."""
    value.backward()  # not autograd.grad, which reentrant checkpoints refuse
    return [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]


def _differentiable(tried: Subject, x: Tensor) -> Tensor:
    y = outputs_of(tried.raw(x), tuple(x.shape[:2]))
    return y.masked_fill(~y.isfinite(), 0.0)  # logits of symbols that are never chosen


def _measured(
    value: Callable[[float], float], size: float, told: float, shares: Sequence[float]
) -> Slope | None:
    """The slope of a value at 0, by steps of these shares of the size of the weights, until two of
    them agree; None if none do."""
    before = math.nan
    best: Slope | None = None
    for share in shares:
        step = share * size
        slope = (value(step) - value(-step)) / (2 * step * told)
        apart = abs(slope - before)
        before = slope
        limit = max(SMOOTH, 100 * apart)
        # A share, for slopes over steps that are much too large are all near 0.
        agree = apart <= ROUGH * min(1.0, abs(slope))
        if agree and (best is None or limit < best.limit):
            best = Slope(slope, limit)
        if best is not None and best.limit == SMOOTH:
            break
    return best


# ---- precision


def assert_precision_kept(
    model: Model, sample: Tensor | None = None, **given: Unpack[SizesAndCall]
) -> str:
    """Assert that a model of half precision is not further from fp64 at late positions than at
    early ones, as it is if it counts positions in half precision."""
    __tracebackhide__ = True
    return str(check_precision_kept(prepared(model, sample, **given)))


def check_precision_kept(tried: Subject) -> Passed:
    """Half precision is as good at late positions, see `assert_precision_kept`."""
    __tracebackhide__ = True
    if not tried.half or tried.best is not torch.float64:
        raise CannotCheck("the model is not of half precision, or does not run in fp64")
    x = tried.draw(tried.batch(2), tried.length)
    states = precision_states(tried)
    for state in states:
        _require_precision(tried, state, x)
    said = f"in {_half_dtype(tried)} late positions are as near to fp64 as early ones"
    own_states = tuple(str(replace(state, own_dtype=True)) for state in states)
    return Passed(f"{said}, of {tried.length}", states=own_states)


def precision_states(tried: Subject) -> list[State]:
    """The states in which half precision is compared with fp64."""
    states = [EVALUATION]
    for name, optional in tried.optional.items():
        if not optional.pads:
            states.append(replace(EVALUATION, given=name))
    return states


def _half_dtype(tried: Subject) -> str:
    """The name of the half precision of a model's weights."""
    return next(_name(w.dtype) for w in tried.weights if _name(w.dtype) in EXACT_INTEGERS)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _require_precision(tried: Subject, state: State, x: Tensor) -> None:
    """CheckFailed if late positions are further from fp64 than early ones."""
    __tracebackhide__ = True
    own_state = replace(state, own_dtype=True)
    with tried.put(state) as there:
        exact = steady(there)(x)
    with tried.put(own_state) as there:
        own = steady(there)(x)
    off = (own - exact).abs().amax(-1).mean(0) / exact.std()  # (T,)
    early = float(off[: max(8, tried.length // 8)].median())
    name = _half_dtype(tried)
    counts = EXACT_INTEGERS[name]
    for first in _powers_up_to(tried.length - 8):
        # All windows from a power of two on are compared, for an error of positions stays.
        window = max(8, first // 4)
        windows = [part for part in off[first:].split(window) if len(part) == window]
        late = min((float(part.median()) for part in windows), default=0.0)
        if late > 8 * early and late > 0.1:
            said = (
                f"in {name} outputs from position {first} on are off those in fp64 by {late:.2g} "
                f"of their std, at the first positions by {early:.2g}"
            )
            look = ""
            if first >= counts:
                look = f"are positions or angles computed in {name}, exact up to {counts} only?"
            raise CheckFailed(
                said, beside_evaluation(state), look, grave=False, state=str(own_state)
            )


def _powers_up_to(most: int) -> list[int]:
    return [2**n for n in range(4, 13) if 2**n < most]
