"""Latent attention compared with its absorbed form, in NumPy."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from attnlab.attention import kernels
from attnlab.attention.cache import KVCache
from attnlab.attention.latent import LatentAttention
from attnlab.attention.variant import AttentionConfig
from attnlab.rng import generator

B, T, C, H = 2, 11, 12, 3
D = C // H


def layer_and_inputs() -> tuple[LatentAttention, Tensor]:
    layer = LatentAttention(AttentionConfig(C, H, 16)).double()
    with torch.no_grad():
        for name, weight in layer.named_parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator(0, name)) / 2)
    return layer, torch.randn(B, T, C, dtype=torch.float64, generator=generator(1, "x"))


def rotated(x: np.ndarray, position: int) -> np.ndarray:
    y = x.copy()
    for i in range(0, len(x), 2):
        angle = position * 10_000 ** (-i / len(x))
        y[i] = math.cos(angle) * x[i] - math.sin(angle) * x[i + 1]
        y[i + 1] = math.sin(angle) * x[i] + math.cos(angle) * x[i + 1]
    return y


def test_it_equals_the_absorbed_form() -> None:
    """Scores and outputs from the latent vectors alone: no keys and no values are made."""
    layer, x = layer_and_inputs()
    weights = {name: w.detach().numpy() for name, w in layer.named_parameters()}
    L, R, up = layer.latent, layer.rotated, weights["up.weight"]
    mixed = np.zeros((B, T, C))
    for b in range(B):
        rows = x[b].numpy() @ weights["qkv.weight"].T + weights["qkv.bias"]
        queries = rows[:, : H * (D + R)].reshape(T, H, D + R)
        latent, shared = rows[:, -L - R : -R], rows[:, -R:]
        size = np.sqrt(np.square(latent).mean(-1, keepdims=True) + 1e-5)
        latent = latent / size * weights["norm.weight"]
        for h in range(H):
            up_k, up_v = up[h * D : (h + 1) * D], up[C + h * D : C + (h + 1) * D]
            for i in range(T):
                absorbed, turned = up_k.T @ queries[i, h, :D], rotated(queries[i, h, D:], i)
                scores = [
                    absorbed @ latent[j] + turned @ rotated(shared[j], j) for j in range(i + 1)
                ]
                share = np.exp(np.array(scores) / math.sqrt(D + R))
                mixed[b, i, h * D : (h + 1) * D] = up_v @ (share / share.sum() @ latent[: i + 1])
    expected = mixed @ weights["proj.weight"].T + weights["proj.bias"]
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, rtol=0, atol=1e-12)


def test_only_the_latent_vector_and_the_shared_part_are_cached() -> None:
    layer, x = layer_and_inputs()
    cache = KVCache(16)
    pieces = [layer.extend(piece, cache) for piece in x.split([3, 1, 5, 2], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, 1), layer(x), rtol=0, atol=1e-12)
    assert cache.numbers() == B * T * (layer.latent + layer.rotated) == B * T * (C // 2 + D // 2)


def test_linear_attention_is_refused() -> None:
    with pytest.raises(ValueError, match="LatentAttention does not support kernel = linear"):
        LatentAttention(AttentionConfig(24, 3, 9, kernel=kernels.linear))


def test_an_odd_rotated_part_is_refused() -> None:
    with pytest.raises(ValueError, match="rotated = 3 must be even"):
        LatentAttention(AttentionConfig(C, H, 16), rotated=3)
