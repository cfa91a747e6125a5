"""The contract of an attention layer, over every file of conf/attn."""

import math
from fnmatch import fnmatch
from typing import Any

import pytest
import torch
from torch import Tensor

from attnlab.attention import (
    Attention,
    AttentionConfig,
    SelfAttention,
    TorchMHA,
    Variant,
    kernels,
    masks,
)
from attnlab.attention.cache import KVCache, takes_memo
from attnlab.init import init_weights
from attnlab.model import GPT
from attnlab.probes.capture import scalars, views
from attnlab.training.instantiate import build
from tests.conftest import VARIANTS, of_variant
from tests.contracts.test_conf import CLAIMS

C, T, V = 48, 11, 7
FINITE = sorted(set(VARIANTS) - {"strict_flip"})  # its last query sees no key: NaN
DELTA = {
    "delta_net", "delta_net_negative", "gated_delta_net", "kda", "decay", "retention",
    "gated_linear",
}  # fmt: skip
PREDICATES = [masks.causal, masks.flipped, masks.bidirectional, masks.peek_one]
IMPLEMENTATIONS = {
    "sdpa": SelfAttention,
    "manual": Variant(SelfAttention, {"kernel": kernels.manual}),
    "torch_mha": TorchMHA,
}


def layer_of(variant: str, **given: Any) -> Attention:
    config = AttentionConfig(C, 4, T, vocab_size=V, **given)
    layer = build(of_variant(variant), "attn")(config)
    assert isinstance(layer, Attention)
    return layer


def x_of(dtype: torch.dtype = torch.float32) -> Tensor:
    g = torch.Generator().manual_seed(0)
    return torch.randn(2, T, C, generator=g, dtype=torch.float64).to(dtype)


def memo_of(x: Tensor) -> dict[str, Tensor]:
    return {"ids": torch.arange(len(x) * T).reshape(len(x), T) * 3 % V}


def run(layer: Attention, x: Tensor) -> Tensor:
    """The output of the first layer of a model."""
    y: Tensor = layer(x, memo_of(x)) if takes_memo(type(layer).forward) else layer(x)
    return y


def values_of(layer: Attention, x: Tensor) -> Tensor:
    """The values that are averaged."""
    v = layer.split(x)[2]
    return layer.values(v, memo_of(x)) if isinstance(layer, SelfAttention) else v


def dropout_of(variant: str) -> float:
    return 0.0 if variant in DELTA else 0.5  # DeltaAttention refuses dropout


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_shapes_and_names(variant: str, bias: bool) -> None:
    layer = layer_of(variant, bias=bias)
    x = x_of()
    assert run(layer, x).shape == x.shape
    H = 1 if variant == "single_head" else 4
    assert layer.pattern(x).shape == (2, H, T, T)
    names = {"qkv.weight", "proj.weight"} | ({"qkv.bias", "proj.bias"} if bias else set())
    own = set(layer.state_dict()) - names
    assert names <= set(layer.state_dict())
    rules = {name for cls in type(layer).__mro__ for name in vars(cls).get("init_rules", {})}
    rules |= set(layer.initial(0.02)) | {"*.bias"}  # the rule of all biases, see attnlab.init
    assert all(any(fnmatch(name, rule) for rule in rules) for name in own)
    assert {name for name, _ in layer.named_parameters()} == names | own
    kv = layer.n_kv_head * C // H
    rows = {"shared_qk": 2 * C, "shared_qkv": C, "latent": 4 * (12 + 6) + 24 + 6}
    assert layer.qkv.weight.shape == (rows.get(variant, C + 2 * kv), C)
    assert kv == C or variant in {"gqa", "mqa"}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_pattern_uses_no_random_numbers(variant: str) -> None:
    layer, x = layer_of(variant, dropout=dropout_of(variant)).train(), x_of()
    before = torch.get_rng_state()
    first = layer.pattern(x)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.isnan(), layer.pattern(x).isnan())
    assert layer.training
    torch.testing.assert_close(first, layer.eval().pattern(x), equal_nan=True)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_output_is_the_pattern_times_the_values(variant: str) -> None:
    """The output is the average of the values weighted by the pattern, also for faulty kernels."""
    layer, x = layer_of(variant).eval(), x_of()
    v = values_of(layer, x)
    if variant == "unmerged_heads":
        H, D = v.shape[1], v.shape[3]
        # Its pattern's rows stand where the wrong merge puts them; undo it for the values' heads.
        p = layer.pattern(x).transpose(1, 2).reshape(2, H, T, T)
        y = (p @ v).reshape(2, T, H * D)
    else:
        y = layer.merge(layer.pattern(x) @ v, x, v)
    torch.testing.assert_close(run(layer, x), layer.proj(y), rtol=0, atol=1e-5, equal_nan=True)


