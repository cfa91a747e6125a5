"""Properties of every file of conf/attn: a table of variants and what must hold of them."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from attnlab.attention import AttentionConfig, SelfAttention, TorchMHA, ValueEmbeddings, manual
from attnlab.attention import core as masks
from attnlab.attention.core import tells_cost
from attnlab.errors import BadInput, BadSetting
from attnlab.init import init_weights
from attnlab.model import GPT
from attnlab.settings.bind import attention_factory
from tests.attention.layers import (
    DELTA,
    VARIANTS,
    B,
    C,
    D,
    H,
    T,
    V,
    layer_of,
    memo_of,
    mixed_by_pattern,
    settings,
    x_of,
)

FINITE = sorted(set(VARIANTS) - {"strict_flip"})  # its last query sees no key: NaN


def run(layer: Any, x: Tensor) -> Tensor:
    return layer(x, *memo_of(layer, x.dtype))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_layer_tells_what_it_does(variant: str) -> None:
    """Shapes; the output is the pattern times the values."""
    layer, x = layer_of(variant), x_of()
    memo = memo_of(layer)
    y, pattern, v = run(layer, x), layer.pattern(x, *memo), layer.split(x, *memo)[2]
    assert pattern.shape == (B, 1 if variant == "single_head" else H, T, T)
    assert layer.scores(x, *memo).shape == pattern.shape
    assert layer.mask(x).shape == (T, T) and layer.mask(x).dtype == torch.bool
    if variant == "unmerged_heads":  # its pattern's rows stand where the wrong merge puts them
        mixed = pattern.transpose(1, 2).reshape(B, H, T, T) @ v
        expected = layer.proj(mixed.reshape(B, T, C))
    else:
        expected = layer.proj(layer.merge(mixed_by_pattern(layer, x), x, v))
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-10, equal_nan=True)


@pytest.mark.parametrize("variant", FINITE)
def test_bf16_is_close_to_fp32(variant: str) -> None:
    layer, x = layer_of(variant).float(), x_of(torch.float32)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(0.5)
        exact = run(layer, x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y, pattern = run(layer, x), layer.pattern(x, *memo_of(layer, x.dtype))
    assert y.dtype == torch.bfloat16 and pattern.isfinite().all()
    torch.testing.assert_close(y.float(), exact, rtol=0, atol=0.04 * float(exact.abs().max()))


@pytest.mark.parametrize("variant", sorted({*FINITE} - {*DELTA}))
def test_dropout_acts_in_training_only_and_never_in_the_pattern(variant: str) -> None:
    layer, x = layer_of(variant, dropout=0.5), x_of()
    memo = memo_of(layer)
    assert torch.equal(layer.train().pattern(x, *memo), layer.pattern(x, *memo)) and layer.training
    assert not torch.equal(run(layer, x), run(layer, x))
    layer.eval()
    assert torch.equal(run(layer, x), run(layer, x))


@pytest.mark.parametrize("scale", [None, "1/D", "8/D", 1.0, -0.3])
@pytest.mark.parametrize(
    "predicate", [masks.causal, masks.flipped, masks.bidirectional, masks.peek_one]
)
@pytest.mark.parametrize("bias", [True, False])
def test_three_implementations_are_one_function(scale: Any, predicate: Any, bias: bool) -> None:
    """Outputs, patterns and gradients agree to 1e-5 in fp32 with the same weights."""
    seen, weights = [], None
    makers: list[Any] = [SelfAttention, partial(SelfAttention, kernel=manual), TorchMHA]
    for make in makers:
        layer: Any = make(AttentionConfig(C, H, T, bias), scale=scale, may_attend=predicate)
        weights = weights or {k: torch.randn_like(p) * 0.3 for k, p in layer.state_dict().items()}
        layer.load_state_dict(weights)
        x = x_of(torch.float32).requires_grad_()
        y = layer(x)
        y.square().sum().backward()
        grads = [p.grad / p.grad.abs().max() for p in (x, *layer.parameters())]
        seen.append([y.detach(), layer.pattern(x).detach(), *grads])
    for other in seen[1:]:
        for ours, theirs in zip(seen[0], other, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


PROJECTIONS = 8 * C * C  # FLOPs of the four
COSTS: dict[str, tuple[int, int, int]] = {  # FLOPs at T = 64, numbers kept at T = 64 and 1024
    "sdpa": (PROJECTIONS + 4 * C * 64, 2 * C * 64, 2 * C * 1024),
    "sliding_window": (PROJECTIONS + 4 * C * 8, 2 * C * 7, 2 * C * 7),
    "none": (PROJECTIONS + 4 * C, 0, 0),
    "mqa": (4 * C * C + 4 * C * D + 4 * C * 64, 2 * D * 64, 2 * D * 1024),
    "gqa": (4 * C * C + 8 * C * D + 4 * C * 64, 4 * D * 64, 4 * D * 1024),
    "linear": (PROJECTIONS + 4 * C * D + 2 * C, *[H * (D * D + D)] * 2),
    "gate_head": (PROJECTIONS + 2 * C * H + 4 * C * 64, 2 * C * 64, 2 * C * 1024),
    "general": (PROJECTIONS + 2 * C * D + 4 * C * 64, 2 * C * 64, 2 * C * 1024),
    "delta_net": (PROJECTIONS + 2 * C * H + 6 * C * D, *[C * D + 9 * C] * 2),
    "decay": (PROJECTIONS + 2 * C * H + 4 * C * D, *[C * D + 9 * C] * 2),
    # Queries and c with their rotated parts; keys, values and output; scores and average.
    "latent": (2 * C * (C + 2 * H + C // 2 + 2) + 4 * C * C + 4 * (C + H) * 64, 640, 10_240),
    "forgetting": (PROJECTIONS + 2 * C * H + 4 * C * 64, 2 * C * 64 + 64 * H, (2 * C + H) * 1024),
    "short_conv": (PROJECTIONS + 4 * C * 64, 2 * C * 64 + 9 * C, 2 * C * 1024 + 9 * C),
    "differential": (PROJECTIONS + 4 * C * 64, 2 * C * 64, 2 * C * 1024),  # one average of P1 - P2
    "shifted_keys": (PROJECTIONS + 4 * C * 64, 2 * C * 64 + C, 2 * C * 1024 + C),
    "shifted_keys_values": (PROJECTIONS + 4 * C * 64, 2 * C * 64 + 2 * C, 2 * C * 1024 + 2 * C),
    "key_offset": (PROJECTIONS + 4 * C * 64, 2 * C * 64 + C // 2, 2 * C * 1024 + C // 2),
    "selective": (PROJECTIONS + 4 * C * 64, 2 * C * 64 + 64, 2 * C * 1024 + 1024),
    "block_selection": (PROJECTIONS + 4 * C * 8 + 2 * C * 16, 2 * C * 64, 2 * C * 1024),
    "value_embeddings": (PROJECTIONS + 4 * C * 64, 2 * C * 64, 2 * C * 1024),
    # Twice the queries, the projection of lambda, and two patterns.
    "differential_2": (10 * C * C + 2 * C * H + 8 * C * 64, 2 * C * 64, 2 * C * 1024),
    # Queries, two keys, two values and the output; two strengths; two writes and a read.
    "delta_product": (12 * C * C + 4 * C * H + 10 * C * D, *[C * D + 15 * C] * 2),
}


@pytest.mark.parametrize("variant", COSTS)
def test_costs_of_a_position(variant: str) -> None:
    layer = layer_of(variant)
    assert tells_cost(layer, "flops") and tells_cost(layer, "state")
    assert (layer.flops(64), layer.state(64), layer.state(1024)) == COSTS[variant]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_tells_its_costs(variant: str) -> None:
    layer = layer_of(variant)
    assert tells_cost(layer, "flops") and tells_cost(layer, "state")


@pytest.mark.parametrize(
    ("rule", "alike"),
    [(masks.identical, (True, True)), (masks.identical_qkv, (True, False)),
     (masks.independent, (False, False))],
)  # fmt: skip
def test_first_heads(rule: Any, alike: tuple[bool, bool]) -> None:
    """Whether all heads have the queries, keys and values of the first, and its output slice."""
    attn = partial(SelfAttention, head_init=rule)
    net = GPT(attn, 7, block_size=T, n_head=H, n_embd=C)
    init_weights(net, 0)
    layer: Any = net.blocks[0].attn
    for part in layer.parts(layer.qkv.weight):
        heads = part.unflatten(0, (H, -1))
        assert torch.equal(heads[0], heads[-1]) == alike[0]
    slices = layer.proj.weight.unflatten(1, (H, -1))
    assert torch.equal(slices[:, 0], slices[:, -1]) == alike[1]


def test_alibi_has_the_slopes_of_its_formula_for_6_heads() -> None:
    """The code of its authors has others where H is not a power of two."""
    scores = masks.alibi(torch.zeros(6, 2, 1), torch.arange(2)[:, None], torch.zeros(1))
    slopes = [0.396850, 0.157490, 0.0625, 0.024803, 0.009843, 0.003906]
    assert scores[:, 1, 0].neg().tolist() == pytest.approx(slopes, abs=1e-6)


REFUSED: dict[str, dict[str, list[Any]]] = {
    "sdpa": {
        "heads": [5],
        "n_kv_head": [3],
        "head_size": [0, -4],
        "scale": [math.inf, "1/d"],
        "softcap": [0.0],
    },
    "sliding_window": {"window": [0]},
    "shared_qk": {"n_kv_head": [2]},
    "rotary": {"heads": [16]},
    "gate_head": {"gate": ["row"]},
    "sink": {"kernel": ["sdpa"]},
    "top_k": {"kernel": ["sdpa"], "top_k": [0]},
    "short_conv": {"conv": [0]},
    "linear": {"scale": [1.0]},
    "additive": {"kernel": ["manual"]},
    "torch_mha": {"score_mod": ["alibi"]},
    "delta_net": {"window": [4], "decay": ["rows"], "beta_max": [2.5], "dropout": [0.5]},
    "latent": {"rotated": [3]},
    "rotary_half": {"rotary_share": [0.25, 0.0, 1.5], "rotary": [None]},
    "block_selection": {"block": [0], "chosen": [0]},
    "delta_product": {"steps": [0], "delta": [False]},
    "shifted_keys": {"shared": ["qk"]},
    "differential_2": {"shared": ["qkv"]},
}


@pytest.mark.parametrize(
    ("variant", "name", "value"),
    [(v, n, x) for v, names in REFUSED.items() for n, values in names.items() for x in values],
)
def test_a_setting_that_does_not_fit_is_refused(variant: str, name: str, value: Any) -> None:
    said = {"heads": "n_head|head", "window": "window|without keys"}.get(name, name)
    said = {"rotary_share": "rotary"}.get(name, said)
    with pytest.raises(BadInput, match=said):
        layer_of(variant, **{name: value})


def test_value_residual_needs_the_values_of_its_first_layer() -> None:
    layer, x = layer_of("value_residual"), x_of()
    for memo in ({}, {"values": torch.zeros(B, 1, T, D)}):
        with pytest.raises(BadSetting, match="needs a first layer"):
            layer(x, memo)


def test_value_embeddings_need_symbols() -> None:
    with pytest.raises(BadSetting, match="vocab_size"):
        ValueEmbeddings(AttentionConfig(C, H, T))
    with pytest.raises(BadSetting, match="ids"):
        layer_of("value_embeddings").pattern(x_of())


def start_of(variant: str) -> Any:
    """The layer of a new model."""
    net = GPT(attention_factory(settings(variant)), V, block_size=T, n_head=H, n_embd=C, n_layer=1)
    init_weights(net, 0)
    return net.blocks[0].attn


@pytest.mark.parametrize(
    ("variant", "other"),
    [
        ("shifted_keys", "sdpa"),
        ("shifted_keys_values", "sdpa"),
        ("exclusive_learned", "sdpa"),
        ("scalable_softmax", "log_length"),
    ],
)
def test_a_variant_starts_as_another(variant: str, other: str) -> None:
    first, second = start_of(variant), start_of(other)
    x = x_of(torch.float32)
    torch.testing.assert_close(first(x), second(x), rtol=1e-5, atol=1e-7)
    own = dict(first.named_parameters()).keys() - dict(second.named_parameters()).keys()
    with torch.no_grad():
        for name in own:
            first.get_parameter(name).add_(0.1)
    assert own and not torch.allclose(first(x), second(x), rtol=1e-3)


def test_one_step_of_a_delta_product_is_delta_net_with_negative_eigenvalues() -> None:
    one = layer_of("delta_product", steps=1)
    other = layer_of("delta_net_negative")
    other.load_state_dict(one.state_dict())
    torch.testing.assert_close(one(x_of()), other(x_of()))


def test_a_block_is_never_chosen_by_the_keys_of_the_future() -> None:
    """Every query sees its block up to itself, and at most one block that has ended."""
    layer = layer_of("block_selection")
    x = x_of()
    q, k, _ = layer.split(x)
    visible = layer.visible(q, k, x)
    for i in range(T):
        begin = i // 4 * 4
        assert visible[:, :, i, begin : i + 1].all() and not visible[:, :, i, i + 1 :].any()
        earlier = visible[:, :, i, :begin].unflatten(-1, (-1, 4))
        assert torch.equal(earlier.any(-1), earlier.all(-1))
        assert (earlier.all(-1).sum(-1) == min(1, begin // 4)).all()
    changed = x.clone()
    changed[:, 6:] = 0
    again = layer.visible(*layer.split(changed)[:2], changed)
    assert torch.equal(visible[:, :, :6], again[:, :, :6])
