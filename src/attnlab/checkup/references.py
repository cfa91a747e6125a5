"""Attention in fp64, right and with every mistake that has a name. Letters as in `kernel`."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import torch
from torch import Tensor

from attnlab.checkup.diagnoses import read_causes

Recipe = Mapping[str, object]  # the mistakes of a kernel by kind, as in causes.yaml under kernels
_RIGHT: Recipe = {}


@cache
def mistakes() -> dict[tuple[str, object], tuple[str, str]]:
    """Every mistake, as an item of a `Recipe`, with its cause and a sentence."""
    return {
        (kind, value): (cause, sentence)
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
        """Compute attention with the mistakes of a recipe.

        Args:
            fill: the value of blocked scores in the recipe mask: finite.

        Returns:
            (B, H, T, D) fp64, NaN for queries without keys.
        """
        B, H, T, D = self.q.shape
        kinds = ("scale", "mask", "axis", "layout")
        scaling, masking, axis, layout = (str(recipe.get(kind, "")) for kind in kinds)
        q, k, v = self.q.double(), self.k.double(), self.v.double()
        mask, scale = self.mask, self.factor
        if layout in ("unsplit", "untransposed"):
            q, k, v = (x.transpose(1, 2).reshape(B, H, T, D) for x in (q, k, v))
        exchanged = {"q and k exchanged": (k, q, v), "k for v": (q, k, k), "q for k": (q, q, v)}
        q, k, v = exchanged.get(layout, (q, k, v))
        factors = {
            "own": D**-0.5,
            "and own": scale * D**-0.5,
            "none": 1.0,
            "D": 1 / D,
            "twice": scale * scale,
            "sqrt(C)": (H * D) ** -0.5,
            "times sqrt(D)": D**0.5,
            "sqrt(T)": T**-0.5,
        }
        scores = q @ k.mT * factors.get(scaling, scale)
        cap = recipe.get("cap")
        if isinstance(cap, float):
            scores = cap * (scores / cap).tanh()
        everything = torch.ones_like(mask)
        visible = {
            "none": everything,
            "inverted": ~mask,
            "transposed": mask.mT,
            "up by one": everything.tril(1),
            "down by one": everything.tril(-1),
            "causal": everything.tril(),
        }.get(masking, mask)
        if masking == "added":
            scores = scores + visible.to(scores)
        elif masking != "after":
            # Over other axes, only a finite fill gives finite weights.
            usual = -1e9 if axis in ("heads", "batch") else -math.inf
            scores = scores.masked_fill(
                ~visible, {"zero": 0.0, "finite": fill}.get(masking, usual)
            )
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
