"""Operations that several layers share: rotation, convolution, sums, normalization, activation."""

from functools import lru_cache
from operator import index
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def rotate(x: Tensor, base: float = 10_000.0) -> Tensor:
    """Turn each pair of channels (2i, 2i + 1) of x (..., T, D) by position * base^(-2i/D).

    With these rotary positions (Su et al. 2021) a score depends on the distance only.
    """
    T, D = x.shape[-2:]
    exact = torch.promote_types(x.dtype, torch.float32)
    pairs = torch.view_as_complex(x.to(exact).unflatten(-1, (D // 2, 2)).contiguous())
    turned = pairs * _turns(index(T), D, base, x.device, pairs.dtype)
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


@torch.compiler.assume_constant_result
def _turns(T: int, D: int, base: float, device: torch.device, dtype: torch.dtype) -> Tensor:
    """e^(i angle) of every position and pair, (T, D/2) complex; in a graph of `torch.compile` a
    constant."""
    return _computed_turns(T, D, base, device, dtype)


@lru_cache(maxsize=64)
def _computed_turns(
    T: int, D: int, base: float, device: torch.device, dtype: torch.dtype
) -> Tensor:
    with torch.inference_mode(False):
        frequencies = base ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
        angles = torch.arange(T, dtype=torch.float64)[:, None] * frequencies
        return torch.polar(torch.ones_like(angles), angles).to(device, dtype)


def sinusoids(T: int, C: int, device: torch.device, base: float = 10_000.0) -> Tensor:
    """sin(t base^(-2i/C)) in channel 2i and cos in channel 2i + 1 of position t: (T, C) fp32.

    These are the positional encodings of Vaswani et al. 2017, section 3.5. Turned by `rotate`,
    the pairs of one position are those of another.
    """
    turns = _turns(T, C, base, device, torch.complex64)  # cos + i sin
    return torch.stack([turns.imag, turns.real], -1).flatten(-2)


def convolve(x: Tensor, taps: Tensor) -> Tensor:
    """y_t = sum over m of taps_m x_(t-m), zeros before the text: x (B, T, W), taps (K, W)."""
    K, T = len(taps), x.shape[1]
    rows = F.pad(x, (0, 0, K - 1, 0))
    y = rows[:, K - 1 :] * taps[0]
    for m in range(1, K):
        y = y + rows[:, K - 1 - m : K - 1 - m + T] * taps[m]
    return y


def running_sum(x: Tensor, dim: Literal[-1, -2] = -1) -> Tensor:
    """Sums along a dimension up to each element, of the shape and dtype of x, in fp64.

    A matrix product, since PyTorch's float `cumsum` has no deterministic kernel on CUDA. On a CPU
    both accumulate in fp64 and give the same bits.
    """
    T = x.shape[dim]
    ones = torch.ones(T, T, dtype=torch.float64, device=x.device)
    total = x.double() @ ones.triu() if dim == -1 else ones.tril() @ x.double()
    return total.to(x.dtype)


def rms_normalize(x: Tensor) -> Tensor:
    """Divide by the root mean square over the last dimension (Zhang and Sennrich 2019, eq. 4).

    1e-5 is added to the mean square of x (..., C), whose dtype and shape are kept.
    """
    y: Tensor = _RMSNormalize.apply(x)
    return y


class RMSNorm(nn.Module):
    """Mean square 1 over the channels, times a learned weight (Zhang and Sennrich 2019)."""

    def __init__(self, n_embd: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n_embd))

    def forward(self, x: Tensor) -> Tensor:
        return rms_normalize(x) * self.weight  # (..., C)


class _RMSNormalize(torch.autograd.Function):
    """`rms_normalize` with its gradient written out; autograd takes twice as many passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=dtype)
        inverse = (norm.square() / x.shape[-1] + 1e-5).rsqrt()  # (..., 1)
        y = (x * inverse).to(x.dtype)
        ctx.save_for_backward(y, inverse)
        return y

    @staticmethod
    @once_differentiable  # a second derivative is refused, not wrong
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        # With y = x r and r = (|x|^2 / C + 1e-5)^(-1/2): dx = r (dy - y <dy, y> / C).
        y, inverse = ctx.saved_tensors
        along = (grad * y).mean(-1, keepdim=True)
        return (torch.addcmul(grad, y, along, value=-1) * inverse).to(y.dtype)


def relu_squared(x: Tensor) -> Tensor:
    """max(x, 0)^2 (So et al. 2021)."""
    y: Tensor = _ReLUSquared.apply(x)
    return y


class _ReLUSquared(torch.autograd.Function):
    """`relu_squared` with its gradient written out; autograd takes twice as many passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = F.relu(x)
        ctx.save_for_backward(positive)
        return positive.square()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        return (grad * positive).mul_(2)
