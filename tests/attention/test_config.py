"""AttentionConfig: one config for all layers, which refuse settings that they do not support."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from attnlab.attention import (
    AdditiveAttention,
    AttentionConfig,
    GeneralAttention,
    SelfAttention,
    TorchMHA,
    Variant,
    bidirectional,
    manual,
)
from attnlab.model import GPT

CONFIG = AttentionConfig(24, 4, 11)


class Own(nn.Module):
    """A class outside the library that uses the scale and has its own setting."""

    def __init__(self, config: AttentionConfig, *, own: int = 3) -> None:
        super().__init__()
        self.scale, self.own = config.scale, own

    def forward(self, x: Tensor) -> Tensor:
        return x


ADDED = ["forget", "length_scale"]


@pytest.mark.parametrize(
    ("layer", "refused"),
    [
        (TorchMHA, ["kernel", "n_kv_head", "qk_norm", "rotary", "shared", *ADDED]),
        (AdditiveAttention, ["kernel", "scale", "n_kv_head", "qk_norm", "rotary", *ADDED]),
        (GeneralAttention, ["n_kv_head", "qk_norm", "rotary"]),
        (SelfAttention, []),
    ],
)
def test_a_layer_refuses_settings_that_it_does_not_support(
    layer: type, refused: list[str]
) -> None:
    settings = {
        "kernel": manual, "scale": 2.0, "may_attend": bidirectional, "heads": 2, "n_kv_head": 2,
        "qk_norm": True, "rotary": 100.0, "shared": "qk", "forget": 0.0, "length_scale": True,
    }  # fmt: skip
    for name, value in settings.items():
        config = replace(CONFIG, **{name: value})
        if name in refused:
            with pytest.raises(ValueError, match=f"{layer.__name__} does not support {name} = "):
                layer(config)
        else:
            assert Variant(layer, {name: value})(CONFIG)(torch.zeros(1, 3, 24)).shape == (1, 3, 24)


def test_the_settings_of_a_variant_reach_the_config_and_the_class() -> None:
    layer = Variant(Own, {"scale": 2.0, "own": 5})(CONFIG)
    assert (layer.scale, layer.own) == (2.0, 5)


def test_a_setting_that_a_class_never_reads_is_refused() -> None:
    with pytest.raises(ValueError, match="Own ignores kernel = manual"):
        Variant(Own, {"kernel": manual})(CONFIG)
    Variant(Own, {"kernel": CONFIG.kernel})(CONFIG)  # the default changes nothing


@pytest.mark.parametrize("name", ["n_embd", "n_head", "block_size"])
def test_sizes_below_1_are_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} = 0 must be at least 1"):
        SelfAttention(replace(CONFIG, **{name: 0}))


def test_a_gpt_takes_a_class_or_a_variant() -> None:
    net = GPT(SelfAttention, vocab_size=65)
    assert net(torch.zeros(1, 3, dtype=torch.long)).shape == (1, 3, 65)
    scaled = GPT(Variant(SelfAttention, {"scale": 1.0}), vocab_size=65)
    assert scaled.blocks[0].attn.scale == 1.0
