"""What a layer may use beside x: a width, symbols, a loss, options, several sets of values."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor

from attnlab.attention import AttentionConfig, GatedAttention, SelfAttention, kernel
from attnlab.attention.core import masked_softmax, tells_cost
from attnlab.attention.layer import symbols_from
from attnlab.errors import BadSetting
from attnlab.init import init_weights
from attnlab.model import GPT
from attnlab.probes.capture import costs, scalars, views
from attnlab.settings.bind import attention_factory
from attnlab.training.config import read_config
from attnlab.training.run import run
from tests.attention.formulas import scaled_dot
from tests.attention.layers import C, H, T, layer_of, randomized, settings, x_of
from tests.attention.researchers import NativeSparse

# One of each class that takes the settings of SelfAttention.
WIDE = """
sdpa gqa shared_qk shared_qkv cosine rotary gate_channel sink forgetting value_residual exclusive
short_conv general differential identical_heads
""".split()


@pytest.mark.parametrize("head_size", [2, 10])
def test_a_head_size_of_its_own_has_the_formula_of_its_width(head_size: int) -> None:
    layer = layer_of("sdpa", head_size=head_size)
    assert layer.qkv.weight.shape == (3 * H * head_size, C)
    assert layer.W_o.shape == (H * head_size, C)
    w = {name: weight.detach().numpy() for name, weight in layer.named_parameters()}
    x = x_of()
    expected = np.array([scaled_dot(w, text.numpy(), H) for text in x])
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, rtol=1e-10)
    wrong = np.array([scaled_dot(w, text.numpy(), H, power=-0.4) for text in x])
    assert np.abs(wrong - expected).max() > 1e-3  # the scale is that of the width
    assert layer.state(64) == 2 * H * head_size * 64
    assert layer.flops(64) == 8 * C * H * head_size + 4 * H * head_size * 64


@pytest.mark.parametrize("variant", WIDE)
def test_a_variant_takes_a_head_size(variant: str) -> None:
    attn = attention_factory(settings(variant) | {"head_size": 6})
    net = GPT(attn, 7, block_size=T, n_layer=2, n_head=H, n_embd=C)
    init_weights(net, 0)
    ids = torch.randint(7, (2, T))
    net(ids).sum().backward()
    assert all(view.pattern.shape == (2, H, T, T) for view in views(net, ids))


def test_wider_heads_start_with_the_weights_of_the_usual_ones() -> None:
    usual, narrow, wide = (layer_of_model(head_size) for head_size in (None, 2, 10))
    for part in range(3):
        first = usual.parts(usual.qkv.weight)[part]
        assert torch.equal(narrow.parts(narrow.qkv.weight)[part], first[: 2 * H])
        assert torch.equal(wide.parts(wide.qkv.weight)[part][:C], first)


def layer_of_model(head_size: int | None) -> Any:
    attn = partial(SelfAttention, head_size=head_size)
    net = GPT(attn, 7, block_size=T, n_head=H, n_embd=C, n_layer=1)
    init_weights(net, 0)
    return net.blocks[0].attn


def test_a_wider_embedding_can_have_as_many_parameters_as_value_embeddings() -> None:
    """The control: L tables (V, C) against a table (V, W) and a matrix (C, W)."""
    sizes = {"block_size": T, "n_layer": 3, "n_head": H, "n_embd": C}
    values = GPT(attention_factory(settings("value_embeddings")), 48, **sizes)
    wide = GPT(SelfAttention, 48, wide_embedding=36, **sizes)
    plain = GPT(SelfAttention, 48, **sizes)
    sums = [sum(p.numel() for p in net.parameters()) for net in (values, wide, plain)]
    assert sums[0] - sums[2] == 3 * 48 * C + 3 * 2 and sums[1] - sums[2] == 3 * 48 * C
    for net in (wide, plain):
        init_weights(net, 0)
    ids = torch.arange(48)[None, :T]
    assert wide.narrow is not None
    added = wide.embed(ids) - plain.embed(ids)
    torch.testing.assert_close(added.std(), plain.wte.weight.std(), rtol=0.1, atol=0)
    wide.narrow.weight.data.zero_()
    assert torch.equal(wide(ids), plain(ids))
    with pytest.raises(BadSetting, match="wide_embedding = 0"):
        GPT(SelfAttention, 48, wide_embedding=0, **sizes)


class Remembers(SelfAttention):
    """Keeps what it is given."""

    uses_memo = True

    def split(self, x: Tensor, *memo: Any) -> tuple[Tensor, Tensor, Tensor]:
        self.seen = memo[0]["ids"]
        return super().split(x)


def test_a_layer_gets_the_symbols_and_their_number() -> None:
    configs: list[AttentionConfig] = []

    def attn(config: AttentionConfig) -> Remembers:
        configs.append(config)
        return Remembers(config)

    net = GPT(attn, 7, block_size=T, n_layer=2, n_head=H, n_embd=C)
    ids = torch.randint(7, (2, T))
    net(ids)
    assert [config.vocab_size for config in configs] == [7, 7]
    for block in net.blocks:
        assert torch.equal(block.attn.seen, ids)


def test_symbols_of_the_layer_check_follow_their_inputs() -> None:
    x = torch.randn(2, T, C)
    changed = x.clone()
    changed[:, 3] += 1
    differs = symbols_from(x, 1000) != symbols_from(changed, 1000)
    assert differs[:, 3].all() and differs.sum() == 2
    assert symbols_from(x, 5).max() < 5


class Changed(SelfAttention):
    """Changes a step, and says nothing of its costs."""

    def modify(self, scores: Tensor, x: Tensor) -> Tensor:
        return super().modify(scores, x) + 1


class Told(Changed):
    """Tells one cost."""

    def modify(self, scores: Tensor, x: Tensor) -> Tensor:
        return super().modify(scores, x) + 1

    def state(self, T: int) -> int:
        return 7


class Same(SelfAttention):
    """Changes a step, and says that it costs nothing."""

    same_costs = True

    def modify(self, scores: Tensor, x: Tensor) -> Tensor:
        return super().modify(scores, x) + 1


class OnlySettings(SelfAttention):
    """Changes no step."""


class TwoClasses(Changed, GatedAttention):
    """One of its classes tells nothing."""


class Plain(torch.nn.Module):
    """No SelfAttention."""

    def flops(self, T: int) -> int:
        return 3 * T


BOTH = {"flops", "state"}


@pytest.mark.parametrize(
    ("layer", "told"),
    [
        (Changed, set()),
        (Told, {"state"}),
        (type("Own", (Told,), {"same_costs": True}), {"state"}),
        (type("Part", (Changed,), {"mix_flops": lambda _, keys: keys}), set()),
        (type("Silent", (Told,), {"merge": SelfAttention.merge}), set()),
        (
            type("Whole", (Changed,), {"flops": lambda *_: 5, "state": lambda *_: 7}),
            {"flops", "state"},
        ),
        (Same, {"flops", "state"}),
        (type("SameAgain", (Same,), {"merge": SelfAttention.merge}), set()),
        (OnlySettings, {"flops", "state"}),
        (TwoClasses, set()),
    ],
)
def test_costs_are_absent_where_a_class_says_nothing(layer: Any, told: set[str]) -> None:
    made = layer(AttentionConfig(C, H, T))
    assert {cost for cost in ("flops", "state") if tells_cost(made, cost)} == told
    net = GPT(layer, 7, block_size=T, n_layer=1, n_head=H, n_embd=C)
    assert ("flops" in costs(net), "cached" in costs(net)) == ("flops" in told, "state" in told)


def test_a_layer_of_another_kind_tells_what_it_has() -> None:
    assert tells_cost(Plain(), "flops") and not tells_cost(Plain(), "state")


class OwnPattern(SelfAttention):
    """Averages by the distance of two keys, which are no scores of its parent."""

    def attend(self, q: Any, k: Any, v: Any, x: Any, dropout: float = 0.0, **_: Any) -> Tensor:
        return masked_softmax(-torch.cdist(q, k), self.mask(x)) @ v


class OwnPatternAndScores(OwnPattern):
    """Tells its scores."""

    def scores(self, x: Tensor, *memo: Any) -> Tensor:
        q, k, _ = self.split(x)
        return -torch.cdist(q, k)


class AveragesAnew(OwnPatternAndScores):
    """Changes the step of a parent that told its scores."""

    def attend(self, *args: Any, **options: Any) -> Tensor:
        return super().attend(*args, **options).clone()


def by_distance(q: Any, k: Any, v: Any, *, mask: Tensor, **_: Any) -> Tensor:
    """A kernel with scores of its own."""
    return masked_softmax(-torch.cdist(q, k), mask) @ v


@kernel
def squared(s: Tensor, mask: Tensor) -> Tensor:
    """A kernel that gets the scores."""
    return masked_softmax(s.square(), mask)


@pytest.mark.parametrize(
    ("layer", "scores", "costs_told"),
    [
        (SelfAttention, True, True),
        (OwnPattern, False, False),
        (OwnPatternAndScores, True, False),
        (AveragesAnew, False, False),
        (type("GatedToo", (GatedAttention, OwnPattern), {}), False, False),
        (type("GatedScores", (GatedAttention, OwnPatternAndScores), {}), True, False),
        (Changed, True, False),  # `modify` changes the scores that are shown
        (partial(SelfAttention, kernel=squared), True, True),
        (partial(SelfAttention, kernel=by_distance), False, False),
        (partial(SelfAttention, kernel=partial(by_distance)), False, False),
        (partial(GatedAttention, kernel=by_distance), False, False),
    ],
)
def test_what_a_parent_computes_from_a_changed_step_is_absent(
    layer: Any, scores: bool, costs_told: bool
) -> None:
    net = GPT(layer, 7, block_size=T, n_layer=1, n_head=H, n_embd=C)
    init_weights(net, 0)
    (view,) = views(net, torch.randint(7, (2, T)))
    assert (view.scores is not None) == scores
    assert ("attn/score_std/L0H0" in scalars([view])) == scores
    assert ("flops" in costs(net), "cached" in costs(net)) == (costs_told, costs_told)
    if view.scores is not None and not isinstance(layer, partial):
        torch.testing.assert_close(masked_softmax(view.scores, view.mask), view.pattern)


class Adds(SelfAttention):
    """Adds the squares of its output projection to the loss."""

    added_loss: Tensor | None = None
    factor = 0.5

    def forward(self, x: Tensor, *memo: Any) -> Tensor:
        self.added_loss = self.factor * self.proj.weight.square().sum()
        return super().forward(x, *memo)


class AddsNothing(Adds):
    """Adds 0."""

    factor = 0.0


def test_a_loss_of_a_layer_is_trained_and_logged_but_not_validated(
    small: Any, tmp_path: Path
) -> None:
    losses = {}
    for layer in (SelfAttention, AddsNothing, Adds):
        cfg = small("trainer.max_steps=6", "logger=csv", "trainer.log_every_n_steps=1")
        OmegaConf.set_struct(cfg, False)
        cfg.attn = settings("sdpa") | {"_target_": f"{layer.__module__}.{layer.__name__}"}
        folder = tmp_path / layer.__name__
        run(read_config(cfg), folder, variant="mine")
        (table,) = folder.rglob("metrics.csv")
        header, *rows = (line.split(",") for line in table.read_text().splitlines())
        logged = [dict(zip(header, row, strict=True)) for row in rows]
        losses[layer] = json.loads((folder / "metrics.json").read_text())["val_loss"]
        added = [float(row["train/added_loss"]) for row in logged if row.get("train/added_loss")]
        assert len(added) == (0 if layer is SelfAttention else 6)
        if layer is Adds:
            assert added[0] > added[-1] > 0  # training makes it smaller
    assert losses[AddsNothing] == losses[SelfAttention]
    assert losses[Adds] != losses[SelfAttention]
    assert abs(losses[Adds] - losses[SelfAttention]) < 0.1  # far less than what was added


def test_an_added_loss_is_the_sum_over_layers_and_taken_once() -> None:
    net = GPT(Adds, 7, block_size=T, n_layer=3, n_head=H, n_embd=C)
    init_weights(net, 0)
    net(torch.randint(7, (2, T)))
    expected = sum(0.5 * block.attn.proj.weight.square().sum() for block in net.blocks)
    torch.testing.assert_close(net.take_added_loss(), expected)
    assert net.take_added_loss() is None


@kernel
def tempered(s: Tensor, mask: Tensor, heat: Tensor) -> Tensor:
    return (s * heat[:, None, None]).masked_fill(~mask, -torch.inf).softmax(-1)


class Tempered(SelfAttention):
    """Gives its kernel a parameter."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config, kernel=tempered)
        self.heat = torch.nn.Parameter(torch.ones(self.n_head))

    def options(self, x: Tensor) -> dict[str, Any]:
        return super().options(x) | {"heat": self.heat}


