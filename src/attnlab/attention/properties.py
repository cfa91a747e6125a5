"""What a kernel, a change of the scores, or a layer declares about itself."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Properties:
    """What instruments may assume; nothing is assumed where nothing is declared.

    Args:
        rows_sum_to_1: the weights of each query sum to 1.
        nonnegative: no weight is negative.
        is_softmax: the pattern is the softmax of the layer's scores over the visible keys.
        cacheable: an output depends on its query, its row of the mask, and the keys and values
            that it may attend to, so earlier outputs do not change when a text grows.
        linear_in_values: the mixed values are the pattern times the values.
        causal_only: it is defined only for masks without later keys; others are refused.
        cuda_only: it trains only on a CUDA GPU, without dropout.
        scores: the scores that become weights, called like `kernels.scores`; None for those.
        dtype: what it computes in, as a function of the queries; None for their own dtype.
        flops: FLOPs of its algorithm for a query of D channels under a causal mask; None for the
            scores and the average of all keys that a query sees.
        state: how many numbers its algorithm keeps of a text in place of the keys and values of a
            head of D channels; None for all keys and values.
    """

    rows_sum_to_1: bool = False
    nonnegative: bool = False
    is_softmax: bool = False
    cacheable: bool = False
    linear_in_values: bool = True
    causal_only: bool = False
    cuda_only: bool = False
    scores: Callable[..., Tensor] | None = None
    dtype: Callable[[Tensor], torch.dtype] | None = None
    flops: Callable[[int], int] | None = None
    state: Callable[[int], int] | None = None


OF_ALL_PARTS = ("rows_sum_to_1", "nonnegative", "is_softmax", "cacheable", "linear_in_values")
SOFTMAX = Properties(rows_sum_to_1=True, nonnegative=True, is_softmax=True, cacheable=True)


def declare(function: Callable[..., Tensor], properties: Properties) -> None:
    """Declare the properties of a kernel, or of a change of the scores.

    A change of the scores that neither blocks a key nor depends on later ones is a `SOFTMAX`.
    """
    vars(function)["properties"] = properties


def properties_of(thing: object) -> Properties | None:
    """What a kernel, a change of the scores, or a layer declares; None if nothing."""
    declared = thing.properties if hasattr(thing, "properties") else None
    return declared if isinstance(declared, Properties) else None


def combined(kernel: Properties | None, *others: Properties | None) -> Properties | None:
    """The properties of a layer: those that its kernel and all other parts declare; None if one
    of them declares nothing."""
    for other in others:
        if kernel is None or other is None:
            return None
        both = {name: vars(kernel)[name] and vars(other)[name] for name in OF_ALL_PARTS}
        kernel = replace(kernel, **both, causal_only=kernel.causal_only or other.causal_only)
    return kernel
