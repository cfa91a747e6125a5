"""The processor of this machine: its model and its instruction set."""

import platform
import re
from pathlib import Path

import torch

# Environment variables that choose a smaller instruction set than the processor has. Each library
# of matrix products has its own; they are read when torch is imported.
SMALLER_SETS = {
    "AVX2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
    "SSE4.2": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    },
}


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
