"""Layers of conf/attn with random weights, and their inputs."""

import warnings
from functools import cache
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from torch import Tensor, nn

from attnlab.attention import AttentionConfig
from attnlab.rng import generator
from attnlab.training.build import build
from tests.old import ROOT

B, T, C, H = 2, 11, 16, 4
D = C // H
VARIANTS = sorted({file.stem for file in ROOT.glob("conf/attn/*.yaml")} - {"hybrid"})
DELTA = {
    "delta_net", "delta_net_negative", "gated_delta_net", "kda", "decay", "retention",
    "gated_linear",
}  # fmt: skip


@cache
def settings(variant: str) -> dict[str, Any]:
    """The settings of conf/attn/VARIANT.yaml with its defaults."""
    with warnings.catch_warnings(), initialize_config_dir(f"{ROOT}/conf", version_base="1.3"):
        warnings.simplefilter("ignore")  # the file is meant as a part, and has no `_self_`
        found: Any = OmegaConf.to_container(compose(f"attn/{variant}"))
    return dict(found["attn"])


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


def memo_of(layer: nn.Module, dtype: torch.dtype = torch.float64) -> tuple[dict[str, Tensor], ...]:
    """What a layer of a model gets beside x: the values of the first layer, if it wants them."""
    if not getattr(layer, "uses_memo", False):
        return ()
    values = torch.randn(B, H, T, D, dtype=torch.float64, generator=generator(1, "v0"))
    return ({"values": values.to(dtype)},)
