"""The contract of an attention layer, over every file of conf/attn."""

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
from attnlab.training.instantiate import build
from tests.conftest import VARIANTS, settings
from tests.contracts.test_conf import CLAIMS

C, T = 24, 11
PREDICATES = [masks.causal, masks.flipped, masks.bidirectional, masks.peek_one]
IMPLEMENTATIONS = {
    "sdpa": SelfAttention,
    "manual": Variant(SelfAttention, {"kernel": kernels.manual}),
    "torch_mha": TorchMHA,
}


def layer_of(variant: str, **given: Any) -> Attention:
    config = AttentionConfig(C, 4, T, **given)
    layer = build(settings(f"attn={variant}").attn, "attn")(config)
    assert isinstance(layer, Attention)
    return layer


def x_of(dtype: torch.dtype = torch.float32) -> Tensor:
    g = torch.Generator().manual_seed(0)
    return torch.randn(2, T, C, generator=g, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_shapes_and_names(variant: str, bias: bool) -> None:
    layer = layer_of(variant, bias=bias)
    x = x_of()
    assert layer(x).shape == x.shape
    H = 1 if variant == "single_head" else 4
    assert layer.pattern(x).shape == (2, H, T, T)
    names = {"qkv.weight", "proj.weight"} | ({"qkv.bias", "proj.bias"} if bias else set())
    own = set(layer.state_dict()) - names
    assert names <= set(layer.state_dict())
    assert own <= {name for cls in type(layer).__mro__ for name in vars(cls).get("init_rules", {})}
    assert {name for name, _ in layer.named_parameters()} == names | own
    kv = layer.n_kv_head * C // H
    rows = {"shared_qk": 2 * C, "shared_qkv": C}
    assert layer.qkv.weight.shape == (rows.get(variant, C + 2 * kv), C)
    assert kv == C or variant in {"gqa", "mqa"}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_pattern_uses_no_random_numbers(variant: str) -> None:
    layer, x = layer_of(variant, dropout=0.5).train(), x_of()
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
    _, _, v = layer.split(x)
    if variant == "unmerged_heads":
        H, D = v.shape[1], v.shape[3]
        # Its pattern's rows stand where the wrong merge puts them; undo it for the values' heads.
        p = layer.pattern(x).transpose(1, 2).reshape(2, H, T, T)
        y = (p @ v).reshape(2, T, H * D)
    else:
        y = layer.merge(layer.pattern(x) @ v, x, v)
    torch.testing.assert_close(layer(x), layer.proj(y), rtol=0, atol=1e-5, equal_nan=True)


# Known properties of this repository's variants; new variants only have to meet the contract.
KNOWN = sorted(set(VARIANTS) & {"sdpa", *CLAIMS})
UNEVEN_ROWS = {
    "post_softmax_mask", "softmax_over_queries", "strict_flip", "softmax1", "sigmoid",
    "differential",
}  # fmt: skip
HEALTHY_ROWS = sorted(set(KNOWN) - UNEVEN_ROWS)


@pytest.mark.parametrize("variant", HEALTHY_ROWS)
def test_rows_sum_to_1(variant: str) -> None:
    sums = layer_of(variant).pattern(x_of()).sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums))


READS_AHEAD = {
    "flipped", "bidirectional", "peek_one", "strict_flip", "zero_fill", "post_softmax_mask",
    "softmax_over_queries", "unmerged_heads",
}  # fmt: skip


@pytest.mark.parametrize("variant", KNOWN)
def test_only_these_variants_read_ahead(variant: str) -> None:
    """Uses the gradient of outputs before t with respect to inputs from t on."""
    layer = layer_of(variant).double()
    ahead = 0.0
    for t in range(1, T):
        x = x_of(torch.float64).requires_grad_()
        (layer(x)[:, :t].nan_to_num() ** 2).sum().backward()
        assert x.grad is not None
        ahead = max(ahead, float(x.grad[:, t:].abs().nan_to_num(nan=1.0).max()))
    assert (ahead > 0) == (variant in READS_AHEAD)


@pytest.mark.parametrize("variant", VARIANTS)
def test_batch_rows_are_independent(variant: str) -> None:
    layer, x = layer_of(variant).eval(), x_of()
    other = torch.cat([x[:1], x[1:] * 3])
    torch.testing.assert_close(layer(other)[0], layer(x)[0], equal_nan=True)


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
    layer, x = layer_of(variant, dropout=0.5), x_of()
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    layer.train()
    assert not torch.equal(layer(x), layer(x))


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
        cls(AttentionConfig(**{"n_embd": C, "n_head": 3, "block_size": T, **given}))
