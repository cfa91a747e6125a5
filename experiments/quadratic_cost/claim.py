"""Time and memory of attention as functions of T: what is quadratic, and what is not."""

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from attnlab.attention import kernels, masks
from attnlab.claims import AtLeast, Claim, Measured, Pilot, Within
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


def operations(seed: int) -> Mapping[str, Any]:
    """Floating-point operations of the matrix products of a pass of the manual kernel."""
    counts = []
    for T in SIZES:
        inputs, mask = _inputs(T, seed), masks.build_mask(masks.causal, T)
        with FlopCounterMode(display=False) as counter:
            _step("manual", inputs, mask)
        counts.append(counter.get_total_flops())
    return {"manual": counts, "manual exponent": slope(SIZES, counts)}


CLAIM = Claim(
    says="Attention costs O(T^2).",
    last_look=10,
    first_seed=300,
    headline="memory_manual",
    order=7,
    predictions=(
        Measured(
            "memory_manual",
            "The memory of the manual kernel grows like T^2.",
            Within(0.1, center=2.0, unit="(exponent of T)"),
            pilot=Pilot(1.984),
            seconds=2,
            where="memory, manual kernel, T = 512 to 4,096",
            measure=memory,
            value="manual exponent",
        ),
        Measured(
            "memory_sdpa",
            "The memory of SDPA grows like T.",
            Within(0.15, center=1.0, unit="(exponent of T)"),
            pilot=Pilot(0.897),
            seconds=2,
            where="memory, SDPA, T = 512 to 4,096",
            bearing="against",
            measure=memory,
            value="sdpa exponent",
        ),
        Measured(
            "operations",
            "The operations of the manual kernel grow like T^2.",
            Within(0.01, center=2.0, unit="(exponent of T)"),
            role="secondary",
            pilot=Pilot(2.0),
            seconds=2,
            measure=operations,
            value="manual exponent",
        ),
        Measured(
            "time_manual",
            "The exponent of the CPU time of the manual kernel.",
            AtLeast(0.0, unit="(exponent of T)"),
            role="shown",
            seeds=10,
            seconds=4,
            timed=True,
            measure=seconds,
            value="manual exponent",
        ),
        Measured(
            "time_sdpa",
            "The exponent of the CPU time of SDPA.",
            AtLeast(0.0, unit="(exponent of T)"),
            role="shown",
            seeds=10,
            seconds=4,
            timed=True,
            measure=seconds,
            value="sdpa exponent",
        ),
    ),
)
