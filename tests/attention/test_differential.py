"""Differential attention, compared with the equations of Ye et al. (2024) in NumPy and fp64."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attnlab.attention import AttentionConfig, DifferentialAttention, Properties, Variant
from attnlab.attention.cache import KVCache
from attnlab.checkup import checkup
from attnlab.init import init_weights
from attnlab.model import GPT
from attnlab.probes import measures
from attnlab.probes.capture import by_head, by_layer, pattern_measures, view_of
from attnlab.probes.patching import head_outputs

C, H, T, B = 24, 3, 13, 2
D = C // H
Array = np.ndarray[Any, np.dtype[np.float64]]


def layer_of(n_head: int = H, **given: Any) -> DifferentialAttention:
    layer = DifferentialAttention(AttentionConfig(C, n_head, T, **given)).double()
    stream = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=stream))
    return layer


def x_of() -> Tensor:
    return torch.randn(B, T, C, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def rows_of_softmax(scores: Array) -> Array:
    weights = np.zeros((T, T))
    for t in range(T):
        seen = [math.exp(s) for s in scores[t, : t + 1]]
        weights[t, : t + 1] = np.array(seen) / sum(seen)
    return weights


def by_the_paper(layer: DifferentialAttention, x: Array, depth: int) -> tuple[Array, Array, float]:
    """Output, patterns, and lambda; `depth` is the paper's l, counted from 1."""
    d = D // 2  # the paper's d; its heads have 2 d values
    W_q, W_k, W_v, W_o = (W.detach().numpy() for W in (layer.W_q, layer.W_k, layer.W_v, layer.W_o))
    q1, k1, q2, k2 = layer.lambdas.detach().numpy()
    lambda_init = 0.8 - 0.6 * math.exp(-0.3 * (depth - 1))
    lambda_ = math.exp(float(q1 @ k1)) - math.exp(float(q2 @ k2)) + lambda_init  # equation 2
    output, patterns = np.zeros((B, T, C)), np.zeros((B, H, T, T))
    for b in range(B):
        heads = []
        for h in range(H):
            own = slice(h * D, (h + 1) * D)
            Q, K, V = x[b] @ W_q[:, own], x[b] @ W_k[:, own], x[b] @ W_v[:, own]
            first = rows_of_softmax(Q[:, :d] @ K[:, :d].T / math.sqrt(d))
            second = rows_of_softmax(Q[:, d:] @ K[:, d:].T / math.sqrt(d))
            patterns[b, h] = first - lambda_ * second
            mixed = patterns[b, h] @ V  # equation 1
            norm = np.sqrt((mixed**2).mean(-1, keepdims=True) + 1e-5)
            heads.append((1 - lambda_init) * mixed / norm)  # equation 3
        output[b] = np.concatenate(heads, axis=-1) @ W_o
    return output, patterns, lambda_


@pytest.mark.parametrize("depth", [1, 4])
def test_it_equals_the_equations_of_the_paper(depth: int) -> None:
    layer, x = layer_of(layer=depth - 1, bias=False), x_of()
    output, patterns, lambda_ = by_the_paper(layer, x.numpy(), depth)
    np.testing.assert_allclose(layer(x).detach().numpy(), output, rtol=0, atol=1e-10)
    np.testing.assert_allclose(layer.pattern(x).detach().numpy(), patterns, rtol=0, atol=1e-10)
    sums = layer.pattern(x).sum(-1)
    torch.testing.assert_close(sums, torch.full_like(sums, 1 - lambda_), rtol=0, atol=1e-10)
    assert patterns.min() < -0.1


