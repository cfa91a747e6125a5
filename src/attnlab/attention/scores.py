"""Scores of queries against keys, for `attnlab.attention.attention` and for layers.

Letters: T queries, S keys, D channels, A the hidden width of the additive score.

Every score is called as `score(q, k)`: q (..., T, D_q), k (..., S, D_k) -> (..., T, S), fp32 at
least. Scores with weights are modules. Their queries and keys may have different widths, as in a
decoder with an encoder.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attnlab.attention import kernels
from attnlab.attention.variant import check_sizes

Score = Callable[[Tensor, Tensor], Tensor]

# The largest tensor inside the tanh of the additive score: 64 MiB in fp32.
BUDGET = 2**24


def dot(q: Tensor, k: Tensor) -> Tensor:
    """q . k (Luong et al. 2015, section 3.1): of variance D where q and k have variance 1."""
    return kernels.scores(q, k, scale=1.0)


def scaled_dot(q: Tensor, k: Tensor) -> Tensor:
    """q . k / sqrt(D) (Vaswani et al. 2017, equation 1)."""
    return kernels.scores(q, k, scale=1 / math.sqrt(q.shape[-1]))


class Additive(nn.Module):
    """v . tanh(W q + U k) (Bahdanau et al. 2015, appendix A.1.2).

    For queries and keys of variance 1, initial scores have a variance of at most 1, like scaled
    dot products: W and U start by PyTorch's rule, v at 1/sqrt(A). A positive v is no restriction:
    tanh is odd, so the signs are in the rows of W and U.

    Args:
        query_size: D_q.
        key_size: D_k.
        hidden_size: A.
    """

    def __init__(self, query_size: int, key_size: int, hidden_size: int) -> None:
        super().__init__()
        check_sizes({"query_size": query_size, "key_size": key_size, "hidden_size": hidden_size})
        self.query = nn.Linear(query_size, hidden_size, bias=False)  # W
        self.key = nn.Linear(key_size, hidden_size, bias=False)  # U
        self.v = nn.Parameter(torch.full((hidden_size,), hidden_size**-0.5))

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """(..., T, D_q), (..., S, D_k) -> (..., T, S)."""
        return additive(self.query(q), self.key(k), self.v)


def additive(a: Tensor, b: Tensor, v: Tensor) -> Tensor:
    """v . tanh(a_t + b_s) for every pair, in bounded memory.

    The tanh has T * S * A inputs. If that exceeds `BUDGET`, queries are processed in chunks, which
    the backward pass recomputes instead of storing.

    Args:
        a: projected queries (..., T, A).
        b: projected keys (..., S, A).
        v: (A,), or (H, A) where a and b are (B, H, ..., A).

    Returns:
        (..., T, S), fp32 at least.
    """
    dtype = torch.promote_types(a.dtype, torch.float32)
    a, b, v = a.to(dtype), b.to(dtype), v.to(dtype)
    v = v[:, None] if v.ndim == 1 else v[:, None, :, None]  # (A, 1) or (H, 1, A, 1)
    row = max(1, b.numel())  # the numbers of one query, over the batch
    chunk = max(1, BUDGET // row)
    if a.shape[-2] <= chunk:
        return _additive(a, b, v)
    parts = [
        checkpoint(_additive, part, b, v, use_reentrant=False, preserve_rng_state=False)
        for part in a.split(chunk, dim=-2)
    ]
    return torch.cat(parts, dim=-2)


def _additive(a: Tensor, b: Tensor, v: Tensor) -> Tensor:
    with torch.autocast(a.device.type, enabled=False):
        hidden = (a.unsqueeze(-2) + b.unsqueeze(-3)).tanh()  # (..., T, S, A)
        return (hidden @ v).squeeze(-1)
