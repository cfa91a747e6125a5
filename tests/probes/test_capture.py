"""What is read off the layers of a model: every layer once, as it is called, without a change."""

import itertools
import math
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from attnlab.attention import AttentionConfig, SelfAttention, core
from attnlab.init import init_weights
from attnlab.model import GPT
from attnlab.probes import measures
from attnlab.probes.capture import costs, first_nonfinite, mean_future_mass, scalars, views
from attnlab.rng import Rule, normal
from attnlab.settings.bind import attention_factory
from attnlab.training.layer_check import check_layers
from tests.attention.layers import VARIANTS, settings
from tests.attention.researchers import Delta

T, C, H = 10, 16, 4
IDS = torch.randint(7, (2, T), generator=torch.Generator().manual_seed(0))
# Of post_softmax_mask and softmax_over_queries only the sums that divide the weights read ahead.
LEAKS = {"flipped", "bidirectional", "peek_one", "zero_fill", "unmerged_heads"}


class Told(nn.Module):
    """A user's layer that offers a pattern only: each position reads itself and the one before."""

    init_rules: ClassVar[dict[str, Rule]] = {"down.weight": normal(0.1)}

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        self.down = nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(x)

    def pattern(self, x: Tensor) -> Tensor:
        T = x.shape[1]
        near = torch.ones(T, T).tril() - torch.ones(T, T).tril(-2)
        return (near / near.sum(-1, keepdim=True)).expand(len(x), 1, T, T)


def gpt(variant: Any, n_layer: int = 2, **given: Any) -> GPT:
    attn = attention_factory(settings(variant)) if isinstance(variant, str) else variant
    net = GPT(attn, 7, block_size=T, n_layer=n_layer, n_head=H, n_embd=C, **given)
    init_weights(net, 0)
    return net


@pytest.mark.parametrize("variant", ["sdpa", "value_residual", "gated_delta_net", "gqa"])
def test_a_view_shows_what_the_model_computed(variant: str) -> None:
    """The values, averaged by the pattern and merged, are the output that a hook saw."""
    net, calls = gpt(variant), list[tuple[Tensor, Tensor]]()
    net.blocks[0].eval()  # only a part of the model is in evaluation mode
    modes = [module.training for module in net.modules()]
    for block in net.blocks:
        block.attn.register_forward_hook(lambda _, args, y: calls.append((args[0], y)))
    seen = list(views(net, IDS))
    assert [view.layer for view in seen] == [0, 1] and len(calls) == 2
    for view, (x, y) in zip(seen, calls, strict=True):
        layer: Any = view.attn
        assert view.values is not None and view.scores is not None
        mixed = layer.merge(view.pattern @ view.values, x, view.values)
        torch.testing.assert_close(layer.proj(mixed), y, rtol=0, atol=1e-5)
        assert not view.pattern.requires_grad and view.mask.shape == (T, T)
    assert [module.training for module in net.modules()] == modes


