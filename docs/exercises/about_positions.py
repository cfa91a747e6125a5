"""Checks of the exercises on positions.

Letters: B batch, H heads, T positions, C channels, D channels of a head.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnlab.attention import alibi
from attnlab.attention.ops import rotate

from .comparison import called, compare, normal

BASE = 10_000.0


def check_sinusoid_table(answer: Callable[..., Any]) -> None:
    """sinusoid_table(T, C)."""
    for T, C in ((6, 8), (1, 2), (40, 16)):
        angles = _angles(T, C)
        mistakes = [
            (_paired(angles.cos(), angles.sin()), "Sine and cosine are exchanged."),
            (
                torch.cat([angles.sin(), angles.cos()], -1),
                "All sines come first: they alternate, sin in channel 2i and cos in 2i + 1.",
            ),
            (
                _paired(*_both(_angles(T, C, step=2))),
                "The frequencies fall twice as fast: channels 2i and 2i + 1 have 10000^(-2i / C).",
            ),
            (_paired(*_both(_angles(T, C) + _angles(2, C)[1])), "Positions count from 0, not 1."),
        ]
        got = answer(T, C)
        compare(got, _paired(*_both(angles)).to(torch.as_tensor(got).dtype), mistakes)


def check_rotate_pairs(answer: Callable[..., Any]) -> None:
    """rotate_pairs(x)."""
    for shape in ((2, 3, 9, 8), (1, 2)):
        x = normal(*shape)
        T, D = shape[-2:]
        even = x[..., ::2]
        odd = x[..., 1::2]
        sin, cos = _both(_angles(T, D))
        first, second = x.chunk(2, -1)
        mistakes = [
            (
                _paired(even * cos + odd * sin, odd * cos - even * sin),
                "It turns the other way: (a, b) becomes (a cos - b sin, a sin + b cos).",
            ),
            (
                torch.cat([first * cos - second * sin, first * sin + second * cos], -1),
                "It pairs the two halves: the pairs are channels 2i and 2i + 1.",
            ),
            (x, "Nothing is turned."),
            (_paired(even * cos, odd * sin), "A pair is turned as a whole: both parts mix."),
        ]
        compare(called(answer, x), rotate(x), mistakes)


def check_alibi_bias(answer: Callable[..., Any]) -> None:
    """alibi_bias(T, H)."""
    for T, H in ((7, 4), (1, 1), (5, 8)):
        i = torch.arange(T)
        zeros = torch.zeros(H, T, T, dtype=torch.float64)
        right = alibi(zeros, i[:, None], i[None, :])
        head = torch.arange(H, dtype=torch.float64)[:, None, None]
        distance = (i[:, None] - i).abs()
        mistakes = [
            (-right, "The sign is wrong: distant keys get lower scores."),
            (
                -(2 ** (-8 * head / H)) * distance,
                "Heads count from 1: the first slope is 2^(-8/H).",
            ),
            (
                -(2**-8.0) * (head + 1) * distance,
                "Slopes are powers: head h of 1 to H has 2^(-8h/H).",
            ),
        ]
        got = answer(T, H)
        compare(got, right.to(torch.as_tensor(got).dtype), mistakes)


def _angles(T: int, C: int, step: int = 1) -> Tensor:
    """t 10000^(-2i / C) of every position t and pair i: (T, C / 2)."""
    frequencies = BASE ** (-2 * step * torch.arange(C // 2, dtype=torch.float64) / C)
    return torch.arange(T, dtype=torch.float64)[:, None] * frequencies


def _both(angles: Tensor) -> tuple[Tensor, Tensor]:
    return angles.sin(), angles.cos()


def _paired(even: Tensor, odd: Tensor) -> Tensor:
    """The channels 2i and 2i + 1 side by side."""
    return torch.stack([even, odd], -1).flatten(-2)
