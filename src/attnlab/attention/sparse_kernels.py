"""Kernels whose weights are not a softmax of all visible scores; most give exact zeros.

They have the signature of `attnlab.attention.kernels`, and compute in fp32 at least.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from attnlab.attention.kernels import Mod, masked_softmax, mix, scores
from attnlab.attention.properties import Properties, declare


def top_k(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor,
    scale: float,
    dropout: float,
    mod: Mod = None,
    top_k: int = 8,
) -> Tensor:
    """The softmax over the `top_k` largest visible scores of each query (Gupta et al. 2021).

    The scores are chosen after the mask: chosen before it, a later key could displace an earlier
    one. All keys whose scores equal the last one are kept.
    """
    visible = scores(q, k, scale=scale, mod=mod).masked_fill(~mask, float("-inf"))
    last = visible.topk(min(top_k, visible.shape[-1]), dim=-1).values[..., -1:]  # (B, H, T, 1)
    return mix(masked_softmax(visible, mask & (visible >= last)), v, dropout=dropout)


declare(top_k, Properties(rows_sum_to_1=True, nonnegative=True, cacheable=True))


def sparsemax(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float, mod: Mod = None
) -> Tensor:
    """max(s - tau, 0), tau such that the row sums to 1 (Martins and Astudillo 2016, equation 2).

    It is the point of the simplex closest to the scores.
    """
    z = _below_largest(scores(q, k, scale=scale, mod=mod), mask)
    support = _support(z, power=1)
    tau = (z.where(support, 0).sum(-1, keepdim=True) - 1) / support.sum(-1, keepdim=True)
    return mix((z - tau).relu(), v, dropout=dropout)


declare(sparsemax, Properties(rows_sum_to_1=True, nonnegative=True, cacheable=True))


def entmax15(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float, mod: Mod = None
) -> Tensor:
    """max(s / 2 - tau, 0)^2, tau such that the row sums to 1 (Peters et al. 2019).

    It is entmax with alpha = 1.5, between softmax (1) and sparsemax (2).
    """
    z = _below_largest(scores(q, k, scale=scale, mod=mod) / 2, mask)
    support = _support(z, power=2)
    n = support.sum(-1, keepdim=True)
    mean = z.where(support, 0).sum(-1, keepdim=True) / n
    spread = (z - mean).where(support, 0).square().sum(-1, keepdim=True)
    tau = mean - ((1 - spread) / n).sqrt()  # n (mean - tau)^2 + spread = 1
    return mix((z - tau).relu().square(), v, dropout=dropout)


declare(entmax15, Properties(rows_sum_to_1=True, nonnegative=True, cacheable=True))


def _below_largest(s: Tensor, mask: Tensor) -> Tensor:
    """Scores minus the largest visible one of their row, at least -2; blocked ones -2.

    tau is at least -1 on this scale, so all at -2 have weight 0. A row without keys is NaN.
    """
    visible = s.masked_fill(~mask, float("-inf"))
    return (visible - visible.amax(-1, keepdim=True)).clamp(min=-2)


@torch.no_grad()
def _support(z: Tensor, *, power: int) -> Tensor:
    """Where max(z - tau, 0)^power is positive if it sums to 1 over each row: bool, like z.

    With a threshold at the key j, the sum would be that of (z_i - z_j)^power over the larger z_i;
    j belongs to the support if that is less than 1.
    """
    ordered = z.sort(dim=-1, descending=True).values
    rank = torch.arange(1, z.shape[-1] + 1, device=z.device)
    total = ordered.cumsum(-1)
    reached = total - rank * ordered
    if power == 2:
        reached = ordered.square().cumsum(-1) - 2 * ordered * total + rank * ordered.square()
    last = (reached < 1).sum(-1, keepdim=True).clamp(min=1) - 1
    return z >= ordered.gather(-1, last)


def softpick(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float, mod: Mod = None
) -> Tensor:
    """max(e^s - 1, 0) over the sum of abs(e^s - 1) of the visible keys (Zuhri et al. 2025).

    A head can attend to nothing: the row is 0 if no score is positive. 1e-8 is added to the sum,
    after both are divided by the largest e^s where that exceeds 1.
    """
    s = scores(q, k, scale=scale, mod=mod).masked_fill(~mask, 0)  # e^0 - 1 = 0: no weight
    largest = s.amax(-1, keepdim=True).clamp(min=0)
    picked = (s - largest).exp() - (-largest).exp()
    pattern = picked.relu() / (picked.abs().sum(-1, keepdim=True) + 1e-8)
    return mix(pattern, v, dropout=dropout)


declare(softpick, Properties(nonnegative=True, cacheable=True))


def stick_breaking(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float, mod: Mod = None
) -> Tensor:
    """sigmoid(s_ij) prod (1 - sigmoid(s_il)) over j < l < i (Tan et al. 2024).

    Going back from a query, each earlier key takes a share of what the later ones left. The query
    itself gets the rest, so rows sum to 1; the paper's formula leaves it out. The order of the
    keys acts as positions.
    """
    s = scores(q, k, scale=scale, mod=mod)
    T, S = s.shape[-2:]
    own = torch.ones(T, S, dtype=torch.bool, device=s.device).triu(S - T).tril(S - T)
    past = mask & torch.ones_like(own).tril(S - T - 1)
    kept = F.logsigmoid(-s).masked_fill(~past, 0)  # log of what each key leaves
    between = F.pad(kept.flip(-1).cumsum(-1).flip(-1)[..., 1:], (0, 1))  # sum over l > j
    taken = (F.logsigmoid(s) + between).exp() * past
    rest = kept.sum(-1, keepdim=True).exp() * (own & mask)
    return mix(taken + rest, v, dropout=dropout)


declare(
    stick_breaking,
    Properties(rows_sum_to_1=True, nonnegative=True, cacheable=True, causal_only=True),
)
