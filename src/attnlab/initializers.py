"""Initialization rules; `attnlab.init` says which parameter has which."""

from collections.abc import Callable

import torch
from torch import Tensor

Rule = Callable[[Tensor, torch.Generator], None]


def zeros(weight: Tensor, stream: torch.Generator) -> None:
    """Fill with zeros."""
    weight.zero_()


def ones(weight: Tensor, stream: torch.Generator) -> None:
    """Fill with ones."""
    weight.fill_(1.0)


def constant(value: float) -> Rule:
    """Fill with one number."""

    def fill(weight: Tensor, stream: torch.Generator) -> None:
        weight.fill_(value)

    return fill


def normal(std: float) -> Rule:
    """Draw from N(0, std^2), always in fp32 on the CPU, so that all dtypes and devices agree."""

    def draw(weight: Tensor, stream: torch.Generator) -> None:
        weight.copy_(torch.randn(weight.shape, generator=stream) * std)

    return draw
