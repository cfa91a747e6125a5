"""The settings of self-attention compared with one loop over queries and keys, in NumPy.

Errors are planted in the loop: the layer must then differ from it, so a layer with such an error
would fail.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attnlab.attention import AttentionConfig, SelfAttention, Variant, log_length, softmax1, top_k
from attnlab.model import GPT
from attnlab.rng import generator
from tests.oracle import Array

B, T, C, H, V = 2, 9, 24, 3, 5
D = C // H
CASES: dict[str, dict[str, Any]] = {
    "gate_head": {"gate": "head"},
    "gate_channel": {"gate": "channel"},
    "gate_bias": {"gate": "head", "gate_bias": 4.0},
    "sink": {"kernel": softmax1, "sink": True},
    "forgetting": {"forget": 0.0},
    "value_residual": {"value_residual": True},
    "value_embeddings": {"value_embeddings": True},
    "exclusive": {"exclusive": True},
    "short_conv": {"conv": 4},
    "scalable_softmax": {"length_scale": True},
    "partial_rotary": {"rotary": 100.0, "rotary_share": 0.5},
}
CASES["all"] = {name: value for case in CASES.values() for name, value in case.items()}
del CASES["all"]["value_embeddings"]  # does not combine with value_residual
PLANTED = {
    "gate_head": ["gate without sigmoid", "gate of another head"],
    "gate_channel": ["gate without sigmoid", "gate of another head"],
    "gate_bias": ["gate without bias", "gate of another head"],
    "sink": ["sink without exp", "scaled sink"],
    "forgetting": ["the key's own gate", "scaled gates"],
    "value_residual": ["mix exchanged", "mix added"],
    "value_embeddings": ["mix exchanged", "next symbol"],
    "exclusive": ["not squared", "value of the first key"],
    "short_conv": ["no residual", "taps reversed"],
    "scalable_softmax": ["ln(n + 1)", "gain of another head"],
    "partial_rotary": ["last channels", "frequencies of the whole head"],
}


def layer_of(layer: int = 1, **given: Any) -> SelfAttention:
    made = SelfAttention(AttentionConfig(C, H, 16, layer=layer, vocab_size=V, **given)).double()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator(0, name)) / 2)
    return made


def x_of() -> Tensor:
    return torch.randn(B, T, C, dtype=torch.float64, generator=generator(1, "x"))


def memo_of() -> dict[str, Tensor]:
    v0 = torch.randn(B, H, T, D, dtype=torch.float64, generator=generator(1, "v0"))
    return {"ids": torch.arange(B * T).reshape(B, T) * 3 % V, "values": v0}


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def turned(u: Array, position: int, case: dict[str, Any], planted: str) -> Array:
    """The pairs of the first channels of a head turned by their angles."""
    width = int(case.get("rotary_share", 1) * D)
    over = D if planted == "frequencies of the whole head" else width
    y = u.copy()
    for pair in range(0, width, 2):
        angle = position * case["rotary"] ** (-pair / over)
        at = pair + D - width if planted == "last channels" else pair
        y[at] = math.cos(angle) * u[at] - math.sin(angle) * u[at + 1]
        y[at + 1] = math.sin(angle) * u[at] + math.cos(angle) * u[at + 1]
    return y


def rows_of(w: dict[str, Array], x: Array, planted: str) -> Array:
    """Queries, keys and values (T, 3C) of x (T, C), convolved."""
    rows = x @ w["qkv.weight"].T + w["qkv.bias"]
    y = np.zeros_like(rows) if planted == "no residual" else rows.copy()
    for t in range(T):
        taps = w.get("conv", np.zeros((0, 3 * C)))
        for m, tap in enumerate(taps[::-1] if planted == "taps reversed" else taps):
            if t >= m:
                y[t] += tap * rows[t - m]
    return y


def mixed_value(
    w: dict[str, Array], v: Array, v0: Array, ids: Array, t: int, h: int, planted: str
) -> Array:
    if "value_mix" not in w:
        return v
    m, other = w["value_mix"], v0[h, t]
    if "value_embeddings.weight" in w:
        symbol = ids[(t + 1) % T] if planted == "next symbol" else ids[t]
        other = w["value_embeddings.weight"][symbol, h * D : (h + 1) * D]
    if planted == "mix exchanged":
        m = 1 - m
    return v + m * other if planted == "mix added" else (1 - m) * v + m * other


def gate_of(w: dict[str, Array], x: Array, h: int, planted: str) -> Any:
    if "gate.weight" not in w:
        return 1.0
    gate = w["gate.weight"] @ x
    if planted != "gate without bias":
        gate = gate + w.get("gate.bias", 0.0)
    gate = gate.reshape(H, -1)[(h + 1) % H if planted == "gate of another head" else h]
    return gate if planted == "gate without sigmoid" else sigmoid(gate)


def output(layer: SelfAttention, x: Array, memo: Any, case: Any, planted: str = "") -> Array:
    """The layer's output (B, T, C) from its weights, one query of one head after the other."""
    w = {name: weight.detach().numpy() for name, weight in layer.named_parameters()}
    v0, ids = memo["values"].detach().numpy(), memo["ids"].numpy()
    heads = np.zeros((B, T, C))
    for b, h in np.ndindex(B, H):
        rows = rows_of(w, x[b], planted)
        q, k, v = (rows[:, i * C + h * D : i * C + (h + 1) * D] for i in range(3))
        v = [mixed_value(w, v[t], v0[b], ids[b], t, h, planted) for t in range(T)]
        if "rotary" in case:
            q, k = ([turned(u[t], t, case, planted) for t in range(T)] for u in (q, k))
        gates = np.log(sigmoid(x[b] @ w["forget.weight"][h] + w["forget.bias"][h])) \
            if "forget" in case else np.zeros(T)  # fmt: skip
        for i in range(T):
            stretch = 1.0
            if "length_gain" in w:
                n = i + 2 if planted == "ln(n + 1)" else i + 1
                other = (h + 1) % H if planted == "gain of another head" else h
                stretch = w["length_gain"][other] * math.log(n)
            shares = []
            for j in range(i + 1):
                lost = sum(gates[j if planted == "the key's own gate" else j + 1 : i + 1])
                lost /= math.sqrt(D) if planted == "scaled gates" else 1
                shares.append(math.exp(stretch * (q[i] @ k[j]) / math.sqrt(D) + lost))
            total = sum(shares)
            if "sink" in w:
                b_h = w["sink"][h] / (math.sqrt(D) if planted == "scaled sink" else 1)
                total += abs(b_h) if planted == "sink without exp" else math.exp(b_h)
            y = sum(share / total * v[j] for j, share in enumerate(shares))
            if case.get("exclusive"):
                u = v[0] if planted == "value of the first key" else v[i]
                y = y - (y @ u) / (u @ u) ** (0.5 if planted == "not squared" else 1) * u
            heads[b, i, h * D : (h + 1) * D] = y * gate_of(w, x[b, i], h, planted)
    return heads @ w["proj.weight"].T + w["proj.bias"]


