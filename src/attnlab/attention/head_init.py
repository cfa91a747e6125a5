"""Rules that change the heads of a layer after its weights are drawn.

A head owns the slices h*D to (h+1)*D of the rows of q, k and v in `qkv`, and of the columns of
`proj`. Identical heads get identical gradients, so they stay identical under any elementwise
optimizer, unless something acts on them differently: an output slice, or dropout on the pattern.
"""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from attnlab.attention.layer import Attention


def independent(layer: "Attention") -> None:
    """Leave the heads as they were drawn."""


@torch.no_grad()
def identical_qkv(layer: "Attention") -> None:
    """Give every head the query, key and value weights of the first; outputs stay their own."""
    heads = (layer.n_head, layer.n_kv_head, layer.n_kv_head)
    for parameter in layer.qkv.parameters():  # weight, and bias where there is one
        for part, count in zip(layer.split_qkv(parameter), heads, strict=True):
            _repeat_first_head(part.unflatten(0, (count, -1)), dim=0)


@torch.no_grad()
def identical(layer: "Attention") -> None:
    """Give every head all weights of the first, output slice too.

    The H equal slices add up in phase, which would make the branch sqrt(H) times as large as H
    independent ones; dividing the slice by sqrt(H) keeps its size.
    """
    identical_qkv(layer)
    slices = layer.proj.weight.unflatten(1, (layer.n_head, -1))  # (C, H, D)
    _repeat_first_head(slices, dim=1)
    layer.proj.weight.div_(math.sqrt(layer.n_head))


@torch.no_grad()
def single_active(layer: "Attention") -> None:
    """Silence every head but the first permanently: one head of width D in a layer of width C.

    A silent head has neither values nor an output slice, so no gradient ever reaches it. The
    output slice of the first head is multiplied by sqrt(H): the layer then computes the same
    function as H heads that `identical` made equal.

    Raises:
        ValueError: heads share their values, so none can be silent alone.
    """
    if layer.n_kv_head != layer.n_head:
        raise ValueError(
            f"n_kv_head = {layer.n_kv_head} must be n_head = {layer.n_head} for single_active: "
            f"a head that shares its values cannot be silent"
        )
    for parameter in layer.qkv.parameters():  # weight, and bias where there is one
        values = layer.split_qkv(parameter)[2]
        values.unflatten(0, (layer.n_head, -1))[1:] = 0  # (H, D, C) or (H, D)
    slices = layer.proj.weight.unflatten(1, (layer.n_head, -1))  # (C, H, D)
    slices[:, 1:] = 0
    slices[:, 0] *= math.sqrt(layer.n_head)


def _repeat_first_head(view: Tensor, dim: int) -> None:
    view.copy_(view.narrow(dim, 0, 1).clone().expand_as(view))
