"""Initial weights: complete, by name, equal for every variant of the same shape."""

from fnmatch import fnmatch
from typing import ClassVar

import pytest
import torch
from torch import nn

from attnlab.attention import Attention, AttentionConfig, SelfAttention
from attnlab.init import init_weights, normal
from attnlab.model import GPT
from attnlab.rng import generator, seed_default, stream_seed
from attnlab.training.config import read_config
from tests.conftest import VARIANTS, settings
from tests.contracts.test_conf import CLAIMS

TIES = {"identical_heads", "identical_qkv"}
OTHER_ROWS = {"latent"}  # of qkv


def weights_of(*overrides: str) -> dict[str, torch.Tensor]:
    return read_config(settings(*overrides)).model(65).state_dict()


@pytest.mark.parametrize("variant", sorted(set(VARIANTS) & set(CLAIMS)))
def test_a_variant_starts_with_the_weights_of_the_baseline(variant: str) -> None:
    """This excludes parameters that only its class has."""
    baseline, net = (
        weights_of("seed=3"),
        read_config(settings("seed=3", f"attn={variant}")).model(65),
    )
    ours = net.state_dict()
    differing = {
        name
        for name in baseline
        if not torch.equal(first_rows(variant, baseline, ours, name), ours[name])
    }
    tied = {n for n in baseline if ".attn." in n and ("qkv" in n or variant == "identical_heads")}
    assert differing == (tied if variant in TIES | OTHER_ROWS else set())
    layer = net.blocks[1].attn
    assert isinstance(layer, Attention)
    rules = {name for cls in type(layer).__mro__ for name in vars(cls).get("init_rules", {})}
    rules |= set(layer.initial(0.02))
    for name in ours.keys() - baseline.keys():
        parameter = name.split(".", 3)[-1]
        assert any(fnmatch(parameter, rule) for rule in rules), name
    assert baseline.keys() <= ours.keys()


def first_rows(
    variant: str, baseline: dict[str, torch.Tensor], ours: dict[str, torch.Tensor], name: str
) -> torch.Tensor:
    """A weight of the baseline; of keys and values only the heads that there are."""
    weight = baseline[name]
    if not name.endswith("qkv.weight"):
        return weight
    C = weight.shape[1]
    rows = len(ours[name])
    if variant.startswith("shared"):
        return torch.cat([weight[:C], weight[2 * C :]])[:rows]
    kv = (rows - C) // 2
    return torch.cat([weight[:C], weight[C : C + kv], weight[2 * C : 2 * C + kv]])


def test_seeds_differ_and_seed_0_is_a_seed() -> None:
    zero, again, one = weights_of("seed=0"), weights_of("seed=0"), weights_of("seed=1")
    assert torch.equal(zero["wte.weight"], again["wte.weight"])
    assert not torch.equal(zero["wte.weight"], one["wte.weight"])


def test_weights_of_different_names_are_drawn_independently() -> None:
    weights = weights_of()
    a, b = weights["blocks.0.attn.qkv.weight"], weights["blocks.1.attn.qkv.weight"]
    assert not torch.equal(a, b)


@pytest.mark.parametrize(
    ("scheme", "name", "std"),
    [
        ("gpt2", "wte.weight", 0.02),
        ("gpt2", "blocks.0.attn.proj.weight", 0.02 / 8**0.5),
        ("gpt2", "blocks.3.mlp.proj.weight", 0.02 / 8**0.5),
        ("gpt2", "blocks.3.mlp.fc.weight", 0.02),
    ],
)
def test_standard_deviations(scheme: str, name: str, std: float) -> None:
    weight = weights_of(f"model.init={scheme}")[name]
    assert weight.std() == pytest.approx(std, rel=0.05)


