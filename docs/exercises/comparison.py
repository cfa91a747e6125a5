"""Compare an answer with the correct result, and with the results of common mistakes."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from attncheck import CheckFailed

KEYS_LAST = "Keys are the last axis: dim=-1."


class Wrong(Exception):
    """An answer is wrong; the message says what is wrong."""


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Reproducible standard normal numbers, in fp64 to keep rounding errors small."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def called(answer: Callable[..., Any], *inputs: Tensor) -> Tensor:
    """What the answer returns for tensors, or if it fails on them, for NumPy arrays."""
    try:
        got = answer(*inputs)
    except NotImplementedError:
        raise
    except Exception:
        try:
            got = answer(*(x.numpy() for x in inputs))
        except Exception:
            got = None
        if got is None:
            raise  # its error with tensors
    return as_tensor(got)


def compare(got: object, right: Tensor, mistakes: Iterable[tuple[Tensor, str]]) -> None:
    """Check a result.

    Args:
        got: the student's result.
        right: the correct result.
        mistakes: wrong results, each with a description of the mistake.

    Raises:
        Wrong: the results differ; the message describes the mistake that gives this result.
    """
    got = as_tensor(got)
    if got.shape == right.shape and got.dtype == right.dtype and close(got, right):
        return
    for wrong, sentence in mistakes:
        if got.shape == wrong.shape and close(got, wrong):
            raise Wrong(sentence)
    if got.shape != right.shape:
        raise Wrong(f"It returns the shape {tuple(got.shape)}, not {tuple(right.shape)}.")
    if got.dtype != right.dtype:
        raise Wrong(f"It returns {got.dtype}, not {right.dtype}.")
    if not bool(got.isfinite().all()):
        raise Wrong(f"{int((~got.isfinite()).sum())} of {got.numel()} numbers are not finite.")
    where = (got.double() - right.double()).abs().argmax()
    place = tuple(int(i) for i in torch.unravel_index(where, right.shape))
    raise Wrong(
        f"At {list(place)} the result is {got[place].item():.4g} and should be "
        f"{right[place].item():.4g}."
    )


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a.double(), b.double(), rtol=1e-6, atol=1e-8, equal_nan=True)


def as_tensor(value: object) -> Tensor:
    """A tensor, also of a NumPy array."""
    if not isinstance(value, Tensor) and hasattr(value, "__array__"):
        value = torch.as_tensor(value)
    if not isinstance(value, Tensor):
        raise Wrong(f"It must return a tensor, not {type(value).__name__}. Is the return missing?")
    return value


def examine(check: Callable[..., str], *args: Any, **options: Any) -> None:
    """Run a check of the checkup; Wrong says what it found."""
    try:
        check(*args, **options)
    except CheckFailed as failed:
        raise Wrong("The checkup found: " + "; ".join(str(failed).splitlines()) + ".") from failed