@pytest.mark.parametrize("name", CASES)
def test_the_output_equals_the_loop(name: str) -> None:
    layer, x, memo = layer_of(**CASES[name]), x_of(), memo_of()
    expected = output(layer, x.numpy(), memo, CASES[name])
    np.testing.assert_allclose(layer(x, memo).detach().numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "planted"), [(name, error) for name, errors in PLANTED.items() for error in errors]
)
def test_a_planted_error_shows(name: str, planted: str) -> None:
    layer, x, memo = layer_of(**CASES[name]), x_of(), memo_of()
    wrong = output(layer, x.numpy(), memo, CASES[name], planted)
    assert np.abs(layer(x, memo).detach().numpy() - wrong).max() > 1e-2


@pytest.mark.parametrize("name", ["value_residual", "value_embeddings"])
def test_values_of_the_first_layer_reach_the_second(name: str) -> None:
    """A model's layers are compared with the loop on the inputs that they get in it."""
    attn = Variant(SelfAttention, CASES[name])
    net = GPT(attn, V, block_size=16, n_layer=2, n_head=H, n_embd=C, bias=True).double()
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []

    def keep(_: Any, args: tuple[Tensor, ...], y: Tensor) -> None:
        inputs.append(args[0])
        outputs.append(y)

    for block in net.blocks:
        block.attn.register_forward_hook(keep)  # type: ignore[union-attr,operator]
    ids = memo_of()["ids"]
    net(ids)
    first = net.blocks[0].attn
    assert isinstance(first, SelfAttention)
    memo = {"ids": ids, "values": first.split(inputs[0])[2]}
    for block, x, y in zip(net.blocks, inputs, outputs, strict=True):
        assert isinstance(block.attn, SelfAttention)
        expected = output(block.attn, x.detach().numpy(), memo, CASES[name])
        np.testing.assert_allclose(y.detach().numpy(), expected, rtol=0, atol=1e-12)
    assert hasattr(first, "value_mix") == (name == "value_embeddings")


