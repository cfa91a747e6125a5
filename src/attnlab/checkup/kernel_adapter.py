"""One way to call any kernel. Letters: B batch, H heads, T time, D channels of a head."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attnlab.checkup.references import Inputs
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
    """A kernel, the arguments that it has by kind ("mask", "scale", ...), and what they mean."""

    function: Callable[..., object]
    names: Mapping[str, str]
    mask_style: str = "attend"
    layout: str = LAYOUTS[0]

    def __call__(self, inputs: Inputs, dropout: float = 0.0) -> Tensor:
        """The output (B, H, T, D); BadInput if the kernel returns something else."""
        blocked = ~inputs.mask
        zeros = torch.zeros(blocked.shape, dtype=inputs.q.dtype)
        styles = {"block": blocked, "add": zeros.masked_fill(blocked, -math.inf)}
        values = {
            "mask": styles.get(self.mask_style, inputs.mask),
            "scale": inputs.scale,
            "causal": None if "mask" in self.names else True,
            "dropout": dropout,
        }
        named = {n: values[kind] for kind, n in self.names.items() if values[kind] is not None}
        q, k, v = inputs.q.clone(), inputs.k.clone(), inputs.v.clone()
        expected = B, H, T, D = tuple(q.shape)
        if self.layout in ("(B H, T, D)", "(T, D)"):
            q, k, v = (x.flatten(0, 1) for x in (q, k, v))
        elif self.layout == "(B, T, H, D)":
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        given = zip(q, k, v, strict=True) if self.layout == "(T, D)" else [(q, k, v)]
        outputs = [_tensor(self.function(*one, **named), expected) for one in given]
        y = torch.stack(outputs) if self.layout == "(T, D)" else outputs[0]
        if y.shape == (B, T, H * D):  # it merges heads itself
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
    found = {kind: [n for n in names if n in known] for kind, names in _NAMES.items()}
    return KernelAdapter(fn, {kind: names[0] for kind, names in found.items() if names})
