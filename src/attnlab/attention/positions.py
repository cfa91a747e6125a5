"""Positions inside attention: rotations of queries and keys, and changes of the scores."""

from functools import lru_cache

import torch
from torch import Tensor

from attnlab.attention.properties import SOFTMAX, declare


def alibi(scores: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Subtract a multiple of the distance, 2^(-8 h / H) in head h of 1 to H (Press et al. 2022).

    The scores are (..., H, T, S), and the positions of the queries (T, 1), of the keys (1, S).
    """
    H = scores.shape[-3]
    slopes = 2.0 ** (-8 * torch.arange(1, H + 1, device=scores.device, dtype=scores.dtype) / H)
    return scores - slopes[:, None, None] * (q - k).abs()


declare(alibi, SOFTMAX)


def log_length(scores: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Multiply by ln n, n the length of the text up to the query (Chiang and Cholak 2022, sec. 5).

    The entropy of a row then grows less with the length. The arguments are those of `alibi`.
    """
    return scores * (q + 1).to(scores.dtype).log()


declare(log_length, SOFTMAX)


def rotate(x: Tensor, base: float = 10_000.0, start: int = 0) -> Tensor:
    """Turn each pair of channels (2i, 2i + 1) by the angle position * base^(-2i/D).

    With these rotary positions (Su et al. 2021, section 3.2.2), the score of a query at m and a
    key at n depends only on their contents and on m - n. The longest wavelength is below 2 pi
    times the base. D is even in x (..., T, D), whose first row is at position `start`. It is
    computed in fp32 at least, and the dtype is kept.
    """
    T, D = x.shape[-2:]
    dtype = torch.promote_types(x.dtype, torch.float32)
    pairs = torch.view_as_complex(x.to(dtype).unflatten(-1, (D // 2, 2)).contiguous())
    length = 1 << (start + T - 1).bit_length()  # a power of 2, so a growing text needs few tables
    turns = _turns(length, D, base, x.device, pairs.dtype)[start : start + T]  # (T, D/2)
    return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)


@lru_cache(maxsize=64)
def _turns(T: int, D: int, base: float, device: torch.device, dtype: torch.dtype) -> Tensor:
    """e^(i * angle) of every position and pair, (T, D/2) complex."""
    # A table created in inference mode could not be used by a later training step.
    with torch.inference_mode(False):
        frequencies = base ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)  # (D/2,)
        angles = torch.arange(T, dtype=torch.float64)[:, None] * frequencies  # (T, D/2)
        return torch.polar(torch.ones_like(angles), angles).to(device, dtype)
