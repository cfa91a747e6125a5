"""Is half precision near to fp64, and as near at late positions as at early ones? T time."""

from dataclasses import replace

import torch
from torch import Tensor
from typing_extensions import Unpack

from .calls import Model
from .outcomes import CannotCheck, Passed, as_assertion
from .states import EVALUATION, State
from .subject import SizesAndCall, Subject, prepared, steady

EXACT_INTEGERS = {"bfloat16": 256, "float16": 2048}  # up to which each is represented
# Of the standard deviation of outputs.
MOST_ROUNDING = 0.1  # of right models
WRONG_EVERYWHERE = 0.5


@as_assertion
def assert_precision_kept(
    model: Model, sample: Tensor | None = None, **given: Unpack[SizesAndCall]
) -> str:
    """Assert that a model of half precision is near to fp64, as it is not if squares overflow, and
    not further from it at late positions than at early ones, as if it counts positions in half
    precision."""
    return str(check_precision_kept(prepared(model, sample, **given)))


def check_precision_kept(tried: Subject) -> Passed:
    """Half precision is near to fp64 at all positions, see `assert_precision_kept`; CannotCheck
    for a model of another precision, or one that does not run in fp64."""
    if not tried.has_half_weights or tried.best_dtype is not torch.float64:
        raise CannotCheck("the model is not of half precision, or does not run in fp64")
    x = tried.draw(tried.rows_at_once(2), tried.length)
    states = precision_states(tried)
    for state in states:
        _require_precision(tried, state, x)
    said = f"in {_half_dtype(tried)} late positions are as near to fp64 as early ones"
    own_states = tuple(str(replace(state, in_own_dtype=True)) for state in states)
    return Passed(f"{said}, of {tried.length}", states=own_states)


def precision_states(tried: Subject) -> list[State]:
    """The states in which half precision is compared with fp64: evaluation mode, and with each
    optional tensor, except for padding, at which outputs mean nothing."""
    states = [EVALUATION]
    for name, optional in tried.optional_tensors.items():
        if not optional.pads:
            states.append(replace(EVALUATION, given_tensor=name))
    return states


def _half_dtype(tried: Subject) -> str:
    """The name of the half precision of a model's weights: "bfloat16" or "float16"."""
    return next(_name(w.dtype) for w in tried.weights if _name(w.dtype) in EXACT_INTEGERS)


def _name(dtype: torch.dtype) -> str:
    """The name of a dtype, such as "float16"."""
    return str(dtype).removeprefix("torch.")


def _require_precision(tried: Subject, state: State, x: Tensor) -> None:
    """CheckFailed, not a grave one, if the outputs for x of half precision are far from those in
    fp64, or further at late than at early positions."""
    own_state = replace(state, in_own_dtype=True)
    with tried.in_state(state) as there:
        in_fp64 = steady(there)(x)
    with tried.in_state(own_state) as there:
        in_half = steady(there)(x)
    off = (in_half - in_fp64).abs().amax(-1).mean(0) / in_fp64.std()  # (T,)
    early = float(off[: max(8, tried.length // 8)].median())
    name = _half_dtype(tried)
    if early > WRONG_EVERYWHERE:
        raise there.failed(
            f"in {name} outputs are off those in fp64 by {early:.2g} of their std, also at the "
            "first positions",
            f"look for squares, sums or scores beyond what {name} can hold or tell apart",
            grave=False,
        )
    exact_up_to = EXACT_INTEGERS[name]
    for first in _powers_below(tried.length - 8):
        # All windows from a power of two on must be off, for an error of positions stays.
        window = max(8, first // 4)
        windows = [part for part in off[first:].split(window) if len(part) == window]
        late = min((float(part.median()) for part in windows), default=0.0)
        if late > 8 * early and late > MOST_ROUNDING:
            said = (
                f"in {name} outputs from position {first} on are off those in fp64 by {late:.2g} "
                f"of their std, at the first positions by {early:.2g}"
            )
            look = ""
            if first >= exact_up_to:
                look = (
                    f"are positions or angles computed in {name}, exact up to {exact_up_to} only?"
                )
            raise there.failed(said, look, grave=False)


def _powers_below(limit: int) -> list[int]:
    """The powers of two from 16 to 4096 that are below a limit, in order."""
    return [2**n for n in range(4, 13) if 2**n < limit]
