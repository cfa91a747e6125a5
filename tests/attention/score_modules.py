"""The general and the cosine score as modules, to compare the layers with."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention import kernels
from attnlab.attention.variant import check_sizes


class General(nn.Module):
    """q W k, bilinear (Luong et al. 2015, section 3.1).

    W starts with variance 1/(D_q D_k). Queries and keys of variance 1 then have scores of variance
    1, like scaled dot products.

    Args:
        query_size: D_q.
        key_size: D_k.
    """

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()
        check_sizes({"query_size": query_size, "key_size": key_size})
        std = (query_size * key_size) ** -0.5
        self.weight = nn.Parameter(torch.randn(query_size, key_size) * std)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """(..., T, D_q), (..., S, D_k) -> (..., T, S)."""
        return kernels.scores(q @ self.weight.to(q.dtype), k, scale=1.0)


class Cosine(nn.Module):
    """The cosine of query and key, times a learned gain (Henry et al. 2020, equation 4).

    Args:
        gain: initial value.
        n_head: H for a gain of each head, where q and k are (..., H, T, D); None for one gain.
    """

    def __init__(self, gain: float, n_head: int | None = None) -> None:
        super().__init__()
        if n_head is not None:
            check_sizes({"n_head": n_head})
        self.gain = nn.Parameter(torch.full(() if n_head is None else (n_head,), float(gain)))

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """(..., T, D), (..., S, D) -> (..., T, S)."""
        q, k = (
            F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1) for x in (q, k)
        )
        gain = self.gain if self.gain.ndim == 0 else self.gain[:, None, None]
        return kernels.scores(q, k, scale=1.0) * gain
