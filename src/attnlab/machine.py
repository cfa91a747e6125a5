"""The machine that a result comes from: sums are rounded differently on another one."""

import platform
from functools import cache
from pathlib import Path

import torch


@cache
def processor() -> str:
    """The model of the processor, such as "AMD EPYC 9B14"; on other systems than Linux, what
    Python knows of it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    values = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    known = [*values, platform.processor(), platform.machine()]
    return next(name for name in [*known, "unknown"] if name)


def instruction_set() -> str:
    """What PyTorch uses of the processor, such as "AVX2" or "AVX512"."""
    return torch.backends.cpu.get_cpu_capability()
