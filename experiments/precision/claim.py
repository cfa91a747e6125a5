"""Which dtype differs most from fp64, and the effect of large scores."""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnlab.attention import kernels, masks
from attnlab.claims import AtLeast, AtMost, Bound, Claim, Measured, Pilot
from attnlab.rng import generator

T, D = 128, 32
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SCORES = (1, 64)


def naive(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    """The kernel as it is often written: scores and softmax in the dtype of the inputs."""
    s = (q @ k.mT * scale).masked_fill(~mask, float("-inf"))
    return s.softmax(-1) @ v


def sdpa(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float) -> Tensor:
    """PyTorch's kernel in the inputs' dtype; ours computes short bf16 texts in fp32 on a CPU."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)


KERNELS = {"manual": kernels.manual, "sdpa": sdpa, "naive": naive}


def errors(seed: int) -> Mapping[str, Any]:
    """Largest error of every kernel and dtype, relative to fp64 on the same rounded inputs."""
    stream = generator(seed, "precision")
    q, k, v = (torch.randn(2, 4, T, D, generator=stream) for _ in range(3))
    mask = masks.build_mask(masks.causal, T)
    found: dict[str, Any] = {}
    for factor in SCORES:
        scale = factor / math.sqrt(D)
        for name, dtype in DTYPES.items():
            a, b, c = (x.to(dtype) for x in (q, k, v))
            doubled = (x.double() for x in (a, b, c))
            exact = kernels.manual(*doubled, mask=mask, scale=scale, dropout=0.0)
            for kernel in KERNELS:
                y = KERNELS[kernel](a, b, c, mask=mask, scale=scale, dropout=0.0)
                error = float((y.double() - exact).abs().max())
                found[f"{kernel} {name} x{factor}"] = error
    found["fp32"] = max(found[f"{kernel} fp32 x1"] for kernel in ("manual", "sdpa"))
    found["bf16 over fp16"] = found["sdpa bf16 x1"] / found["sdpa fp16 x1"]
    found["upcast"] = found["manual bf16 x64"] / found["sdpa bf16 x64"]
    found["naive"] = found["naive bf16 x64"] / found["manual bf16 x64"]
    return found


CLAIM = Claim(
    says="bf16 differs most from exact attention, and large scores make it worse.",
    last_look=40,
    first_seed=300,
    headline="bf16_worst",
    order=5,
    predictions=(
        Measured(
            "bf16_worst",
            "The error of bf16 is at least 4 times that of fp16 (by the number of bits: 8 times).",
            AtLeast(4.0, unit="times"),
            pilot=Pilot(7.57, 2.6),
            seconds=1,
            where="bf16 against fp16, scores of unit size",
            measure=errors,
            value="bf16 over fp16",
        ),
        Measured(
            "large_scores",
            "With scores 64 times as large, a kernel in bf16 errs 5 times as much as one in fp32.",
            AtLeast(5.0, unit="times"),
            pilot=Pilot(74.9, 22),
            seconds=1,
            where="scores 64 times as large, kernel all in bf16",
            measure=errors,
            value="naive",
        ),
        Measured(
            "upcast",
            "With scores in fp32, the error of the manual kernel is at most 4 times that of SDPA.",
            AtMost(4.0, unit="times"),
            pilot=Pilot(1.4, 0.19),
            seconds=1,
            where="scores computed in fp32",
            bearing="against",
            measure=errors,
            value="upcast",
        ),
        Measured(
            "fp32",
            "In fp32, both kernels are exact to 1e-5.",
            Bound(1e-5),
            role="secondary",
            seconds=1,
            measure=errors,
            value="fp32",
        ),
    ),
)