def test_scores_describe_the_first_softmax() -> None:
    layer, x = layer_of(), x_of()
    q, k, _ = layer.split(x)
    expected = q[..., : D // 2] @ k[..., : D // 2].mT / math.sqrt(D // 2)
    torch.testing.assert_close(layer.scores(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("scale", "expected"), [(None, (D / 2) ** -0.5), ("1/D", 2 / D), (0.3, 0.3)]
)
def test_the_scale_uses_half_of_the_channels(scale: Any, expected: float) -> None:
    assert layer_of(scale=scale).scale == pytest.approx(expected, rel=1e-15)


def test_lambda_init_depends_on_the_index_of_the_layer() -> None:
    net = GPT(DifferentialAttention, 10, n_layer=3, n_head=2, n_embd=16, block_size=8)
    init_weights(net, seed=0)
    layers = [block.attn for block in net.blocks]
    expected = [0.8 - 0.6 * math.exp(-0.3 * number) for number in range(3)]
    assert [layer.lambda_init for layer in layers] == pytest.approx(expected)
    drawn = torch.stack([layer.lambdas for layer in layers])
    assert 0.05 < drawn.std() < 0.15
    assert not torch.equal(drawn[0], drawn[1])


def test_cached_text_gives_the_same_output() -> None:
    layer, x = layer_of().eval(), x_of()
    assert layer.cacheable
    cache = KVCache(T)
    parts = [layer.extend(part, cache) for part in x.split([5, 1, 1, 6], dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), layer(x), rtol=0, atol=1e-12)


def test_a_subclass_must_say_that_it_supports_the_cache() -> None:
    class Own(DifferentialAttention):
        pass

    class Denies(DifferentialAttention):
        properties = Properties()

    class Declares(DifferentialAttention):
        properties = Properties(cacheable=True)

    config = AttentionConfig(C, H, T)
    assert [cls(config).cacheable for cls in (Own, Denies, Declares)] == [False, False, True]


def test_gradients_reach_every_parameter() -> None:
    layer, x = layer_of(bias=False), x_of()  # a bias of keys has no effect
    layer(x).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().min() > 0, name


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"n_head": 8}, "halves a head, so its width 3 must be even"),
        ({"rotary": 1e4}, "DifferentialAttention does not support rotary = 10000.0; remove it"),
        ({"qk_norm": True}, "DifferentialAttention does not support qk_norm = True; remove it"),
    ],
)
def test_bad_settings_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        layer_of(**given)


@pytest.mark.parametrize("n_kv_head", [1, 3])
def test_keys_and_values_can_be_shared(n_kv_head: int) -> None:
    layer, x = layer_of(n_kv_head=n_kv_head), x_of()
    v = layer.split(x)[2]
    y = layer.proj(layer.merge(layer.pattern(x) @ v, x, v))
    torch.testing.assert_close(layer(x), y, rtol=0, atol=1e-12)


# ---- measures of negative weights


SIGNED = torch.tensor([[1.0, 0.0, 0.0], [0.6, -0.2, 0.0], [0.5, -0.25, 0.25]])


def test_measures_of_negative_weights() -> None:
    """Spread uses magnitudes divided by their sum; mass on positions keeps its sign."""
    pattern = SIGNED[None, None]
    mask = torch.ones(3, 3, dtype=torch.bool).tril()
    found = {name: float(x) for name, x in pattern_measures(pattern, mask).items()}
    halves = 1.5 * math.log(2)  # the entropy of 1/2, 1/4, 1/4, in the row with the most keys
    assert found["entropy_nats"] == pytest.approx(halves)
    assert found["effective_keys"] == pytest.approx(math.exp(halves))
    assert found["distance_back"] == pytest.approx((2 * 0.5 + 1 * 0.25) / 1)
    assert found["previous_mass"] == pytest.approx(-0.25)
    assert found["largest_weight"] == pytest.approx(0.5)
    assert found["row_sum_error"] == pytest.approx(0.6)


def test_positive_and_negative_weights_on_the_future_do_not_cancel() -> None:
    pattern = torch.tensor([[1.0, 0.5, -0.5], [0.5, 0.5, 0.0], [0.5, 0.25, 0.25]])[None, None]
    assert float(measures.future_mass(pattern)) == pytest.approx(0.5)


def test_divergence_of_two_heads_compares_shares() -> None:
    """Like distributions: 0 for heads that differ only in size and sign, ln 2 for others."""
    mask = torch.ones(2, 2, dtype=torch.bool)
    rows = torch.tensor([[0.2, 0.0], [-0.7, 0.0], [0.0, 0.4]])  # of three heads
    found = measures.js_divergence(rows[None, :, None].expand(1, 3, 2, 2), mask)
    expected = math.log(2) * torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    torch.testing.assert_close(found, expected)


def test_measures_of_a_softmax_are_left_out() -> None:
    layer, x = layer_of().eval(), x_of()
    with torch.no_grad():
        view = view_of(0, layer, x)
    assert "jacobian_trace" not in by_head(view)
    assert "qk_similarity" not in by_head(view)
    assert "entropy_nats_predicted" not in by_layer(view)
    assert all(value.isfinite().all() for value in by_head(view).values())


def test_interventions_see_the_normalized_heads() -> None:
    net = GPT(DifferentialAttention, 10, n_layer=2, n_head=2, n_embd=16, block_size=8)
    outputs = head_outputs(net, torch.arange(8)[None])
    for (layer, _), output in outputs.items():
        size = output.square().mean(-1).sqrt()
        largest = 1 - (0.8 - 0.6 * math.exp(-0.3 * layer))
        assert (size <= largest + 1e-6).all()
        assert (size > largest / 2).all()


def test_a_checkup_calls_it_healthy() -> None:
    net = GPT(Variant(DifferentialAttention), 20, n_layer=2, n_head=2, n_embd=32, block_size=24)
    init_weights(net, seed=0)
    report = checkup(net, vocab_size=20, block_size=24)
    assert report.healthy, report