@pytest.mark.parametrize(
    ("overrides", "std"),
    [
        (["model.init=gpt2"], 0.02),
        (["model.init=unit"], 128**-0.5),
        (["model.qk_std=0.3"], 0.3),
        (["model.init=unit", "model.qk_std=0.05"], 0.05),
    ],
)
def test_queries_and_keys_by_scheme_and_values_by_gpt2(overrides: list[str], std: float) -> None:
    q, k, v = weights_of(*overrides)["blocks.2.attn.qkv.weight"].chunk(3)
    assert q.std() == pytest.approx(std, rel=0.05)
    assert k.std() == pytest.approx(std, rel=0.05)
    assert v.std() == pytest.approx(0.02, rel=0.05)


def test_biases_are_zero_and_layernorms_one() -> None:
    weights = weights_of("model.bias=true")
    assert all((w == 0).all() for name, w in weights.items() if name.endswith("bias"))
    assert all((w == 1).all() for name, w in weights.items() if "ln_" in name and "weight" in name)
    assert weights["blocks.0.attn.qkv.bias"].shape == (384,)


class WithExtra(SelfAttention):
    """An attention class with a parameter that no rule knows."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self.own = nn.Parameter(torch.empty(config.n_head))


class WithRule(WithExtra):
    init_rules: ClassVar = {"own": normal(0.5)}


class WithModule(SelfAttention):
    """A parameter inside a module of its own; a subclass has the rule."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self.gate = nn.Linear(config.n_embd, config.n_head)


class TooWide(WithModule):
    init_rules: ClassVar = {"*.weight": normal(0.5)}


def test_rules_name_parameters_relative_to_the_layer() -> None:
    with pytest.raises(ValueError, match=r"init_rules = {'gate\.weight': attnlab"):
        init_weights(GPT(WithModule, 65), 0)


def test_a_rule_that_matches_an_inherited_parameter_is_refused() -> None:
    """It would draw `qkv` and `proj` differently from all other variants."""
    sentence = r"rule '\*\.weight' of TooWide also matches .* qkv\.weight; write 'gate\.weight'"
    with pytest.raises(ValueError, match=sentence):
        init_weights(GPT(TooWide, 65), 0)


def test_a_parameter_without_a_rule_is_an_error_with_advice() -> None:
    net = GPT(WithExtra, 65)
    with pytest.raises(ValueError, match=r"blocks\.0\.attn\.own has no init.*init_rules"):
        init_weights(net, 0)


def test_a_class_can_define_its_own_rule() -> None:
    net = GPT(WithRule, 65, n_layer=8, n_head=16)
    init_weights(net, 0)
    gains = torch.stack([block.attn.own for block in net.blocks])
    assert gains.std().item() == pytest.approx(0.5, rel=0.3)


def test_an_unknown_scheme_is_named() -> None:
    with pytest.raises(ValueError, match="init = xavier is unknown; it must be one of unit, gpt2"):
        init_weights(GPT(SelfAttention, 65), 0, "xavier")


def test_streams_are_their_own() -> None:
    seeds = {
        stream_seed(seed, stream, step)
        for seed in range(4)
        for stream in ("weights", "data", "dropout")
        for step in range(4)
    }
    assert len(seeds) == 48
    assert stream_seed(0, "data", 7) == 8756951297435905662  # always, on every machine
    a, b = generator(0, "data", 3), generator(0, "data", 3)
    assert torch.equal(torch.randn(3, generator=a), torch.randn(3, generator=b))


def test_seeding_the_generators_of_a_device_is_seeding_them_all() -> None:
    torch.manual_seed(7)
    expected = torch.rand(5)
    seed_default(7, torch.device("cpu"))
    assert torch.equal(torch.rand(5), expected)


@pytest.mark.parametrize(("kind", "name"), [("cuda", "manual_seed_all"), ("mps", "manual_seed")])
def test_the_generator_of_the_device_is_seeded_too(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(getattr(torch, kind), name, seen.append)
    seed_default(7, torch.device(kind))
    assert seen == [7]
