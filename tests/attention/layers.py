"""Layers of conf/attn with random weights, and their inputs."""

from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from attnlab.attention import AttentionConfig
from attnlab.building.build import build
from attnlab.rng import generator
from tests import conftest

B, T, C, H = 2, 11, 16, 4
D = C // H
VARIANTS = [name for name in conftest.VARIANTS if name != "hybrid"]
DELTA = "delta_net delta_net_negative gated_delta_net kda decay retention gated_linear".split()


def settings(variant: str) -> dict[str, Any]:
    """The settings of conf/attn/VARIANT.yaml with its defaults."""
    return dict(OmegaConf.to_container(conftest.settings(f"attn={variant}").attn))


def layer_of(variant: str, *, layer: int = 1, dropout: float = 0.0, **given: Any) -> Any:
    """The variant with changed settings, in fp64, with large random weights."""
    config = AttentionConfig(C, H, T, dropout=dropout, layer=layer)
    made = build(settings(variant) | given, "attn", "config")(config)
    return randomized(made).double()


@torch.no_grad()
def randomized(module: nn.Module) -> nn.Module:
    for name, weight in module.named_parameters():
        weight.copy_(torch.randn(weight.shape, generator=generator(0, name)) / 2)
    return module


def x_of(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(B, T, C, dtype=torch.float64, generator=generator(1, "x")).to(dtype)


def memo_of(layer: Any, dtype: torch.dtype = torch.float64) -> tuple[dict[str, Tensor], ...]:
    """What a layer of a model gets beside x: the values of the first layer, if it wants them."""
    if not layer.uses_memo:
        return ()
    values = torch.randn(B, H, T, D, dtype=torch.float64, generator=generator(1, "v0"))
    return ({"values": values.to(dtype)},)
