"""Named streams of randomness (weights, data, dropout), and rules that draw weights from them.

A stream starts from (seed, name, step). `attnlab.init` says which parameter has which rule.
"""

import hashlib
import random
import sys
from collections.abc import Callable

import torch
from torch import Tensor

Rule = Callable[[Tensor, torch.Generator], None]


def stream_seed(seed: int, stream: str, step: int = 0) -> int:
    """A 63-bit seed from (seed, stream, step), the same on every machine and in every process."""
    digest = hashlib.sha256(f"{seed}/{stream}/{step}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(seed: int, stream: str, step: int = 0) -> torch.Generator:
    """A CPU generator at the start of the stream's given step."""
    return torch.Generator().manual_seed(stream_seed(seed, stream, step))


def seed_default(seed: int, device: torch.device) -> None:
    """Seed the generators of dropout: those of the CPU, the device, and CUDA."""
    # torch.manual_seed records the call stack for each missing device, a millisecond a call.
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda" or torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    if device.type == "mps":
        torch.mps.manual_seed(seed)


def seed_all(seed: int, device: torch.device) -> None:
    """Seed the default generators of torch, of Python, and of NumPy if it is loaded."""
    seed_default(seed, device)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


def constant(value: float) -> Rule:
    """Fill with one number."""

    def fill(weight: Tensor, stream: torch.Generator) -> None:
        weight.fill_(value)

    return fill


zeros, ones = constant(0.0), constant(1.0)


def normal(std: float) -> Rule:
    """Draw from N(0, std^2), always in fp32 on the CPU, so that all dtypes and devices agree."""

    def draw(weight: Tensor, stream: torch.Generator) -> None:
        weight.copy_(torch.randn(weight.shape, generator=stream) * std)

    return draw


def uniform(low: float, high: float) -> Rule:
    """Draw uniformly from [low, high), in fp32 on the CPU."""

    def draw(weight: Tensor, stream: torch.Generator) -> None:
        weight.copy_(torch.rand(weight.shape, generator=stream) * (high - low) + low)

    return draw
