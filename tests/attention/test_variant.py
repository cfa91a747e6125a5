"""Initialization of heads: which weights are equal, and the size of the output."""

import pytest
import torch
from torch import Tensor

from attnlab.attention import AttentionConfig, SelfAttention, variant

C, H, D = 64, 8, 8


def layer_with(rule: object, bias: bool = True) -> SelfAttention:
    layer = SelfAttention(AttentionConfig(C, H, block_size=16, bias=bias))
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.randn(p.shape, generator=g) * C**-0.5)
    rule(layer)  # type: ignore[operator]
    return layer


def spread(slices: Tensor, dim: int) -> float:
    """The largest difference between the slice of any head and that of the first head."""
    return (slices - slices.narrow(dim, 0, 1)).abs().max().item()


def qkv_spread(layer: SelfAttention) -> float:
    return max(spread(p.unflatten(0, (3, H, D)), 1) for p in layer.qkv.parameters())


def test_independent_leaves_the_weights() -> None:
    assert qkv_spread(layer_with(variant.independent)) > 0.1


def test_identical_qkv_leaves_the_output_free() -> None:
    layer = layer_with(variant.identical_qkv)
    assert qkv_spread(layer) == 0
    assert spread(layer.proj.weight.unflatten(1, (H, D)), 1) > 0.1


def test_identical_also_ties_the_output_and_keeps_its_size() -> None:
    layer, free = (
        layer_with(variant.identical, bias=False),
        layer_with(variant.independent, bias=False),
    )
    assert qkv_spread(layer) == 0
    assert spread(layer.proj.weight.unflatten(1, (H, D)), 1) == 0
    x = torch.randn(64, 16, C, generator=torch.Generator().manual_seed(1))
    ratio = layer(x).square().mean().sqrt() / free(x).square().mean().sqrt()
    assert 0.8 < ratio < 1.25  # without the rescaling it is sqrt(8) = 2.8


def test_query_key_and_value_of_a_head_differ() -> None:
    layer = layer_with(variant.identical_qkv)
    q, k, v = layer.qkv.weight.unflatten(0, (3, H, D))[:, 0]
    assert not torch.equal(q, k)
    assert not torch.equal(k, v)


def test_a_silent_head_gets_no_values_of_symbols() -> None:
    layer = SelfAttention(AttentionConfig(C, H, 16, value_embeddings=True, vocab_size=5))
    with pytest.raises(ValueError, match="single_active does not support value_embeddings"):
        variant.single_active(layer)


@pytest.mark.parametrize("bias", [False, True])
def test_one_active_head_computes_the_function_of_identical_heads(bias: bool) -> None:
    same, alone = (layer_with(rule, bias) for rule in (variant.identical, variant.single_active))
    x = torch.randn(2, 16, C, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(alone(x), same(x), rtol=0, atol=1e-5)
    assert (alone.proj.weight.unflatten(1, (H, D))[:, 1:] == 0).all()
