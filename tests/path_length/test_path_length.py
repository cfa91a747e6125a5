"""The GRU layer and the copying task of `path_length`: sizes, causality, answers, and a run."""

import pytest
import torch
from path_length.delayed_copy import delayed_copy
from path_length.recurrent_layer import RecurrentLayer

from attnlab.attention import AttentionConfig, SelfAttention
from attnlab.data.batches import IGNORED
from attnlab.errors import BadInput
from attnlab.training.config import read_config
from tests.conftest import settings
from tests.path_length import CONF


def test_the_gru_layer_has_the_weights_of_attention_and_4c_biases():
    config = AttentionConfig(48, 2, block_size=8, bias=False)
    gru, attention = RecurrentLayer(config), SelfAttention(config)
    assert sum(p.numel() for p in gru.parameters() if p.dim() == 2) == sum(
        p.numel() for p in attention.parameters()
    )
    assert sum(p.numel() for p in gru.parameters() if p.dim() == 1) == 4 * 48


def test_the_gru_layer_is_causal():
    layer = RecurrentLayer(AttentionConfig(6, 1, block_size=8))
    x = torch.randn(1, 8, 6, generator=torch.Generator().manual_seed(0))
    changed = x.clone()
    changed[:, 5:] += 1
    with torch.no_grad():
        assert torch.equal(layer(x)[:, :5], layer(changed)[:, :5])
        assert not torch.allclose(layer(x)[:, 5:], layer(changed)[:, 5:])


def test_a_width_that_three_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="n_embd = 64 must be a multiple of 3"):
        RecurrentLayer(AttentionConfig(64, 1, block_size=8))


@pytest.mark.parametrize("length", [8, 12, 36])
def test_each_answer_is_length_minus_kept_positions_back(length: int):
    x, y = delayed_copy(length, kept=4, symbols=8).draw(5, torch.Generator().manual_seed(0))
    assert x.shape == y.shape == (5, length)
    assert torch.equal(y[:, -4:], x[:, :4])
    assert (y[:, :-4] == IGNORED).all()
    assert x[:, :4].min() >= 1 and x[:, :4].max() <= 8
    assert (x[:, 4 : length - 3] == 0).all()


@pytest.mark.parametrize(("length", "kept"), [(7, 4), (8, 0)])
def test_texts_that_do_not_fit_are_refused(length: int, kept: int):
    with pytest.raises(BadInput, match=f"data.kept = {kept}"):
        delayed_copy(length, kept=kept)


@pytest.mark.parametrize("attn", ["sdpa", "recurrent"])
def test_the_experiment_composes_and_its_weights_have_rules(attn: str):
    place = f"hydra.searchpath=['{CONF}']"
    cfg = settings(place, "experiment=path_length", f"attn={attn}", "model.block_size=12")
    net = read_config(cfg).model(9)
    assert cfg.name == "path_length"
    assert net(torch.zeros(2, 12, dtype=torch.long)).shape == (2, 12, 9)
