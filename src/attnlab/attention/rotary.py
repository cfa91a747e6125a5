"""Rotary positions (Su et al. 2021, section 3.2.2, in the layout of two halves)."""

from functools import lru_cache

import torch
from torch import Tensor

BASE = 10_000.0  # the longest wavelength is 2 pi times this, as in the paper


def rotate(x: Tensor, start: int = 0) -> Tensor:
    """Turn each pair of channels (i, i + D/2) by position times BASE^(-2i/D).

    A query at m and a key at n then score by their contents and m - n alone.

    Args:
        x: (..., T, D), D even; the dtype is kept.
        start: position of the first row.
    """
    T, D = x.shape[-2:]
    cos, sin = _table(start + T, D, x.device, x.dtype)
    cos, sin = cos[start:], sin[start:]  # (T, D/2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


@lru_cache(maxsize=64)
def _table(T: int, D: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    # A table first asked for in inference mode must still serve a later training step.
    with torch.inference_mode(False):
        frequencies = BASE ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)  # (D/2,)
        angles = torch.arange(T, dtype=torch.float64)[:, None] * frequencies  # (T, D/2)
        return angles.cos().to(device, dtype), angles.sin().to(device, dtype)
