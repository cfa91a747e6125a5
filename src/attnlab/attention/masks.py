"""Masks as predicates of (query index, key index): True means that it may attend."""

from functools import lru_cache, partial
from typing import Protocol

import torch
from torch import Tensor


class Predicate(Protocol):
    """Which keys a query may attend to, from positions (T, 1) and (1, T): bool (T, T)."""

    def __call__(self, query: Tensor, key: Tensor, /) -> Tensor: ...

    def __hash__(self) -> int: ...  # its matrices are cached


def causal(q: Tensor, k: Tensor) -> Tensor:
    """A query sees itself and the past."""
    return k <= q


def flipped(q: Tensor, k: Tensor) -> Tensor:
    """A query sees itself and the future: the causal mask transposed."""
    return k >= q


def strict_flip(q: Tensor, k: Tensor) -> Tensor:
    """A query sees the future but not itself, so the last query sees no key."""
    return k > q


def bidirectional(q: Tensor, k: Tensor) -> Tensor:
    """A query sees everything, as in an encoder."""
    return (k == k) & (q == q)


def peek_one(q: Tensor, k: Tensor) -> Tensor:
    """A query sees the past and one character ahead: a diagonal that is off by one."""
    return k <= q + 1


def near(q: Tensor, k: Tensor, *, inside: Predicate, width: int) -> Tensor:
    """The keys of another mask that are less than `width` positions away."""
    return inside(q, k) & ((q - k).abs() < width)


@lru_cache(maxsize=64)
def window(inside: Predicate, width: int) -> Predicate:
    """A sliding window over a mask (Beltagy et al. 2020, section 3.1); cached, so that equal
    arguments give the same object."""
    return partial(near, inside=inside, width=width)


# Masks that leave a query without keys on purpose; any other such mask is refused.
LEAVES_QUERIES_WITHOUT_KEYS = frozenset({strict_flip})


def build_mask(may_attend: Predicate, T: int, device: torch.device | str = "cpu") -> Tensor:
    """The mask of a predicate as a matrix (T queries, T keys) bool, True = may attend.

    The predicate takes query indices (T, 1) and key indices (1, T), both int64. The same arguments
    give the same tensor object, which must not be changed in place. A mask that equals the causal
    one is that object, so `kernels.sdpa` recognizes it without comparing values at every step.
    Raises ValueError if a query is left without any key, or if the result is not a bool matrix.
    """
    return _build_mask(may_attend, T, torch.device(device))


@lru_cache(maxsize=64)
def _build_mask(may_attend: Predicate, T: int, device: torch.device) -> Tensor:
    # A mask created in inference mode could not be used by a later training step.
    with torch.inference_mode(False):
        i = torch.arange(T, device=device)
        mask = may_attend(i[:, None], i[None, :])
        name, gave = name_of(may_attend), type(mask).__name__
        if isinstance(mask, Tensor):
            gave = f"{str(mask.dtype).removeprefix('torch.')} of shape {tuple(mask.shape)}"
        if gave != f"bool of shape {(T, T)}":
            raise ValueError(
                f"the mask {name} must give a bool tensor of shape ({T}, {T}), True = may attend; "
                f"it gave {gave}"
            )
        empty = ~mask.any(-1)
        if may_attend not in LEAVES_QUERIES_WITHOUT_KEYS and bool(empty.any()):
            first = int(empty.nonzero()[0])
            raise ValueError(f"the mask {name} leaves query {first} of {T} without keys")
        if may_attend is not causal:
            usual = _build_mask(causal, T, device)
            return usual if torch.equal(mask, usual) else mask
    return mask


def looks_back(may_attend: Predicate, T: int) -> bool:
    """Whether keys and values can be cached while a text grows to T positions.

    No query may see a later key, and the mask of a text half as long must be a part of the mask.
    """
    mask, half = build_mask(may_attend, T), build_mask(may_attend, (T + 1) // 2)
    same = torch.equal(mask[: len(half), : len(half)], half)
    return same and not bool(mask.triu(1).any())


def name_of(value: object) -> str:
    """A function, partial, callable object or plain value in messages, without addresses."""
    if isinstance(value, partial):
        given = [*map(name_of, value.args)]
        given += [f"{key}={name_of(x)}" for key, x in value.keywords.items()]
        return f"{name_of(value.func)}({', '.join(given)})"
    if hasattr(value, "__name__"):
        return str(value.__name__)
    unnamed = type(value).__repr__ is object.__repr__
    return type(value).__name__ if unnamed else str(value)
