"""The processor of this machine: model, instruction set, and whether it computes in bf16."""

import platform
import re
from functools import cache
from pathlib import Path

import torch


def processor_model() -> str:
    """The name that the processor gives itself, such as "AMD EPYC"."""
    file = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*: (.*)", file.read_text()) if file.exists() else None
    return named[1] if named else platform.processor() or platform.machine()


def instruction_set() -> str:
    """The instruction set that PyTorch uses: "AVX2", "AVX512", "DEFAULT", ...

    The environment variable ATEN_CPU_CAPABILITY can choose a smaller one than the processor has.
    """
    return torch.backends.cpu.get_cpu_capability()


@cache
def has_bf16() -> bool:
    """Whether the processor multiplies matrices in bf16; elsewhere PyTorch emulates it, slowly.

    The instructions belong to AVX-512, so a smaller instruction set has none of them, even on a
    processor that does.
    """
    if not instruction_set().startswith("AVX512"):
        return False
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
