"""The second version of differential attention compared with a loop, in NumPy."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from attnlab.attention import AttentionConfig, DifferentialAttentionV2
from attnlab.attention.cache import KVCache
from attnlab.rng import generator
from tests.oracle import Array

B, T, C, H = 2, 9, 24, 3
D = C // H
PLANTED = ["exponential", "lambda of another head", "keys of another head", "scale of half a head"]


def layer_and_inputs() -> tuple[DifferentialAttentionV2, Tensor]:
    layer = DifferentialAttentionV2(AttentionConfig(C, H, 16)).double()
    with torch.no_grad():
        for name, weight in layer.named_parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator(0, name)) / 2)
    return layer, torch.randn(B, T, C, dtype=torch.float64, generator=generator(1, "x"))


def output(layer: DifferentialAttentionV2, x: Array, planted: str = "") -> tuple[Array, Array]:
    """The output (B, T, C) and the patterns (B, H, T, T)."""
    w = {name: weight.detach().numpy() for name, weight in layer.named_parameters()}
    heads, patterns = np.zeros((B, T, C)), np.zeros((B, H, T, T))
    scale = math.sqrt(D / 2 if planted == "scale of half a head" else D)
    for b, h in np.ndindex(B, H):
        own = slice(h * D, (h + 1) * D)
        rows = x[b] @ w["qkv.weight"].T + w["qkv.bias"]
        q, k, v = (part[:, own] for part in np.split(rows, 3, axis=1))
        second = (x[b] @ w["second.weight"].T + w["second.bias"])[:, own]
        k2 = np.roll(rows[:, C : 2 * C], D, 1)[:, own] if planted == "keys of another head" else k
        for i in range(T):
            g = w["lambdas.weight"][(h + 1) % H if "lambda of" in planted else h] @ x[b, i]
            part = math.exp(g) if planted == "exponential" else 1 / (1 + math.exp(-g))
            first = np.exp([q[i] @ k[j] / scale for j in range(i + 1)])
            other = np.exp([second[i] @ k2[j] / scale for j in range(i + 1)])
            patterns[b, h, i, : i + 1] = first / first.sum() - part * other / other.sum()
        heads[b, :, own] = patterns[b, h] @ v
    return heads @ w["proj.weight"].T + w["proj.bias"], patterns


def test_output_and_pattern_equal_the_loop() -> None:
    layer, x = layer_and_inputs()
    expected, patterns = output(layer, x.numpy())
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(layer.pattern(x).detach().numpy(), patterns, rtol=0, atol=1e-12)
    lambdas = layer.lambdas(x).sigmoid().mT
    torch.testing.assert_close(layer.pattern(x).sum(-1), 1 - lambdas, rtol=0, atol=1e-12)


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_error_shows(planted: str) -> None:
    layer, x = layer_and_inputs()
    wrong, _ = output(layer, x.numpy(), planted)
    assert np.abs(layer(x).detach().numpy() - wrong).max() > 1e-2


def test_both_heads_of_a_pair_share_the_cached_keys_and_values() -> None:
    layer, x = layer_and_inputs()
    cache = KVCache(16)
    pieces = [layer.extend(piece, cache) for piece in x.split([3, 1, 5], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, 1), layer(x), rtol=0, atol=1e-12)
    assert cache.numbers() == B * T * 2 * C
