"""Every variant at other shapes, and what it reads: one position, one head, shared keys, leaks."""

from typing import Any

import pytest
import torch
from torch import Tensor

from attnlab.errors import BadInput
from tests.attention.layers import (
    DELTA,
    VARIANTS,
    B,
    D,
    H,
    T,
    V,
    layer_of,
    memo_of,
    mixed_by_pattern,
    x_of,
)

# Those that read ahead, each by its own mistake or mask; none of them may be added by accident.
LEAKY = """
bidirectional finite_fill flipped peek_one post_softmax_mask softmax_over_queries strict_flip
unmerged_heads zero_fill
""".split()
# Those without keys and values that query heads could share.
NOT_GROUPED = {*DELTA, "latent", "torch_mha", "shared_qk", "shared_qkv", "single_head"}
# `finite_fill` leaks by rounding only, where scores are small: its own test uses large inputs.
CAUSAL = sorted({*VARIANTS} - {*LEAKY})


@pytest.mark.parametrize("variant", sorted({*VARIANTS} - {"strict_flip"}))
def test_one_position_reads_itself(variant: str) -> None:
    """A text of one position: a finite output, and one weight a head."""
    layer = layer_of(variant)
    x = x_of()[:, :1]
    memo = memo_of(layer)
    for shared in memo:
        shared["ids"] = shared["ids"][:, :1]
        shared["values"] = shared["values"][:, :, :1]
    y = layer(x, *memo)
    assert y.shape == x.shape and y.isfinite().all()
    assert layer.pattern(x, *memo).shape[2:] == (1, 1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_head_of_the_whole_width(variant: str) -> None:
    if variant in ("gqa", "mqa"):
        pytest.skip("one head has no group")
    layer = layer_of(variant, heads=1)
    x = x_of()
    memo = memo_of(layer)
    for shared in memo:  # the values of a first layer of one head
        shared["values"] = shared["values"].transpose(1, 2).reshape(B, 1, T, H * D)
    pattern = layer.pattern(x, *memo)
    assert pattern.shape == (B, 1, T, T)
    v = layer.split(x, *memo)[2]
    if isinstance(v, Tensor) and variant != "unmerged_heads":
        expected = layer.proj(layer.merge(pattern @ v, x, v))
        torch.testing.assert_close(layer(x, *memo), expected, equal_nan=True)


@pytest.mark.parametrize("variant", VARIANTS)
def test_grouped_heads_share_keys_and_values_or_are_refused(variant: str) -> None:
    if variant in NOT_GROUPED:
        with pytest.raises((BadInput, TypeError)):
            layer_of(variant, n_kv_head=2)
        return
    layer = layer_of(variant, n_kv_head=2)
    x = x_of()
    memo = memo_of(layer)
    _, k, v = layer.split(x, *memo)
    if variant not in ("value_residual", "general"):  # the first layer of the tests has H heads
        assert torch.equal(v[:, 0], v[:, 1]) and not torch.equal(v[:, 1], v[:, 2])
        assert torch.equal(k[:, 0], k[:, 1])
    if variant != "unmerged_heads":
        expected = layer.proj(layer.merge(mixed_by_pattern(layer, x), x, v))
        torch.testing.assert_close(layer(x, *memo), expected, equal_nan=True)


def first_output_that_moves(layer: Any, changed: int) -> int:
    """The first position whose output depends on the input and the symbol at `changed`."""
    x = x_of()
    memo = memo_of(layer)
    before = layer(x, *memo)
    other = x.clone()
    other[:, changed] = -other[:, changed].flip(-1)
    for shared in memo:
        shared["ids"] = shared["ids"].clone()
        shared["ids"][:, changed] = (shared["ids"][:, changed] + 1) % V
        shared["values"] = shared["values"].clone()
        shared["values"][:, :, changed] += 1
    moved = (layer(other, *memo) != before).any(-1).any(0)
    return int(moved.nonzero()[0])


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("variant", CAUSAL)
def test_a_variant_reads_no_later_input_and_no_later_symbol(variant: str, training: bool) -> None:
    layer = layer_of(variant).train(training)
    for changed in (1, 5, T - 1):
        assert first_output_that_moves(layer, changed) == changed


@pytest.mark.parametrize("variant", sorted({*LEAKY} - {"finite_fill", "strict_flip"}))
def test_a_leaky_variant_reads_ahead(variant: str) -> None:
    assert first_output_that_moves(layer_of(variant), 5) < 5


@pytest.mark.parametrize("variant", CAUSAL)
def test_rows_of_a_batch_are_apart(variant: str) -> None:
    layer = layer_of(variant)
    x = x_of()
    memo = memo_of(layer)
    whole = layer(x, *memo)
    alone = tuple({name: y[:1] for name, y in shared.items()} for shared in memo)
    torch.testing.assert_close(layer(x[:1], *alone), whole[:1], rtol=1e-12, atol=1e-12)
    other = x.clone()
    other[1] += 1
    torch.testing.assert_close(layer(other, *memo)[0], whole[0], rtol=1e-12, atol=1e-12)