def test_the_last_layer_trains_the_values_of_the_first() -> None:
    layer, x, memo = layer_of(value_residual=True), x_of(), memo_of()
    memo["values"].requires_grad_()
    layer(x, memo).sum().backward()
    assert memo["values"].grad is not None and memo["values"].grad.abs().max() > 0


def test_values_that_no_first_layer_gives_are_asked_for() -> None:
    with pytest.raises(ValueError, match="need the memo of a model"):
        layer_of(value_residual=True)(x_of())
    with pytest.raises(ValueError, match="the first layer gives no values of as many heads"):
        layer_of(value_residual=True)(x_of(), {"ids": memo_of()["ids"]})
    with pytest.raises(ValueError, match="the first layer gives no values of as many heads"):
        layer_of(value_residual=True, n_kv_head=1)(x_of(), memo_of())  # of H heads


def test_exclusive_values_are_orthogonal_to_the_own_value_and_silent_at_first() -> None:
    layer, x = layer_of(exclusive=True), x_of()
    _, _, v = layer.split(x)
    merged = layer.merge(layer.pattern(x) @ v, x, v).unflatten(-1, (H, D)).transpose(1, 2)
    assert (merged * v).sum(-1).abs().max() < 1e-13
    assert merged[:, :, 0].abs().max() < 1e-15


@pytest.mark.parametrize(
    ("given", "base", "tolerance"),
    [
        ({"kernel": softmax1, "sink": True}, {"kernel": softmax1}, 0.0),
        ({"length_scale": True}, {"score_mod": log_length}, 1e-12),
        ({"gate": "head", "gate_bias": 50.0}, {}, 1e-12),
        ({"forget": 50.0}, {}, 1e-12),
        ({"rotary": 100.0, "rotary_share": 1.0}, {"rotary": 100.0}, 0.0),
        ({"kernel": top_k, "top_k": 16}, {}, 1e-12),
    ],
)
def test_first_values_equal_another_variant(
    given: dict[str, Any], base: dict[str, Any], tolerance: float
) -> None:
    layer, other, x = layer_of(**given), layer_of(**base), x_of()
    with torch.no_grad():
        for name, rule in layer.initial(0.02).items():
            rule(dict(layer.named_parameters())[name], generator(0, name))
    torch.testing.assert_close(layer(x), other(x), rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gate": "row"}, "gate = row must be head, channel or null"),
        ({"gate_bias": 4.0}, "gate_bias = 4 needs gate"),
        ({"sink": True}, "does not support sink"),
        ({"top_k": 3}, "does not support top_k"),
        ({"value_residual": True, "value_embeddings": True}, "do not combine"),
        ({"rotary_share": 0.5}, "needs rotary"),
        ({"rotary": 100.0, "rotary_share": 0.1}, "must be even"),
        ({"conv": 0}, "conv = 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer_of(**given)
