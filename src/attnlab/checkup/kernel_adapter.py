"""One way to call any attention kernel: the names, meanings and shapes of its arguments.

Letters: B batch, H heads, T time, D channels of a head.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attnlab.errors import BadInput

MASK_STYLES = {
    "attend": "True = may attend",
    "block": "True = blocked",
    "add": "0 and -inf are added",
}
LAYOUTS = ("(B, H, T, D)", "(B, T, H, D)", "(B H, T, D)", "(T, D)")
# The arguments of a kernel, and the names that they go by.
_NAMES = {
    "mask": ("mask", "attn_mask", "attention_mask", "bias"),
    "scale": ("scale", "scaling", "softmax_scale", "sm_scale"),
    "causal": ("is_causal", "causal"),
    "dropout": ("dropout", "dropout_p", "attn_dropout", "p"),
}


@dataclass(frozen=True)
class KernelAdapter:
    """A kernel, the names of its arguments ("" for those it lacks), and what they mean."""

    function: Callable[..., object]
    mask: str
    scale: str
    causal: str
    dropout: str
    mask_style: str = "attend"
    layout: str = LAYOUTS[0]

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor,
        scale: float | None,
        dropout: float = 0.0,
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
            named[self.dropout] = dropout
        q, k, v = q.clone(), k.clone(), v.clone()
        B, H, T, _ = q.shape
        expected = (B, H, T, v.shape[-1])
        if self.layout == "(T, D)":
            flat = zip(*(x.flatten(0, 1) for x in (q, k, v)), strict=True)
            parts = [_tensor(self.function(*one, **named), expected) for one in flat]
            output: object = torch.stack(parts)
        elif self.layout == "(B H, T, D)":
            output = self.function(*(x.flatten(0, 1) for x in (q, k, v)), **named)
        elif self.layout == "(B, T, H, D)":
            output = self.function(*(x.transpose(1, 2) for x in (q, k, v)), **named)
        else:
            output = self.function(q, k, v, **named)
        y = _tensor(output, expected)
        if y.shape == (B, T, H * v.shape[-1]):  # it merges heads itself
            y = y.unflatten(-1, (H, -1)).transpose(1, 2)
        elif self.layout == "(B, T, H, D)" and y.ndim == 4:
            y = y.transpose(1, 2)
        elif y.ndim == 3 and y.shape[:2] == (B * H, T):
            y = y.unflatten(0, (B, H))
        if y.shape != expected:
            raise BadInput(f"the kernel returned {tuple(y.shape)}, not {expected}")
        return y


def _tensor(output: object, expected: tuple[int, ...]) -> Tensor:
    y = output[0] if isinstance(output, tuple) else output
    if not isinstance(y, Tensor):
        raise BadInput(f"the kernel returned {type(y).__name__}, not {expected}")
    return y


def adapt_kernel(fn: Callable[..., object]) -> KernelAdapter:
    """Read from a function's signature which arguments it takes."""
    try:
        known = set(inspect.signature(fn).parameters)
    except (ValueError, TypeError):  # built-ins such as F.scaled_dot_product_attention
        known = {"attn_mask", "scale", "is_causal", "dropout_p"}
    return KernelAdapter(
        fn, *(next((n for n in names if n in known), "") for names in _NAMES.values())
    )
