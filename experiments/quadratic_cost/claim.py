"""Time and memory of attention as functions of T: what is quadratic, and what is not."""

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from attnlab.attention import kernels, masks
from attnlab.claims import AtLeast, AtMost, Claim, Measured, Pilot
from attnlab.claims.statistics import slope
from attnlab.rng import generator

SIZES = [2**k for k in range(5, 13)]  # T = 32 ... 4096
FITTED = [T for T in SIZES if T >= 512]  # below, launching kernels dominates the time
H, D = 2, 32
KERNELS = {"manual": kernels.manual, "sdpa": kernels.sdpa}


def _inputs(T: int, seed: int) -> list[Tensor]:
    stream = generator(seed, f"cost/{T}")
    return [torch.randn(1, H, T, D, generator=stream).requires_grad_() for _ in range(3)]


def _step(name: str, inputs: list[Tensor], mask: Tensor) -> None:
    y = KERNELS[name](*inputs, mask=mask, scale=D**-0.5, dropout=0.0)
    y.sum().backward()


def seconds(seed: int) -> Mapping[str, Any]:
    """CPU time of the fastest of several forward and backward passes.

    CPU time, so that other programs on the machine hardly matter. A worker has one thread.
    """
    found: dict[str, Any] = {}
    for name in KERNELS:
        found[name] = []
        for T in SIZES:
            inputs, mask = _inputs(T, seed), masks.build_mask(masks.causal, T)
            taken = []
            for _ in range(10 if T <= 1024 else 3):
                began = time.process_time()
                _step(name, inputs, mask)
                taken.append(time.process_time() - began)
            found[name].append(min(taken))
        found[f"{name} exponent"] = slope(FITTED, found[name][-len(FITTED) :])
    return found


def memory(seed: int) -> Mapping[str, Any]:
    """Peak memory of a forward and backward pass, in bytes, without its inputs."""
    found: dict[str, Any] = {}
    for name in KERNELS:
        found[name] = [_peak(name, T, seed) for T in SIZES]
        found[f"{name} exponent"] = slope(FITTED, found[name][-len(FITTED) :])
    return found


def _peak(name: str, T: int, seed: int) -> int:
    inputs, mask = _inputs(T, seed), masks.build_mask(masks.causal, T)
    _step(name, inputs, mask)  # allocates the gradients
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        _step(name, inputs, mask)
    assert seen.profiler is not None and seen.profiler.kineto_results is not None
    events = seen.profiler.kineto_results.events()
    steps = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    held = peak = 0
    for _, change in steps:
        held += change
        peak = max(peak, held)
    return peak


CLAIM = Claim(
    says="Attention costs O(T^2).",
    last_look=20,
    first_seed=200,
    headline="time_manual",
    order=7,
    predictions=(
        Measured(
            "time_manual",
            "The CPU time of the manual kernel grows faster than T^1.5.",
            AtLeast(1.5, unit="(exponent of T)"),
            pilot=Pilot(2.37, 0.07),
            seconds=4,
            where="CPU time, manual kernel",
            timed=True,
            measure=seconds,
            value="manual exponent",
        ),
        Measured(
            "time_sdpa",
            "The CPU time of SDPA grows faster than T^1.5.",
            AtLeast(1.5, unit="(exponent of T)"),
            pilot=Pilot(1.69, 0.05),
            seconds=4,
            where="CPU time, SDPA",
            timed=True,
            measure=seconds,
            value="sdpa exponent",
        ),
        Measured(
            "memory_manual",
            "The memory of the manual kernel grows at least as fast as T^1.8.",
            AtLeast(1.8, unit="(exponent of T)"),
            pilot=Pilot(1.984),
            seconds=2,
            where="memory, manual kernel",
            measure=memory,
            value="manual exponent",
        ),
        Measured(
            "memory_sdpa",
            "The memory of SDPA grows at most linearly: an exponent of at most 1.1.",
            AtMost(1.1, unit="(exponent of T)"),
            pilot=Pilot(0.897),
            seconds=2,
            where="memory, SDPA",
            bearing="against",
            measure=memory,
            value="sdpa exponent",
        ),
    ),
)
