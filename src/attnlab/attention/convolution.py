"""A short causal convolution over time, one filter a channel."""

import torch
import torch.nn.functional as F
from torch import Tensor

from attnlab.attention.cache import KVCache


def convolve(x: Tensor, taps: Tensor, cache: KVCache | None = None) -> Tensor:
    """y_t = sum over m of taps_m * x_(t-m), with zeros before the text: (B, T, W) -> (B, T, W).

    `taps` is (K, W). With a cache, the K - 1 rows before x come from it, and it carries the last
    ones of x on.
    """
    K, T = len(taps), x.shape[1]
    if cache is None or "convolution" not in cache.carried:
        rows = F.pad(x, (0, 0, K - 1, 0))
    else:
        rows = torch.cat([cache.carried["convolution"], x], dim=1)
    if cache is not None:
        cache.carried["convolution"] = rows[:, T:]
    y = rows[:, K - 1 :] * taps[0]
    for m in range(1, K):
        y = y + rows[:, K - 1 - m : K - 1 - m + T] * taps[m]
    return y
