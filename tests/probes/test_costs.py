"""What attention costs: FLOPs by formula and counted, numbers in the cache."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import attnlab
from attnlab.attention import (
    AttentionConfig,
    DeltaAttention,
    LatentAttention,
    SelfAttention,
    TorchMHA,
    Variant,
    kernels,
)
from attnlab.model import GPT
from attnlab.probes.costs import costs
from attnlab.training.instantiate import build
from tests.conftest import VARIANTS, of_variant

C, H, D, T = 32, 4, 8, 64
LINEAR = 8 * C * C  # of qkv and proj: 4 C^2 weights


def gpt(attn: Any, n_layer: int = 1, block_size: int = T) -> GPT:
    sizes = {"block_size": block_size, "n_layer": n_layer, "n_head": H, "n_embd": C}
    return GPT(attn, 7, **sizes)


def variant(**settings: Any) -> Variant:
    return Variant(SelfAttention, settings)


@pytest.mark.parametrize(
    ("attn", "flops", "counted"),
    [
        (SelfAttention, LINEAR + 4 * C * T, LINEAR + 4 * C * T),
        (variant(kernel=kernels.manual), LINEAR + 4 * C * T, LINEAR + 4 * C * T),
        (TorchMHA, LINEAR + 4 * C * T, LINEAR + 4 * C * T),
        (variant(n_kv_head=1), LINEAR * 5 / 8 + 4 * C * T, LINEAR * 5 / 8 + 4 * C * T),
        (variant(window=8), LINEAR + 4 * C * 8, LINEAR + 4 * C * T),
        (variant(kernel=kernels.linear), LINEAR + H * (4 * D * D + 2 * D), LINEAR + 4 * C * T),
        (variant(gate="head"), LINEAR + 2 * C * H + 4 * C * T, LINEAR + 2 * C * H + 4 * C * T),
        # A state (D, D) that a position reads by its key, writes, and reads by its query. Here, k
        # and q times all keys, the triangular system, their product, and three with the state.
        (
            DeltaAttention,
            LINEAR + 2 * C * H + 6 * C * D,
            LINEAR + 2 * C * H + 6 * C * T + C * (T - 1) + 6 * C * D,
        ),
        # c has C / 2 channels, and the rotated part D / 2; keys are D + D / 2 wide.
        (
            LatentAttention,
            2 * C * (H * 12 + 16 + 4) + 2 * 16 * 2 * C + 2 * C * C + 2 * H * (12 + D) * T,
            2 * C * (H * 12 + 16 + 4) + 2 * 16 * 2 * C + 2 * C * C + 2 * H * (12 + D) * T,
        ),
    ],
)
def test_flops_of_the_algorithm_and_of_the_implementation(
    attn: Any, flops: float, counted: float
) -> None:
    found = costs(gpt(attn, n_layer=2))
    assert (found["flops"], found["flops_counted"]) == (2 * flops, 2 * counted)


def test_parameters_and_numbers_in_the_cache_are_of_all_layers_at_any_length() -> None:
    net = gpt(SelfAttention, n_layer=3)
    whole, short = costs(net), costs(net, 16)
    assert whole["parameters"] == 3 * 4 * C * C
    assert (whole["length"], whole["cached"]) == (T, 3 * 2 * C * T)
    assert (short["length"], short["cached"]) == (16, 3 * 2 * C * 16)
    assert whole["flops"] - short["flops"] == 3 * 4 * C * (T - 16)
    forgets = costs(gpt(variant(window=8, forget=0.0)))  # its sums are trimmed to the window
    assert forgets["cached"] == (2 * C + H) * 7
    summed = costs(gpt(variant(kernel=kernels.linear, conv=4)))  # a state, and three rows of qkv
    assert summed["cached"] == H * (D * D + D) + 3 * 3 * C
    printed = attnlab.costs(GPT(SelfAttention, 65, n_layer=1, n_embd=32, block_size=64))
    assert str(printed) in Path("docs/variants.md").read_text(encoding="utf-8")
    for wrong in (0, T + 1):
        with pytest.raises(ValueError, match=f"T = {wrong} must be from 1 to block_size = 64"):
            costs(net, wrong)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_has_costs_and_measuring_them_changes_nothing(name: str) -> None:
    torch.manual_seed(0)
    net = gpt(build(of_variant(name), "attn"), n_layer=2, block_size=11)
    before = {key: x.clone() for key, x in net.state_dict().items()}
    random = torch.get_rng_state()
    found = attnlab.costs(net)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(x, before[key]) for key, x in net.state_dict().items())
    assert found["flops"] > 0 and found["flops_counted"] > 0
    assert (found["cached"] is None) == (not all(block.attn.cacheable for block in net.blocks))


@pytest.mark.parametrize(
    ("name", "operators"),
    [
        ("sdpa", set()),
        ("manual", {"softmax"}),
        ("entmax", {"sort", "cumsum"}),
        ("top_k", {"topk"}),
        ("forgetting", {"cumsum"}),
        ("delta_net", {"linalg_vector_norm"}),  # the triangular system is counted
    ],
)
def test_operators_that_are_not_counted_are_named(name: str, operators: set[str]) -> None:
    net = gpt(build(of_variant(name), "attn"))
    named = set(costs(net)["not_counted"].split(", ")) - {""}
    assert operators <= named and "linalg_solve_triangular" not in named
    assert operators or not named


class Doubled(SelfAttention):
    def merge(self, mixed: Tensor, x: Tensor, v: Tensor) -> Tensor:
        return super().merge(mixed, x, v) @ torch.eye(C) * 2


class Priced(Doubled):
    def flops(self, T: int) -> int:
        return super().flops(T) + 2 * C * C


class Bare(nn.Module):
    cacheable: ClassVar[bool] = False

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        self.map = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.map(x)
        return y


def test_the_formula_of_a_users_layer_is_its_own_or_unknown() -> None:
    inherited, own, bare = costs(gpt(Doubled)), costs(gpt(Priced)), costs(gpt(Bare))
    assert inherited["flops"] is None and inherited["flops_counted"] == own["flops_counted"]
    assert own["flops"] == own["flops_counted"] == LINEAR + 2 * C * C + 4 * C * T
    assert (bare["flops"], bare["flops_counted"], bare["cached"]) == (None, 2 * C * C, None)
