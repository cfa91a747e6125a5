"""A user's layer is refused if its output is not what its mask and pattern say."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from attnlab.attention import AttentionConfig
from attnlab.errors import BadInput
from attnlab.init import init_weights
from attnlab.model import GPT
from attnlab.settings.bind import attention_factory
from attnlab.training.layer_check import check_layer, check_layers
from examined.small import C, H
from tests.training.user_layers import DISHONEST, HONEST, NO_MASKS, T, own

CONF = Path(__file__).parents[2] / "conf"


def made(attn: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    layer: torch.nn.Module = attn(AttentionConfig(C, H, T, dropout=0.1))
    return layer


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_layer_passes_and_stays_as_it_was(name: str) -> None:
    layer = made(HONEST[name])
    before = {key: tensor.clone() for key, tensor in layer.state_dict().items()}
    stream = torch.get_rng_state()
    check_layer(layer, n_embd=C, block_size=T)
    assert torch.equal(torch.get_rng_state(), stream) and layer.training
    assert all(torch.equal(before[key], x) for key, x in layer.state_dict().items())


@pytest.mark.parametrize("name", DISHONEST)
def test_a_layer_that_its_instruments_would_misdescribe_is_refused(name: str) -> None:
    attn, words = DISHONEST[name]
    with pytest.raises(BadInput, match=words):
        check_layer(made(attn), n_embd=C, block_size=T)


@pytest.mark.parametrize("name", NO_MASKS)
def test_a_mask_that_is_none_is_refused_when_the_layer_is_made(name: str) -> None:
    with pytest.raises(ValueError, match="the mask"):
        made(own(may_attend=NO_MASKS[name]))


def gpt(attn: Any) -> GPT:
    net = GPT(attn, 11, block_size=T, n_layer=2, n_head=H, n_embd=C)
    init_weights(net, 0)
    return net


def test_all_layers_of_a_model_are_checked() -> None:
    check_layers(gpt(HONEST["relu"]))
    with pytest.raises(BadInput, match="maskless"):
        check_layers(gpt(DISHONEST["maskless"][0]))


REFUSED = {"post_softmax_mask", "softmax_over_queries", "unmerged_heads", "zero_fill"}
REFUSED |= {"strict_flip"}  # its last query has no key
VARIANTS = sorted(path.stem for path in (CONF / "attn").glob("*.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_variants_of_the_lab_pass_unless_a_leak_is_their_point(name: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        node: Any = OmegaConf.to_container(compose("train", [f"attn={name}"]).attn, resolve=True)
    make = attention_factory(node)
    first, layer = (make(AttentionConfig(24, 2, 24, layer=n, vocab_size=11)) for n in (0, 1))
    sizes = {"n_embd": 24, "block_size": 24, "vocab_size": 11}
    if name in REFUSED:
        with pytest.raises(BadInput, match=r"which its mask blocks|without keys"):
            check_layer(layer, **sizes, before=[first])
    else:
        check_layer(layer, **sizes, before=[first])