# Known properties of this repository's variants; new variants only have to meet the contract.
KNOWN = sorted(set(VARIANTS) & {"sdpa", *CLAIMS})
UNEVEN_ROWS = {
    "post_softmax_mask", "softmax_over_queries", "strict_flip", "softmax1", "sigmoid",
    "differential", "differential_v2", "sink", "softpick", *DELTA,
}  # fmt: skip
SIGNED = {"differential", "differential_v2", *DELTA}
HEALTHY_ROWS = sorted(set(KNOWN) - UNEVEN_ROWS)


@pytest.mark.parametrize("variant", HEALTHY_ROWS)
def test_rows_sum_to_1(variant: str) -> None:
    sums = layer_of(variant).pattern(x_of()).sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums))


@pytest.mark.parametrize("variant", FINITE)
def test_patterns_are_as_declared(variant: str) -> None:
    layer = layer_of(variant)
    declared, pattern = layer.properties, layer.pattern(x_of() * 3)
    if variant in KNOWN and declared is not None:
        assert declared.rows_sum_to_1 == (variant not in UNEVEN_ROWS)
        assert declared.nonnegative == (variant not in SIGNED)
    if declared is not None and declared.rows_sum_to_1:
        torch.testing.assert_close(pattern.sum(-1), torch.ones_like(pattern.sum(-1)))
    if declared is not None and declared.nonnegative:
        assert (pattern.nan_to_num() >= 0).all()


READS_AHEAD = {
    "flipped", "bidirectional", "peek_one", "strict_flip", "zero_fill", "post_softmax_mask",
    "softmax_over_queries", "unmerged_heads",
}  # fmt: skip


@pytest.mark.parametrize("variant", KNOWN)
def test_only_these_variants_read_ahead(variant: str) -> None:
    """Uses the gradient of outputs before t with respect to inputs from t on."""
    x = x_of(torch.float64).repeat(T - 1, 1, 1).requires_grad_()  # two rows for each t
    early = torch.arange(T) < torch.arange(1, T).repeat_interleave(2)[:, None]
    y = run(layer_of(variant).double(), x)
    (y[early].nan_to_num() ** 2).sum().backward()
    assert x.grad is not None
    ahead = float(x.grad[~early].abs().nan_to_num(nan=1.0).max())
    assert (ahead > 0) == (variant in READS_AHEAD)


@pytest.mark.parametrize("variant", VARIANTS)
def test_batch_rows_are_independent(variant: str) -> None:
    layer, x = layer_of(variant).eval(), x_of()
    other = torch.cat([x[:1], x[1:] * 3])
    torch.testing.assert_close(run(layer, other)[0], run(layer, x)[0], equal_nan=True)


