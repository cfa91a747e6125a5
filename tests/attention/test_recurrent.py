"""Recurrent layers compared with a loop over single positions, in NumPy."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attnlab.attention import recurrent
from attnlab.attention.cache import KVCache
from attnlab.attention.recurrent import DeltaAttention
from attnlab.attention.variant import AttentionConfig
from attnlab.rng import generator

B, T, C, H = 2, 11, 12, 3
D = C // H
LAYERS: dict[str, dict[str, Any]] = {
    "delta_net": {},
    "delta_net_negative": {"beta_max": 2.0},
    "gated_delta_net": {"decay": "head"},
    "kda": {"decay": "channel"},
    "decay": {"decay": "head", "delta": False},
    "retention": {"decay": "fixed", "delta": False},
    "gated_linear": {"decay": "channel", "delta": False},
    "no convolution": {"taps": 0},
}


def layer_of(name: str) -> DeltaAttention:
    layer = DeltaAttention(AttentionConfig(C, H, 16), **LAYERS[name]).double()
    with torch.no_grad():
        for parameter, weight in layer.named_parameters():
            stream = generator(0, parameter)
            if parameter in ("log_rate", "dt"):
                DeltaAttention.init_rules[parameter](weight, stream)
            else:
                weight.copy_(torch.randn(weight.shape, generator=stream) / 2)
    return layer


def inputs() -> Tensor:
    return torch.randn(B, T, C, dtype=torch.float64, generator=generator(1, "x"))


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def by_recurrence(layer: DeltaAttention, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The output (B, T, C), and the mixed values (B, H, T, D), one position after the other."""
    weights = {name: w.detach().numpy() for name, w in layer.named_parameters()}
    mixed = np.zeros((B, H, T, D))
    for b, h in np.ndindex(B, H):
        state = np.zeros((D, D))
        rows = x[b].numpy() @ weights["qkv.weight"].T + weights["qkv.bias"]
        for t in range(T):
            row = rows[t]
            if layer.conv is not None:
                row = sum(w * rows[t - m] for m, w in enumerate(weights["conv"]) if m <= t)
            row = row * sigmoid(row)
            q, k, v = (row[i * C + h * D : i * C + (h + 1) * D] for i in range(3))
            q, k = (u / math.sqrt(u @ u + 1e-6) for u in (q, k))
            state = decay_of(layer, weights, x[b, t].numpy(), h)[:, None] * state
            change = v
            if layer.delta:
                strength = layer.beta_max * sigmoid(weights["beta.weight"][h] @ x[b, t].numpy())
                change = strength * (v - state.T @ k)
            state = state + np.outer(k, change)
            mixed[b, h, t] = state.T @ q / math.sqrt(D)
    normed = mixed / np.sqrt(np.square(mixed).mean(-1, keepdims=True) + 1e-5) * weights["norm"]
    heads = normed.transpose(0, 2, 1, 3).reshape(B, T, C)
    return heads @ weights["proj.weight"].T + weights["proj.bias"], mixed


def decay_of(layer: DeltaAttention, weights: Any, x: np.ndarray, h: int) -> np.ndarray:
    if layer.decay is None:
        return np.ones(D)
    if layer.decay == "fixed":
        return np.full(D, 1 - 2.0 ** (-5 - h))
    for name in sorted(name for name in weights if name.startswith("alpha")):
        x = weights[name] @ x
    x = (x + weights["dt"]).reshape(H, -1)[h]
    return np.exp(-np.exp(weights["log_rate"][h]) * np.log1p(np.exp(x))) * np.ones(D)


@pytest.mark.parametrize("chunk", [64, 4])
@pytest.mark.parametrize("name", LAYERS)
def test_output_and_pattern_equal_the_recurrence(
    name: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recurrent, "CHUNK", chunk)
    layer, x = layer_of(name), inputs()
    output, mixed = by_recurrence(layer, x)
    np.testing.assert_allclose(layer(x).detach().numpy(), output, rtol=0, atol=1e-12)
    _, _, v = layer.split(x)
    ours = (layer.pattern(x) @ v).detach().numpy()
    np.testing.assert_allclose(ours, mixed, rtol=0, atol=1e-12)


def test_scores_are_what_a_query_reads_before_decay_and_the_delta_rule() -> None:
    """Without them, the pattern is that of the scores; `split` divides queries by sqrt(D)."""
    layer = DeltaAttention(AttentionConfig(C, H, 16), delta=False).double()
    x = inputs()
    pattern = layer.pattern(x)
    torch.testing.assert_close(pattern, layer.scores(x).tril(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", LAYERS)
def test_the_cache_has_a_fixed_size_and_gives_the_same_outputs(name: str) -> None:
    layer, x = layer_of(name), inputs()
    cache = KVCache(16)
    pieces = [layer.extend(piece, cache) for piece in x.split([3, 1, 5, 2], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, 1), layer(x), rtol=0, atol=1e-12)
    convolved = 0 if layer.conv is None else 3 * 3 * C
    assert cache.numbers() == B * (C * D + convolved)


@pytest.mark.parametrize("name", ["kda", "gated_delta_net"])
def test_a_strong_decay_neither_overflows_nor_stops_gradients(name: str) -> None:
    layer = layer_of(name).float()
    with torch.no_grad():
        layer.dt.fill_(50.0)  # the state is multiplied by less than e^-50 at each position
    layer(inputs().float()).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scale": 1.0}, "does not support scale"),
        ({"window": 4}, "does not support window"),
        ({"dropout": 0.1}, "has no dropout"),
    ],
)
def test_settings_that_need_scores_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DeltaAttention(AttentionConfig(C, H, 16, **settings))


@pytest.mark.parametrize(
    "settings", [{"decay": "rows"}, {"beta_max": 2.5}, {"beta_max": 0}, {"taps": -1}]
)
def test_numbers_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(settings))} = "):
        DeltaAttention(AttentionConfig(C, H, 16), **settings)
