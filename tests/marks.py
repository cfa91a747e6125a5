"""Marks for parametrized tests whose full list belongs to `make test-all`."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch


def sampled(values: Iterable[Any], keep: Callable[[Any], bool]) -> list[Any]:
    """Mark all values but those to keep as `long`; a tuple holds the values of several names."""
    return [
        value
        if keep(value)
        else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=LONG)
        for value in values
    ]


LONG = pytest.mark.long
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU with CUDA")
