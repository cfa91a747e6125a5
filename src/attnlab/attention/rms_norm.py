"""Division by the root mean square, for RMSNorm and for queries and keys."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def rms_normalize(x: Tensor) -> Tensor:
    """Divide by the root mean square over the last dimension (Zhang and Sennrich 2019, eq. 4).

    1e-5 is added to the mean square of x (..., C), whose dtype and shape are kept.
    """
    y: Tensor = _RMSNormalize.apply(x)
    return y


class _RMSNormalize(torch.autograd.Function):
    """With its gradient written out: autograd's own takes twice as many passes over the data."""

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
