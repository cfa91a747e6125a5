"""Windows, modified scores, and patterns other than a softmax, compared with NumPy in fp64."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attnlab.attention import AttentionConfig, SelfAttention, TorchMHA, Variant, kernels, masks
from attnlab.attention.cache import KVCache
from attnlab.attention.positions import alibi, log_length
from attnlab.model import GPT
from attnlab.probes.capture import by_head, by_layer, view_of, views
from attnlab.training.instantiate import build
from tests.conftest import settings

C, H, T, B = 24, 3, 13, 2
D = C // H
Row = np.ndarray[Any, np.dtype[np.float64]]


def exp(s: Row) -> Row:
    return np.array([math.exp(x) for x in s])


def softmax(s: Row) -> Row:
    return exp(s) / sum(exp(s))


def elu1(x: Row) -> Row:
    return np.array([1 + z if z > 0 else math.exp(z) for z in x])


# The weights of query t of head h on the keys 0 to t, from its query and the keys.
ORACLES: dict[str, Callable[[Row, Row, int, int], Row]] = {
    "sliding_window": lambda q, k, t, h: np.array(
        [0.0] * max(0, t - 7) + list(softmax(k[max(0, t - 7) :] @ q / math.sqrt(D)))
    ),
    "alibi": lambda q, k, t, h: softmax(
        k @ q / math.sqrt(D) - 2 ** (-8 * (h + 1) / H) * (t - np.arange(t + 1))
    ),
    "log_length": lambda q, k, t, h: softmax(math.log(t + 1) * (k @ q) / math.sqrt(D)),
    "softcap": lambda q, k, t, h: softmax(5 * np.tanh(k @ q / math.sqrt(D) / 5)),
    "softmax1": lambda q, k, t, h: (
        exp(k @ q / math.sqrt(D)) / (1 + sum(exp(k @ q / math.sqrt(D))))
    ),
    "sigmoid": lambda q, k, t, h: 1 / (1 + exp(math.log(t + 1) - k @ q / math.sqrt(D))),
    "linear": lambda q, k, t, h: (a := np.array([elu1(x) @ elu1(q) for x in k])) / sum(a),
}


def layer_of(variant: str, **given: Any) -> SelfAttention:
    layer = build(settings(f"attn={variant}").attn, "attn")(AttentionConfig(C, H, T, **given))
    assert isinstance(layer, SelfAttention)
    torch.manual_seed(0)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer.double()


def x_of() -> Tensor:
    return torch.randn(B, T, C, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("variant", ORACLES)
def test_pattern_and_output_equal_a_loop_over_the_queries(variant: str) -> None:
    layer, x = layer_of(variant), x_of()
    q, k, v = (part.detach().numpy() for part in layer.split(x))
    pattern = np.zeros((B, H, T, T))
    for b, h, t in np.ndindex(B, H, T):
        pattern[b, h, t, : t + 1] = ORACLES[variant](q[b, h, t], k[b, h, : t + 1], t, h)
    np.testing.assert_allclose(layer.pattern(x).detach().numpy(), pattern, rtol=0, atol=1e-10)
    mixed = torch.from_numpy((pattern @ v).swapaxes(1, 2).reshape(B, T, C))
    torch.testing.assert_close(layer(x), layer.proj(mixed), rtol=0, atol=1e-10)


@pytest.mark.parametrize("variant", ORACLES)
def test_cached_text_gives_the_same_output(variant: str) -> None:
    layer, x = layer_of(variant).eval(), x_of()
    assert layer.cacheable
    cache = KVCache(T)
    parts = [layer.extend(part, cache) for part in x.split([5, 1, 1, 6], dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), layer(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("variant", ORACLES)
def test_the_softmax_of_the_scores_is_the_pattern(variant: str) -> None:
    layer, x = layer_of(variant), x_of()
    assert layer.properties.is_softmax == (variant not in {"softmax1", "sigmoid"})
    pattern = kernels.masked_softmax(layer.scores(x), layer.mask(x))
    assert (
        torch.allclose(pattern, layer.pattern(x), rtol=0, atol=1e-12)
        == layer.properties.is_softmax
    )


@pytest.mark.parametrize("variant", ["softmax1", "sigmoid"])
def test_measures_of_rows_that_do_not_sum_to_1(variant: str) -> None:
    """Entropy is that of the normalized row; measures defined only for a softmax are left out."""
    layer, x = layer_of(variant), x_of()
    with torch.no_grad():
        view = view_of(0, layer, x)
    rows = view.pattern / view.pattern.sum(-1, keepdim=True)
    entropies = -(rows * rows.log().nan_to_num(neginf=0)).sum(-1)[..., 7:].mean((0, 2))
    torch.testing.assert_close(by_head(view)["entropy_nats"], entropies)
    assert "jacobian_trace" not in by_head(view)
    assert "entropy_nats_predicted" not in by_layer(view)


def test_a_window_is_a_part_of_any_mask() -> None:
    i = torch.arange(T)
    near = (i[:, None] - i).abs() < 4
    for inside in (masks.causal, masks.flipped, masks.bidirectional):
        for make in (SelfAttention, TorchMHA):
            layer = make(AttentionConfig(C, H, T, may_attend=inside, window=4))
            assert torch.equal(layer.mask(x_of()), inside(i[:, None], i[None]) & near)
    assert masks.name_of(layer.may_attend) == "near(inside=bidirectional, width=4)"


def nothing_but_itself(scores: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return scores.masked_fill(q != k, float("-inf"))


def test_probes_infer_the_mask_of_a_users_score_mod() -> None:
    net = GPT(Variant(SelfAttention, {"score_mod": nothing_but_itself}), 10, block_size=T)
    view = next(views(net, torch.arange(T)[None] % 10))
    assert torch.equal(view.mask, torch.eye(T, dtype=torch.bool))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"window": 0}, "window = 0 must be at least 1"),
        ({"softcap": 0.0}, "softcap = 0 must be from 1e-30 to 1e30, or null"),
        ({"softcap": 1e-300}, "softcap = 1e-300 must be from 1e-30 to 1e30, or null"),
        ({"softcap": 5.0, "kernel": kernels.linear}, "linear does not support softcap"),
        ({"score_mod": alibi, "kernel": kernels.linear}, "linear does not support softcap and sc"),
        ({"length_scale": True, "kernel": kernels.linear}, "linear does not support length_scale"),
        ({"qk_norm": True, "kernel": kernels.linear}, "linear does not support qk_norm"),
    ],
)
def test_bad_settings_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        SelfAttention(AttentionConfig(C, H, T, **given))


def test_linear_attention_has_no_scale() -> None:
    layer = SelfAttention(AttentionConfig(C, H, T, kernel=kernels.linear, scale=0.3))
    with pytest.raises(ValueError, match=r"linear has no scale; remove scale = 0\.3"):
        layer(x_of().float())


def test_torch_mha_refuses_unsupported_settings() -> None:
    with pytest.raises(ValueError, match="TorchMHA does not support score_mod = log_length"):
        TorchMHA(AttentionConfig(C, H, T, score_mod=log_length))


def test_without_positions_equal_symbols_have_equal_logits() -> None:
    """For equal symbols, a model without positions gives the same logits at all positions."""
    net = GPT(SelfAttention, 10, block_size=T, learned_positions=False)
    logits = net(torch.zeros(1, T, dtype=torch.long))
    torch.testing.assert_close(logits, logits[:, :1].expand_as(logits))
