"""The scale at initialization, compared with theory, and training without it in an exact test."""

import copy
import math
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnlab.attention import AttentionConfig, SelfAttention
from attnlab.attention.core import scores
from attnlab.init import init_weights
from attnlab.model import GPT
from attnlab.rng import generator
from experiments.unscaled.random_energy import random_energy

SIZES = [2**k for k in range(11)]  # D = 1 ... 1024
KEYS = 256


def at_initialization(seed: int) -> Mapping[str, Any]:
    """Scores of unit-variance queries and keys over 256 independent inputs, D from 1 to 1024."""
    x = F.layer_norm(torch.randn(1, KEYS, 1024, generator=generator(seed, "inputs")), [1024])
    weight = torch.randn(3072, 1024, generator=generator(seed, "weights")) / 32  # 1/sqrt(C)
    found: dict[str, Any] = {name: {} for name in ("spread", "entropy", "trace", "largest")}
    errors: dict[str, list[float]] = {name: [] for name in ("spread", "entropy", "trace")}
    for D in SIZES:
        layer = SelfAttention(AttentionConfig(1024, 1024 // D, block_size=KEYS, bias=False))
        layer.qkv.weight.data.copy_(weight)
        with torch.no_grad():
            q, k, _ = layer.split(x)
        q, k = q[:, :16].double(), k[:, :16].double()  # 16 heads are enough
        for name, scale in (("scaled", 1 / math.sqrt(D)), ("unscaled", 1.0)):
            seen = _softmax_of(scores(q, k, scale=scale))
            theory = _theory(D, scale)
            for what in errors:
                error = abs(seen[what] - theory[what])
                errors[what].append(error / theory[what] if what == "spread" else error)
            for what in found:
                found[what].setdefault(name, []).append(seen[what])
    for key, what in (("theory", "entropy"), ("theory of the trace", "trace")):
        found[key] = {
            name: [_theory(D, 1.0 if name == "unscaled" else D**-0.5)[what] for D in SIZES]
            for name in ("scaled", "unscaled")
        }
    return found | {f"{what} error": sum(e) / len(e) for what, e in errors.items()}


def gpt2_scores(seed: int) -> Mapping[str, Any]:
    """Spread of the unscaled scores of a first layer with GPT-2's initialization, std 0.02."""
    found: dict[str, Any] = {}
    errors = []
    for C, D in ((128, 128), (768, 64), (1600, 64)):
        layer = SelfAttention(AttentionConfig(C, C // D, block_size=KEYS, bias=False))
        weight = torch.randn(3 * C, C, generator=generator(seed, f"weights/{C}"))
        layer.qkv.weight.data.copy_(0.02 * weight)
        x = F.layer_norm(torch.randn(1, KEYS, C, generator=generator(seed, f"inputs/{C}")), [C])
        with torch.no_grad():
            q, k, _ = layer.split(x)
        measured = _softmax_of(scores(q.double(), k.double(), scale=1.0))["spread"]
        found[f"C = {C}, D = {D}"] = measured
        errors.append(abs(measured / (math.sqrt(D) * C * 0.02**2) - 1))
    return found | {"error": sum(errors) / len(errors)}


def _softmax_of(s: Tensor) -> dict[str, float]:
    p = s.softmax(-1)
    return {
        "spread": float(s.std(-1).square().mean().sqrt()),
        "entropy": float(-torch.special.xlogy(p, p).sum(-1).mean()),
        "trace": float((1 - p.square().sum(-1)).mean()),
        "largest": float(p.amax(-1).mean()),
    }


@cache
def _theory(D: int, scale: float) -> dict[str, float]:
    """Given a query, the scores are Gaussian with std scale * |q|, and |q|^2 is chi-squared."""
    q = torch.randn(4096, D, generator=generator(0, f"chi/{D}"), dtype=torch.float64).norm(dim=-1)
    lengths = q.sort().values.view(8, -1).mean(-1)
    n = torch.tensor([KEYS])
    both = [random_energy(scale * float(length), n) for length in lengths]
    entropy, trace = (torch.stack([pair[i] for pair in both]).mean() for i in (0, 1))
    return {
        "spread": scale * math.sqrt(D),
        "entropy": float(entropy),
        "trace": float(trace),
    }


def identity(seed: int) -> Mapping[str, Any]:
    """Unscaled weights W against scaled ones theta W, theta = D^(1/4), with theta times the rate.

    Both models are one function and stay one function under Adam (abc-symmetry, Yang and Hu 2021),
    in fp64, 40 steps; Adam's epsilon shrinks like the gradients.
    """
    D = 64
    theta = D**0.25
    make = partial(GPT, vocab_size=31, block_size=16, n_layer=2, n_head=1, n_embd=D, bias=False)
    plain = make(partial(SelfAttention, scale=1.0)).double()
    scaled = make(SelfAttention).double()
    init_weights(plain, seed, "gpt2")  # calmer than "unit": rounding errors grow less
    scaled.load_state_dict(copy.deepcopy(plain.state_dict()))
    rates = []
    for net, factor in ((plain, 1.0), (scaled, theta)):
        rates.append({name: torch.ones_like(p) for name, p in net.named_parameters()})
        for i, block in enumerate(net.blocks):
            block.attn.qkv.weight.data[: 2 * D] *= factor
            rates[-1][f"blocks.{i}.attn.qkv.weight"][: 2 * D] *= factor
    stream = generator(seed, "identity")
    batches = [torch.randint(31, (4, 17), generator=stream) for _ in range(40)]
    first, second = (_adam(n, r, batches) for n, r in zip((plain, scaled), rates, strict=True))
    return {"difference": max(abs(a - b) for a, b in zip(first, second, strict=True))}


def _adam(net: GPT, rates: dict[str, Tensor], batches: list[Tensor]) -> list[float]:
    moments = {name: (torch.zeros_like(r), torch.zeros_like(r)) for name, r in rates.items()}
    losses = []
    for t, ids in enumerate(batches, 1):
        loss = F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        net.zero_grad()
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for name, p in net.named_parameters():
                assert p.grad is not None
                m, v = moments[name]
                m.lerp_(p.grad, 0.1)
                v.lerp_(p.grad.square(), 0.01)
                # Gradients are theta times smaller where weights are theta times larger.
                epsilon = 1e-8 / rates[name]
                step = (m / (1 - 0.9**t)) / ((v / (1 - 0.99**t)).sqrt() + epsilon)
                p -= 1e-3 * rates[name] * step
    return losses
