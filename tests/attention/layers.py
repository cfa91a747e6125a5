"""Layers of conf/attn with random weights, and their inputs."""

from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from attnlab.attention import AttentionConfig
from attnlab.rng import generator
from attnlab.settings.bind import bind
from tests import conftest

B, T, C, H = 2, 11, 16, 4
D = C // H
V = 5  # symbols
VARIANTS = [name for name in conftest.VARIANTS if name != "hybrid"]
DELTA = """
delta_net delta_net_negative gated_delta_net kda decay retention gated_linear delta_product
""".split()


def settings(variant: str) -> dict[str, Any]:
    """The settings of conf/attn/VARIANT.yaml with its defaults."""
    return dict(OmegaConf.to_container(conftest.settings(f"attn={variant}").attn))


def layer_of(variant: str, *, layer: int = 1, dropout: float = 0.0, **given: Any) -> Any:
    """The variant with changed settings, in fp64, with large random weights."""
    config = AttentionConfig(C, H, T, dropout=dropout, layer=layer, vocab_size=V)
    made = bind(settings(variant) | given, "attn", supplied=["config"])(config)
    return randomized(made).double()


@torch.no_grad()
def randomized(module: nn.Module) -> nn.Module:
    for name, weight in module.named_parameters():
        weight.copy_(torch.randn(weight.shape, generator=generator(0, name)) / 2)
    return module


def x_of(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(B, T, C, dtype=torch.float64, generator=generator(1, "x")).to(dtype)


def memo_of(layer: Any, dtype: torch.dtype = torch.float64) -> tuple[dict[str, Tensor], ...]:
    """What a layer of a model gets beside x, if it wants it: the symbols, and the values of the
    first layer."""
    if not layer.uses_memo:
        return ()
    values = torch.randn(B, H, T, D, dtype=torch.float64, generator=generator(1, "v0"))
    ids = torch.randint(V, (B, T), generator=generator(1, "ids"))
    return ({"values": values.to(dtype), "ids": ids},)


def mixed_by_pattern(layer: Any, x: Tensor) -> Tensor:
    """The values of a layer, mixed by its pattern, or each set of values by its own."""
    memo = memo_of(layer, x.dtype)
    v = layer.split(x, *memo)[2]
    if isinstance(v, Tensor):
        return layer.pattern(x, *memo) @ v
    mixed = [p @ values for p, values in zip(layer.patterns(x, *memo), v, strict=True)]
    return torch.stack(mixed).sum(0)