def test_a_kernel_gets_the_parameters_of_its_layer() -> None:
    layer: Any = randomized(Tempered(AttentionConfig(C, H, T))).double()
    x = x_of()
    scores = layer.scores(x) * layer.heat[:, None, None]
    expected = scores.masked_fill(~layer.mask(x), -torch.inf).softmax(-1)
    torch.testing.assert_close(layer.pattern(x), expected)
    layer(x).square().sum().backward()
    assert layer.heat.grad.abs().min() > 0


def test_each_set_of_values_has_a_pattern() -> None:
    layer: Any = randomized(NativeSparse(AttentionConfig(C, H, T))).double()
    x = x_of()
    patterns = layer.patterns(x)
    values = layer.split(x)[2]
    mixed = sum(p @ v for p, v in zip(patterns, values, strict=True))
    torch.testing.assert_close(layer(x), layer.proj(layer.merge(mixed, x, values)))
    torch.testing.assert_close(layer.pattern(x), patterns[0] + patterns[1] + patterns[2])
    net = GPT(NativeSparse, 7, block_size=T, n_layer=1, n_head=H, n_embd=C)
    init_weights(net, 0)
    measured = scalars(views(net, torch.randint(7, (2, T))))
    assert measured["attn/future_mass"] == 0 and "attn/effective_heads" not in measured
