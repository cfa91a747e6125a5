"""The loss of a trained model without the keys at some distances."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnlab.data.corpus import tinyshakespeare
from attnlab.data.plays import Plays
from attnlab.model import GPT

BANDS = ((1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 32))
NEAR, FAR = (1, 4), (9, 63)
BEFORE = 32  # predictions count that have at least this many keys before them
WINDOWS = 64
DIRECTION = re.compile(r"\[[^\]\n]{12,55}\.(?=\])")  # a stage direction, up to its last period


@contextmanager
def without_keys(net: GPT, nearest: int, farthest: int) -> Iterator[None]:
    """Block the keys from `nearest` to `farthest` positions back, in every layer.

    The query's own position is never blocked.
    """

    def may_attend(q: Tensor, k: Tensor) -> Tensor:
        back = q - k
        return (back >= 0) & ((back < nearest) | (back > farthest))

    layers = [block.attn for block in net.blocks]
    before = [layer.may_attend for layer in layers]
    try:
        for layer in layers:
            layer.may_attend = may_attend
        yield
    finally:
        for layer, predicate in zip(layers, before, strict=True):
            layer.may_attend = predicate


@torch.no_grad()
def loss(net: GPT, ids: Tensor, counted: Tensor) -> float:
    """Mean loss of the counted predictions: ids (B, T + 1), counted (B, T) bool; in nats."""
    logits = net(ids[:, :-1])
    return float(F.cross_entropy(logits[counted], ids[:, 1:][counted]))


def prices(net: GPT, ids: Tensor, counted: Tensor) -> dict[str, Any]:
    """Loss without the keys at some distances, minus the loss with all of them.

    Args:
        net: a trained model.
        ids: windows (B, T + 1).
        counted: the predictions that count, (B, T) bool.

    Returns:
        bands: one difference for each of `BANDS`; near, far: without the nearest 4 keys, and
        without all keys 9 positions back or more; near minus far; all in nats per counted
        prediction.
    """
    whole = loss(net, ids, counted)

    def price(nearest: int, farthest: int) -> float:
        with without_keys(net, nearest, farthest):
            return loss(net, ids, counted) - whole

    near, far = price(*NEAR), price(*FAR)
    bands = [price(*band) for band in BANDS]
    return {"bands": bands, "near": near, "far": far, "near minus far": near - far}


def consecutive(ids: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """Consecutive windows of a text; predictions with at least 32 keys before them count."""
    windows = ids[: WINDOWS * (block_size + 1)].view(WINDOWS, block_size + 1)
    counted = torch.zeros(WINDOWS, block_size, dtype=torch.bool)
    counted[:, BEFORE:] = True
    return windows, counted


def closing_brackets(text: str, ids: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """Windows whose last prediction is the bracket that ends a stage direction; only it counts."""
    ends = [m.end() for m in DIRECTION.finditer(text) if m.end() >= block_size]
    windows = torch.stack([ids[end - block_size : end + 1] for end in ends])
    counted = torch.zeros(len(ends), block_size, dtype=torch.bool)
    counted[:, -1] = True
    return windows, counted


def on_shakespeare(folder: Path) -> Mapping[str, Any]:
    """Loss differences by distance on the validation text of TinyShakespeare."""
    from attnlab.trained.checkpoints import load_model

    net, _ = load_model(folder)
    return prices(net, *consecutive(tinyshakespeare().val, net.block_size))


def on_plays(folder: Path) -> Mapping[str, Any]:
    """Loss differences by distance on unseen plays: at all characters, and at closing brackets."""
    from attnlab.trained.checkpoints import load_model

    net, alphabet = load_model(folder)
    text = fresh_plays()
    ids = torch.tensor(alphabet.encode(text))
    brackets = prices(net, *closing_brackets(text, ids, net.block_size))
    return prices(net, *consecutive(ids, net.block_size)) | {
        f"{name}, brackets": value for name, value in brackets.items()
    }


@cache
def fresh_plays() -> str:
    """Plays that no run trains on: the corpus `plays` has seed 0."""
    return Plays().generate(seed=1, length=100_000)[0]
