"""CPU time and operations of a self-attention layer and of recurrent layers, by length.

Letters: B sequences, T positions, C channels.
"""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.attention import AttentionConfig, SelfAttention
from attnlab.rng import generator

B, C, HEADS = 8, 128, 2
SIZES = [2**k for k in range(4, 12)]  # T = 16 ... 2048
ROUNDS = 5
RECURRENT = {"GRU": nn.GRU, "RNN": nn.RNN}


def layers(T: int) -> dict[str, nn.Module]:
    """One layer of each kind, from C channels to C."""
    made: dict[str, nn.Module] = {
        name: kind(C, C, batch_first=True) for name, kind in RECURRENT.items()
    }
    config = AttentionConfig(C, HEADS, block_size=T, bias=False)
    return made | {"attention": SelfAttention(config)}


def times(seed: int) -> Mapping[str, Any]:
    """CPU seconds of forward and backward passes, by length, and ratios to those of attention.

    A round measures every layer once, so that the speed of the machine is the same for all of
    them; a ratio is the median over rounds. CPU time hardly depends on other programs. A worker
    has one thread.
    """
    found: dict[str, Any] = {name: [] for name in (*RECURRENT, "attention")}
    ratios: dict[str, list[float]] = {name: [] for name in RECURRENT}
    for T in SIZES:
        x = torch.randn(B, T, C, generator=generator(seed, f"recurrent_cost/{T}"))
        kinds = layers(T)
        rounds = [{name: _seconds(kinds[name], x) for name in kinds} for _ in range(ROUNDS + 1)]
        rounds = rounds[1:]  # the first one warms up
        for name in kinds:
            found[name].append(statistics.median(taken[name] for taken in rounds))
        for name in RECURRENT:
            ratios[name].append(statistics.median(r[name] / r["attention"] for r in rounds))
    for name in RECURRENT:
        found |= {f"{name} at {T}": x for T, x in zip(SIZES, ratios[name], strict=True)}
        found[f"{name} crossover"] = crossover(ratios[name])
    return found


def crossover(ratios: Sequence[float]) -> float:
    """The first T / C at which a recurrent layer is as fast as attention, interpolated between
    the logarithms; infinity if there is none."""
    for n in range(1, len(ratios)):
        if ratios[n - 1] > 1 >= ratios[n]:
            above, below = math.log(ratios[n - 1]), math.log(ratios[n])
            return SIZES[n - 1] / C * (SIZES[n] / SIZES[n - 1]) ** (above / (above - below))
    return math.inf


def _seconds(layer: nn.Module, x: Tensor) -> float:
    began = time.process_time()
    y = layer(x)
    (y if isinstance(y, Tensor) else y[0]).sum().backward()
    return time.process_time() - began