class Shares(SelfAttention):
    """Keys are those of all layers before it, which `share` keeps in the memo."""

    uses_memo = True

    def split(self, x: Tensor, *memo: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().split(x)
        k = self.share(k, memo[0])
        self.used = q, k
        return q, k, v

    def share(self, k: Tensor, memo: dict[str, Any]) -> Tensor:
        memo["keys"] = k = k + memo.get("keys", 0)
        return k


class SharesInPlace(Shares):
    def share(self, k: Tensor, memo: dict[str, Any]) -> Tensor:
        return memo.setdefault("keys", torch.zeros_like(k)).add_(k).clone()


class SharesTuple(Shares):
    def share(self, k: Tensor, memo: dict[str, Any]) -> Tensor:
        number, before = memo.get("keys", (0, torch.zeros_like(k)))
        memo["keys"] = number + 1, k + before
        return k + before / (number + 1)


class SharesList(Shares):
    def share(self, k: Tensor, memo: dict[str, Any]) -> Tensor:
        memo.setdefault("keys", []).append({"k": k})
        return sum((each["k"] for each in memo["keys"]), torch.zeros_like(k))


@pytest.mark.parametrize("layer", [Shares, SharesInPlace, SharesTuple, SharesList])
def test_a_memo_is_seen_as_in_the_forward_pass(layer: Any) -> None:
    net = gpt(layer, 3)
    with torch.no_grad():
        for block in net.blocks:
            block.attn.qkv.weight.mul_(3)  # patterns far from even ones
        net(IDS)
    expected = []
    for block in net.blocks:
        attn: Any = block.attn
        q, k = attn.used
        expected.append(core.masked_softmax(core.scores(q, k, scale=attn.scale), attn.mask(q[0])))
    seen = list(views(net, IDS))
    for view, pattern in zip(seen, expected, strict=True):
        torch.testing.assert_close(view.pattern, pattern)
        assert view.scores is not None
        torch.testing.assert_close(core.masked_softmax(view.scores, view.mask), pattern)
    assert max(float((a - b).abs().max()) for a, b in itertools.pairwise(expected)) > 0.1
    check_layers(net)


def test_a_layer_is_read_as_far_as_it_speaks() -> None:
    def mixed(config: AttentionConfig) -> nn.Module:
        return [SelfAttention, Delta, Told][config.layer](config)

    net = gpt(mixed, 3)
    first, told = views(net, IDS)
    assert (first.layer, told.layer) == (0, 2)
    assert told.scores is None and told.values is None
    assert told.mask.sum().item() == 2 * T - 1 and told.mask[0, 0]  # the keys with weight
    assert set(costs(net)) == {"length", "parameters"}
    found = scalars([first, told])
    assert {"attn/entropy/L0H0", "attn/entropy/L2H0", "attn/effective_heads/L0"} < set(found)
    assert "attn/effective_heads/L2" not in found and "attn/score_std/L2H0" not in found
    assert mean_future_mass(net, IDS) == 0 and math.isnan(mean_future_mass(gpt(Delta), IDS))


def test_scalars_are_the_measures_of_heads_layers_and_all() -> None:
    seen = list(views(gpt("sdpa"), IDS))
    found = scalars(seen)
    entropies = [measures.entropy(view.pattern, view.mask) for view in seen]
    for layer, of_heads in enumerate(entropies):
        for head, value in enumerate(of_heads):
            assert found[f"attn/entropy/L{layer}H{head}"] == float(value)
        assert found[f"layers/entropy/L{layer}"] == float(of_heads.mean())
    assert found["attn/entropy"] == float(torch.cat(entropies).mean())
    outputs = [view.pattern @ view.values for view in seen if view.values is not None]
    heads = [float(measures.effective_heads(x)) for x in outputs]
    assert found["attn/effective_heads"] == pytest.approx(sum(heads) / 2)
    difference = measures.largest_difference(seen[1].pattern, dim=1)
    assert found["attn/head_difference/L1"] == float(difference)


@pytest.mark.parametrize("variant", sorted({*VARIANTS} - {"strict_flip"}))
def test_exactly_the_leaks_have_weight_on_the_future(variant: str) -> None:
    assert (mean_future_mass(gpt(variant), IDS) > 1e-6) == (variant in LEAKS)


@pytest.mark.parametrize(
    ("name", "value", "rows", "named"),
    [
        ("wte.weight", 0.0, 0, None),
        ("wte.weight", math.nan, None, "weight wte.weight"),
        ("blocks.1.attn.qkv.weight", math.inf, None, "weight blocks.1.attn.qkv.weight"),
        ("blocks.1.attn.qkv.weight", 1e30, 2 * C, "scores of layer 1"),  # squared, it is infinite
        ("blocks.0.mlp.proj.weight", 1e38, None, "values of layer 1"),
        ("ln_f.weight", 3e38, None, "logits"),
    ],
)
def test_the_first_quantity_that_is_not_finite(
    name: str, value: float, rows: int | None, named: str | None
) -> None:
    net = gpt("manual")
    with torch.no_grad():
        net.get_parameter(name)[:rows] = value
    assert first_nonfinite(net, IDS) == named


def test_costs_are_sums_over_the_layers() -> None:
    net, layer = gpt("sdpa", 3), SelfAttention(AttentionConfig(C, H, T, bias=False))
    parameters = 3 * sum(p.numel() for p in layer.parameters())
    own = {"flops": 3 * layer.flops(50), "cached": 3 * layer.state(50)}
    assert costs(net, 50) == {"length": 50, "parameters": parameters} | own
    assert costs(net)["length"] == T