@pytest.mark.parametrize("variant", FINITE)
def test_gradients_reach_every_parameter(variant: str) -> None:
    layer, x = layer_of(variant, bias=True, layer=1), x_of()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter) / 4)
    memo = memo_of(x) | {"values": torch.randn(2, 4, T, C // 4)}
    y = layer(x, memo) if takes_memo(type(layer).forward) else layer(x)
    (y * x_of().flip(0)).sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("variant", FINITE)
def test_bf16_is_close_to_fp32(variant: str) -> None:
    layer, x = layer_of(variant).eval(), x_of()
    with torch.no_grad():
        exact = run(layer, x)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        y = run(layer, x)
        pattern = layer.pattern(x)
    assert y.dtype == torch.bfloat16 and pattern.isfinite().all()
    torch.testing.assert_close(y.float(), exact, rtol=0, atol=0.03 * float(exact.abs().max()))


@pytest.mark.parametrize("variant", FINITE)
def test_all_measures_of_a_new_model_are_numbers(variant: str) -> None:
    net = GPT(build(of_variant(variant), "attn"), V, block_size=T, n_layer=2, n_head=4, n_embd=C)
    init_weights(net, 0)
    found = scalars(views(net, torch.arange(2 * T).view(2, T) % V))
    assert all(map(math.isfinite, found.values())), found


def numbers_at(variant: str, length: int) -> int:
    """What a layer of 32 channels and 4 heads keeps of a text."""
    config = AttentionConfig(32, 4, length)
    layer, cache = build(of_variant(variant), "attn")(config), KVCache(length)
    with torch.no_grad():
        layer.extend(torch.zeros(1, length, 32), cache)
    return cache.numbers()


@pytest.mark.parametrize(
    ("variant", "short", "long"),
    [
        ("sdpa", 2 * 32 * 64, 2 * 32 * 1024),  # 2 C T
        ("mqa", 2 * 8 * 64, 2 * 8 * 1024),  # 2 D T
        ("latent", (16 + 4) * 64, (16 + 4) * 1024),  # (C / 2 + D / 2) T
        ("forgetting", (2 * 32 + 4) * 64, (2 * 32 + 4) * 1024),  # (2 C + H) T
        ("delta_net", 32 * 8 + 9 * 32, 32 * 8 + 9 * 32),  # C D + 3 rows of 3 C
        ("sliding_window", 2 * 32 * 7, 2 * 32 * 7),  # 2 C (W - 1), W = 8
    ],
)
def test_numbers_in_the_cache(variant: str, short: int, long: int) -> None:
    assert (numbers_at(variant, 64), numbers_at(variant, 1024)) == (short, long)


@pytest.mark.long  # 60 CPU seconds
@pytest.mark.parametrize("variant", ["forgetting", "kda", "latent", "stick_breaking", "entmax"])
def test_compiled_layers_give_the_same_outputs(variant: str) -> None:
    layer, x = layer_of(variant).eval(), x_of()
    torch.testing.assert_close(torch.compile(layer)(x), layer(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("scale", [None, "1/D", 1.0, 0.3])
@pytest.mark.parametrize("predicate", PREDICATES, ids=masks.name_of)
@pytest.mark.parametrize("bias", [True, False])
def test_implementations_are_one_function(
    scale: float | None, predicate: masks.Predicate, bias: bool
) -> None:
    """Outputs, patterns and gradients agree to 1e-5 in fp32 with the same weights."""
    seen: dict[str, list[Tensor]] = {}
    weights = None
    for name, make in IMPLEMENTATIONS.items():
        layer = make(AttentionConfig(C, 3, T, bias=bias, scale=scale, may_attend=predicate))
        if weights is None:
            torch.manual_seed(0)
            weights = {k: torch.randn_like(p) * 0.3 for k, p in layer.state_dict().items()}
        layer.load_state_dict(weights)
        x = x_of().requires_grad_()
        y = layer(x)
        y.square().sum().backward()
        grads = [p.grad / p.grad.abs().max() for p in (x, *layer.parameters())]
        seen[name] = [y.detach(), layer.pattern(x).detach(), *grads]
    for name in ("manual", "torch_mha"):
        for ours, other in zip(seen["sdpa"], seen[name], strict=True):
            torch.testing.assert_close(ours, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", ["sdpa", "manual", "torch_mha"])
def test_training_and_evaluation_agree(variant: str) -> None:
    layer, x = layer_of(variant), x_of()
    train = layer.train()(x).detach()
    with torch.inference_mode():  # where nn.MultiheadAttention takes another path
        torch.testing.assert_close(layer.eval()(x), train, rtol=0, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_dropout_acts_in_training_only(variant: str) -> None:
    if variant == "strict_flip":
        pytest.skip("NaN everywhere it matters")
    if variant in DELTA:
        with pytest.raises(ValueError, match="DeltaAttention has no dropout"):
            layer_of(variant, dropout=0.5)
        return
    layer, x = layer_of(variant, dropout=0.5), x_of()
    layer.eval()
    assert torch.equal(run(layer, x), run(layer, x))
    layer.train()
    assert not torch.equal(run(layer, x), run(layer, x))


def test_strict_flip_gives_nan_only_at_the_last_query() -> None:
    pattern = layer_of("strict_flip").pattern(x_of())
    assert pattern[:, :, -1].isnan().all()
    assert pattern[:, :, :-1].isfinite().all()


@pytest.mark.parametrize(
    "make", [SelfAttention, Variant(SelfAttention, {"kernel": kernels.flex}), TorchMHA]
)
def test_kernels_that_would_hide_an_empty_row_refuse_it(make: Any) -> None:
    with pytest.raises(ValueError, match="without keys"):
        make(AttentionConfig(C, 3, T, may_attend=masks.strict_flip))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"n_head": 5}, "n_head = 5 does not divide n_embd = 24; it must be one of 1, 2, 3, 4, 6"),
        ({"n_head": 0}, "n_head = 0"),
        ({"dropout": 1.0}, "dropout = 1.0"),
        ({"dropout": -0.1}, "dropout = -0.1"),
        ({"scale": float("nan")}, "scale = nan"),
        ({"scale": "1/d"}, "scale = 1/d"),
        ({"heads": 7}, "n_head = 7"),
        ({"shared": "q"}, "shared = q"),
    ],
)
@pytest.mark.parametrize("cls", [SelfAttention, TorchMHA])
def test_bad_values_are_named(cls: Any, given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence.replace("(", r"\(")):
        cls(AttentionConfig(**{"n_embd": 24, "n_head": 3, "block_size": T, **given}))
