"""One way to call any attention kernel: the names and meanings of its arguments.

Letters: B batch, H heads, T time, D channels of a head.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attnlab.errors import BadInput

_MASK_NAMES = ("mask", "attn_mask", "attention_mask", "bias")
_SCALE_NAMES = ("scale", "scaling", "softmax_scale", "sm_scale")
_CAUSAL_NAMES = ("is_causal", "causal")
_DROPOUT_NAMES = ("dropout", "dropout_p", "attn_dropout", "p")


@dataclass(frozen=True)
class KernelAdapter:
    """A kernel and the names of its arguments, "" for those it lacks."""

    function: Callable[..., object]
    mask: str
    scale: str
    causal: str
    dropout: str
    mask_style: str

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float | None
    ) -> Tensor:
        """(B, H, T, D) three times, (T, T) bool with True = may attend -> (B, H, T, D).

        Raises:
            BadInput: the kernel returns something else.
        """
        named: dict[str, object] = {}
        if self.mask:
            zeros = torch.zeros(mask.shape, dtype=q.dtype)
            styles = {"block": ~mask, "add": zeros.masked_fill(~mask, -math.inf)}
            named[self.mask] = styles.get(self.mask_style, mask)
        elif self.causal:
            named[self.causal] = True
        if self.scale and scale is not None:
            named[self.scale] = scale
        if self.dropout:
            named[self.dropout] = 0.0
        y = self.function(q.clone(), k.clone(), v.clone(), **named)
        y = y[0] if isinstance(y, tuple) else y
        B, H, T, _ = q.shape
        if isinstance(y, Tensor) and y.shape == (B, T, H * v.shape[-1]):  # it merges heads itself
            y = y.unflatten(-1, (H, -1)).transpose(1, 2)
        expected = (B, H, T, v.shape[-1])
        if not isinstance(y, Tensor) or y.shape != expected:
            got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
            raise BadInput(
                f"the kernel returned {got} for queries {tuple(q.shape)}, not {expected}"
            )
        return y


def adapt_kernel(fn: Callable[..., object], mask_style: str) -> KernelAdapter:
    """Read from a function's signature which arguments it takes."""
    try:
        names = set(inspect.signature(fn).parameters)
    except (ValueError, TypeError):  # built-ins such as F.scaled_dot_product_attention
        names = {"attn_mask", "scale", "is_causal", "dropout_p"}

    def first(candidates: tuple[str, ...]) -> str:
        return next((name for name in candidates if name in names), "")

    return KernelAdapter(
        fn,
        mask=first(_MASK_NAMES),
        scale=first(_SCALE_NAMES),
        causal=first(_CAUSAL_NAMES),
        dropout=first(_DROPOUT_NAMES),
        mask_style=mask_style,
    )
