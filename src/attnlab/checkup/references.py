"""Correct attention in fp64, and every mistake that has a name.

Letters: B batch, H heads, T time, D channels of a head.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

import torch
from torch import Tensor

from attnlab.checkup.diagnoses import read_causes


@dataclass(frozen=True)
class Recipe:
    """How attention is computed; the defaults are correct.

    Args:
        scale: "given", "none", "D", "twice", "sqrt(C)", "times sqrt(D)", "sqrt(T)".
        mask: "given", "none", "inverted", "transposed", "up by one", "down by one", "zero",
            "finite", "after", "after, renormalized", "added", "causal" (whatever was given).
        axis: "keys", "queries", "heads", "batch", "none".
        layout: "plain", "unmerged", "unsplit", "untransposed", "q and k exchanged", "k for v",
            "q for k".
        cap: scores become cap * tanh(scores / cap); 0 for none.
    """

    scale: str = "given"
    mask: str = "given"
    axis: str = "keys"
    layout: str = "plain"
    cap: float = 0.0


RIGHT = Recipe()

Step = tuple[str, object]  # a field of `Recipe` and a value that is a mistake


@cache
def mistakes() -> dict[Step, tuple[str, str]]:
    """Every mistake with its cause and a sentence."""
    fields = read_causes()["kernels"].items()
    return {
        (field, value): (cause, sentence)
        for field, named in fields
        for value, (cause, sentence) in named.items()
    }


def departures(at_most: int) -> Iterator[tuple[Recipe, list[Step]]]:
    """Recipes with one mistake, then with two and so on."""
    for count in range(1, at_most + 1):
        for steps in combinations(mistakes(), count):
            fields = {field: value for field, value in steps}
            if len(fields) == count:
                yield replace(RIGHT, **fields), list(steps)  # type: ignore[arg-type]


def compute(
    recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, fill: float = -1e4
) -> Tensor:
    """Compute attention by a recipe, in fp64.

    Args:
        q, k, v: (B, H, T, D) with as many heads each.
        mask: (T, T) bool, True = may attend.
        scale: the factor of the scores if the recipe says "given".
        fill: the value of blocked scores if it says "finite".

    Returns:
        (B, H, T, D) fp64, NaN for queries without keys.
    """
    q, k, v = _laid_out(recipe.layout, q.double(), k.double(), v.double())
    scores = q @ k.mT * _factor(recipe.scale, q, scale)
    if recipe.cap:
        scores = recipe.cap * (scores / recipe.cap).tanh()
    visible = _visible(recipe.mask, mask)
    if recipe.mask in ("after", "added"):
        scores = scores + visible.to(scores) * (recipe.mask == "added")
    else:
        fills = {"zero": 0.0, "finite": fill}
        # Over other axes, only a finite fill gives finite weights.
        default = -1e9 if recipe.axis in ("heads", "batch") else -math.inf
        scores = scores.masked_fill(~visible, fills.get(recipe.mask, default))
    if recipe.axis == "none":
        pattern = scores.masked_fill(~visible, 0.0)
    else:
        pattern = scores.softmax({"keys": -1, "queries": -2, "heads": 1, "batch": 0}[recipe.axis])
    if recipe.mask == "after":
        pattern = pattern * visible
    y = pattern @ v
    if recipe.layout in ("unmerged", "untransposed"):
        B, H, T, D = y.shape
        y = y.reshape(B, T, H, D).transpose(1, 2)
    return y


def _factor(name: str, q: Tensor, scale: float) -> float:
    _, H, T, D = q.shape
    return {
        "given": scale,
        "own": D**-0.5,
        "and own": scale * D**-0.5,
        "none": 1.0,
        "D": 1 / D,
        "twice": scale * scale,
        "sqrt(C)": (H * D) ** -0.5,
        "times sqrt(D)": D**0.5,
        "sqrt(T)": T**-0.5,
    }[name]


def _visible(name: str, mask: Tensor) -> Tensor:
    everything = torch.ones_like(mask)
    return {
        "none": everything,
        "inverted": ~mask,
        "transposed": mask.mT,
        "up by one": everything.tril(1),
        "down by one": everything.tril(-1),
        "causal": everything.tril(),
    }.get(name, mask)


def _laid_out(layout: str, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if layout in ("unsplit", "untransposed"):
        B, H, T, D = q.shape
        q, k, v = (x.transpose(1, 2).reshape(B, H, T, D) for x in (q, k, v))
    if layout == "q and k exchanged":
        q, k = k, q
    if layout == "k for v":
        v = k
    if layout == "q for k":
        k = q
    return q, k, v
