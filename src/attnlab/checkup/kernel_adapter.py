"""One way to call any kernel, and fp64 attention, correct or with any of the known mistakes.

Letters: B batch, H heads, T time, D channels of a head.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from attnlab.checkup.findings import read_causes
from attnlab.checkup.model_adapter import parameter_names
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
Recipe = Mapping[str, object]  # the mistakes of a kernel by kind, as in causes.json under kernels
_RIGHT: Recipe = {}


@cache
def mistakes() -> dict[tuple[str, object], tuple[str, str]]:
    """Every mistake, as an item of a `Recipe`, with its cause and a sentence."""
    return {
        (kind, float(value) if kind == "cap" else value): (cause, sentence)
        for kind, named in read_causes()["kernels"].items()
        for value, (cause, sentence) in named.items()
    }


def departures(at_most: int) -> Iterator[Recipe]:
    """Recipes with one mistake, then with two and so on, of different kinds."""
    for count in range(1, at_most + 1):
        for steps in combinations(mistakes(), count):
            if len(dict(steps)) == count:
                yield dict(steps)


@dataclass(frozen=True)
class Inputs:
    """What a kernel is given."""

    q: Tensor  # (B, H, T, D), the same number of heads each for a reference
    k: Tensor
    v: Tensor
    mask: Tensor  # (T, T) bool, True = may attend
    scale: float | None  # of the scores; None for 1/sqrt(D)

    @property
    def factor(self) -> float:
        """The scale as a number."""
        return self.q.shape[-1] ** -0.5 if self.scale is None else self.scale

    def reference(self, recipe: Recipe = _RIGHT, fill: float = -1e4) -> Tensor:
        """The output (B, H, T, D) fp64 of a recipe, NaN for queries without keys.

        The mistake mask: finite fills blocked scores with `fill`.
        """
        B, H, T, D = self.q.shape
        kinds = ("scale", "mask", "axis", "layout")
        scaling, masking, axis, layout = (str(recipe.get(kind, "")) for kind in kinds)
        q, k, v = self.q.double(), self.k.double(), self.v.double()
        if layout in ("unsplit", "untransposed"):
            q, k, v = (x.transpose(1, 2).reshape(B, H, T, D) for x in (q, k, v))
        exchanged = {"q and k exchanged": (k, q, v), "k for v": (q, k, k), "q for k": (q, q, v)}
        q, k, v = exchanged.get(layout, (q, k, v))
        scores = q @ k.mT * self._wrong_factor(scaling)
        cap = recipe.get("cap")
        if isinstance(cap, float):
            scores = cap * (scores / cap).tanh()
        visible = self._wrong_mask(masking)
        if masking == "added":
            scores = scores + visible.to(scores)
        elif masking != "after":
            # Over other axes, only a finite fill gives finite weights.
            usual = -1e9 if axis in ("heads", "batch") else -math.inf
            fills = {"zero": 0.0, "finite": fill}
            scores = scores.masked_fill(~visible, fills.get(masking, usual))
        if axis == "none":
            pattern = scores.masked_fill(~visible, 0.0)
        else:
            pattern = scores.softmax({"queries": -2, "heads": 1, "batch": 0}.get(axis, -1))
        if masking == "after":
            pattern = pattern * visible
        y = pattern @ v
        if layout in ("unmerged", "untransposed"):
            y = y.reshape(B, T, H, D).transpose(1, 2)
        return y

    def _wrong_factor(self, mistake: str) -> float:
        """What scores are multiplied by with this mistake, or with none of these."""
        _, H, T, D = self.q.shape
        factors = {
            "own": D**-0.5,
            "and own": self.factor * D**-0.5,
            "none": 1.0,
            "D": 1 / D,
            "twice": self.factor**2,
            "sqrt(C)": (H * D) ** -0.5,
            "times sqrt(D)": D**0.5,
            "sqrt(T)": T**-0.5,
        }
        return factors.get(mistake, self.factor)

    def _wrong_mask(self, mistake: str) -> Tensor:
        """(T, T) bool, what may be attended with this mistake, or with none of these."""
        everything = torch.ones_like(self.mask)
        masks = {
            "none": everything,
            "inverted": ~self.mask,
            "transposed": self.mask.mT,
            "up by one": everything.tril(1),
            "down by one": everything.tril(-1),
            "causal": everything.tril(),
        }
        return masks.get(mistake, self.mask)


@dataclass(frozen=True)
class KernelAdapter:
    """A kernel, the arguments that it has by kind ("mask", "scale", ...), and what they mean."""

    function: Callable[..., Any]
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
        outputs = [self.function(*one, **named) for one in given]
        tensors = [y[0] if isinstance(y, tuple) else y for y in outputs]
        if not all(isinstance(y, Tensor) for y in tensors):
            raise BadInput(f"the kernel returned {type(tensors[0]).__name__}, not {expected}")
        y = torch.stack(tensors) if self.layout == "(T, D)" else tensors[0]
        if y.shape == (B, T, H * D):  # it merges heads itself
            y = y.unflatten(-1, (H, -1)).transpose(1, 2)
        elif self.layout == "(B, T, H, D)" and y.ndim == 4:
            y = y.transpose(1, 2)
        elif y.ndim == 3 and y.shape[:2] == (B * H, T):
            y = y.unflatten(0, (B, H))
        if y.shape != expected:
            raise BadInput(f"the kernel returned {tuple(y.shape)}, not {expected}")
        return y


def adapt_kernel(fn: Callable[..., object]) -> KernelAdapter:
    """Read from a function's signature which arguments it takes."""
    # Built-in functions such as F.scaled_dot_product_attention have no signature.
    known = parameter_names(fn) or ["attn_mask", "scale", "is_causal", "dropout_p"]
    found = {kind: [n for n in names if n in known] for kind, names in _NAMES.items()}
    return KernelAdapter(fn, {kind: names[0] for kind, names in found.items() if names})
