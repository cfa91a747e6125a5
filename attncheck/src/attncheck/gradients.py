"""Are gradients of the weights the slope of the outputs? Letters: B batch, T time."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from .calls import Model, outputs_of, parts_below
from .outcomes import REFUSALS, CannotCheck, CheckFailed, Passed, as_assertion, in_one_line
from .states import (
    LARGE,
    TRAINING,
    State,
    changed,
    combined,
    noise_for,
    set_dropout_to_0,
)
from .subject import SizesAndCall, Subject, prepared, without_unused

# Shares of the weights by which they are moved along the gradient, to see the slope. Small ones
# come first, for the slope changes on the way; the large ones are for models that round.
FINE_SHARES = (1e-8, 3e-8)  # of weights in fp64
STEP_SHARES = (1e-5, 3e-6, 1e-6, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
ROUGH = 2e-3  # two slopes that are further apart say nothing
SMOOTH = 1e-4  # the least difference from the gradient that counts


@as_assertion
def assert_gradients_right(
    model: Model, sample: Tensor | None = None, **given: Unpack[SizesAndCall]
) -> str:
    """Assert that gradients of the weights are the slope of the outputs: along the gradient, a
    random sum of outputs rises by the square of its length. In training mode, with dropout and the
    same random seed."""
    return str(check_gradients_right(prepared(model, sample, **given)))


def check_gradients_right(tried: Subject) -> Passed:
    """Gradients are the slope of the outputs, see `assert_gradients_right`; CannotCheck if no
    weight is trained, or if the slope cannot be measured."""
    weights = [w for w in tried.weights if w.requires_grad and w.is_floating_point()]
    if not weights:
        raise CannotCheck("no weight of the model is trained")
    with_dropout = replace(TRAINING, dropout_off=False)
    slope = _slope(tried, with_dropout)  # of a sum of outputs, over what the gradients say
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
    """Whether gradients are the slope if the model's modules drop nothing; False if none of them
    has dropout."""
    with changed(tried.model, training=None):
        if not set_dropout_to_0(tried.model):
            return False
        # Not by `State.dropout_off`, which does not hold in a backward pass.
        try:
            slope = _slope(tried, replace(TRAINING, dropout_off=False))
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
        """Whether both slopes are the same, within the limit."""
        return abs(self.ratio - 1) <= self.limit


def _slope(tried: Subject, state: State) -> Slope | None:
    """The slope of a random sum of outputs in a state as the weights move, half along the gradient
    and half at random; None if it is not smooth, CannotCheck if there is no gradient."""
    B = tried.rows_at_once(tried.effort.rows)
    T = tried.accepted_length(min(16, tried.dense_length))
    x = tried.draw(B, T)
    # Put aside before the weights change their dtype: a gradient has that of its weight.
    with _gradients_aside(tried.weights), tried.in_state(state) as there:
        there = replace(there, seed_each_call=True)
        weights = [w for w in there.weights if w.requires_grad and w.is_floating_point()]
        rng = torch.Generator().manual_seed(1)
        with there.restoring():  # each call begins as this one
            y = _finite_outputs(there, x)
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
        way, expected = _way_of(weights, gradient, length, rng, _padding_rows(tried.model))
        places = [torch.empty_like(w) for w in weights]

        def value(step: float) -> float:
            """The sum of outputs with weights moved by `step` along the way."""
            with there.restoring(), torch.no_grad(), _moved(weights, way, step, places):
                outputs = _finite_outputs(there, x)
            return float((outputs.detach() * sums).double().sum())

        is_fine = all(w.dtype is torch.float64 for w in weights)
        shares = (*FINE_SHARES, *STEP_SHARES) if is_fine else STEP_SHARES
        return _measured(value, expected, [share * size for share in shares])


def _way_of(
    weights: Sequence[Tensor],
    gradient: list[Tensor],
    length: float,
    rng: torch.Generator,
    padding_rows: dict[int, int],
) -> tuple[list[Tensor], float]:
    """A way on which weights move, half along their gradient and half at random, each half of
    length 1: a direction for each weight, and the slope along the way that the gradient says.

    `length` is that of the gradient, which is emptied, as is the `grad` of the weights: all of
    them together are as large as the model. Rows that get no gradient, see `_padding_rows`, stay.
    """
    # Along the gradient alone, a part that it misses hardly shows.
    noise = [noise_for(w, rng) for w in weights]
    squares = [_sum_of_squares(n, w.numel()) for n, w in zip(noise, weights, strict=True)]
    noise_length = sum(squares) ** 0.5
    way: list[Tensor] = []
    expected = 0.0
    for w, noise_of_w in zip(weights, noise, strict=True):
        slope = gradient.pop(0)
        w.grad = None
        direction = combined(torch.add, slope / length, noise_of_w / noise_length)
        if id(w) in padding_rows:
            direction[padding_rows[id(w)]] = 0.0
        expected += _dot(direction, slope)
        way.append(direction)
    return way, expected


def _padding_rows(model: object) -> dict[int, int]:
    """The row of each embedding that gets no gradient, padding_idx, by the id (of Python) of its
    weight; without embeddings that have none."""
    rows: dict[int, int] = {}
    for part in parts_below(model):
        if isinstance(part, nn.Embedding) and part.padding_idx is not None:
            rows[id(part.weight)] = part.padding_idx
    return rows


@contextmanager
def _moved(
    weights: Sequence[Tensor], way: Sequence[Tensor], step: float, places: Sequence[Tensor]
) -> Iterator[None]:
    """Inside, the weights have a step along the way added; afterward they have their own data
    again. The sums are written into `places`: new memory each time would take longer."""
    own_data = [w.data for w in weights]
    try:
        for w, direction, place in zip(weights, way, places, strict=True):
            w.data = torch.add(w.data, direction, alpha=step, out=place)
        yield
    finally:
        for w, own in zip(weights, own_data, strict=True):
            w.data = own


def _length(tensors: list[Tensor]) -> float:
    """The square root of the sum of squares of all numbers of the tensors."""
    return sum(_dot(x, x) for x in tensors) ** 0.5


def _sum_of_squares(noise: Tensor, count: int) -> float:
    """The sum of squares of noise for a weight of `count` numbers, along which `combined` repeats
    it if there are fewer."""
    if not count:
        return 0.0
    repetitions, rest = divmod(count, noise.numel())
    end = noise.flatten()[:rest]
    return repetitions * _dot(noise, noise) + _dot(end, end)


def _dot(a: Tensor, b: Tensor) -> float:
    """The sum of the products of the numbers of two tensors of one shape, in fp64."""
    parts = zip(a.detach().flatten().split(LARGE), b.detach().flatten().split(LARGE), strict=True)
    return sum(float(x.double() @ y.double()) for x, y in parts)  # not a copy of all


@contextmanager
def _gradients_aside(weights: Sequence[Tensor]) -> Iterator[None]:
    """Inside, the weights have no gradients; afterward they have their own again."""
    own_gradients = [w.grad for w in weights]
    for w in weights:
        w.grad = None
    try:
        yield
    finally:
        for w, grad in zip(weights, own_gradients, strict=True):
            w.grad = grad


def _gradient(value: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """The gradient of a value by weights whose `grad` is None before; it is that afterward."""
    value.backward()  # not autograd.grad, which reentrant checkpoints refuse
    return [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]


def _finite_outputs(tried: Subject, x: Tensor) -> Tensor:
    """The outputs (B, T, V) of one call for x (B, T, ...), with their graph, and with 0 for
    logits of symbols that are never chosen and for what is not finite."""
    y = without_unused(outputs_of(tried.call_once(x), tuple(x.shape[:2])))
    return y.masked_fill(~y.isfinite(), 0.0)


def _measured(
    value: Callable[[float], float], expected: float, steps: Sequence[float]
) -> Slope | None:
    """The slope of a value at 0 over the expected one, from the differences over steps in both
    directions: of those that agree with the step before, the one that agrees best; None if none
    does."""
    before = math.nan
    best: Slope | None = None
    for step in steps:
        ratio = (value(step) - value(-step)) / (2 * step * expected)
        apart = abs(ratio - before)
        before = ratio
        limit = max(SMOOTH, 100 * apart)
        # Relative to the ratio, for those of steps that are much too large are all near 0.
        agrees = apart <= ROUGH * min(1.0, abs(ratio))
        if agrees and (best is None or limit < best.limit):
            best = Slope(ratio, limit)
        if best is not None and best.limit == SMOOTH:
            break
    return best
