"""What history.json holds, read without torch."""

import base64
import json
import zlib
from pathlib import Path
from typing import TypedDict

import numpy as np
import numpy.typing as npt
from typing_extensions import NotRequired

from attnlab.errors import BadInput, first_line

PatternAndMask = tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]


class Snapshot(TypedDict):
    """The patterns of one text at one step. NaN is None."""

    step: int
    loss: float | None  # nats per prediction
    weights: str  # the `packed` patterns of all layers
    negative: str  # which weights are below 0, `packed`
    equal: list[list[int]]  # layer -> head -> the first head with the same pattern, bit for bit
    measures: dict[str, list[list[float | None]]]  # name -> layer -> head


class HistoryContent(TypedDict):
    """What history.json holds: the snapshots of one text, with what they have in common."""

    tokens: list[str]
    layers: NotRequired[list[int]]  # those that have a pattern; version 0.1.0 did not write them
    heads: list[int]  # how many each of these layers has
    mask: str  # of each layer, `packed`
    snapshots: list[Snapshot]


def read_history(folder: Path) -> HistoryContent | None:
    """The history of a run directory, or None without one; BadInput if it is damaged."""
    file = folder / "history.json"
    if not file.exists():
        return None
    try:
        history: HistoryContent = json.loads(file.read_bytes())
        for number in range(len(history["snapshots"])):
            patterns_of(history, number)
    except (OSError, ValueError, LookupError, TypeError, zlib.error) as error:
        raise BadInput(f"{file} is damaged: {first_line(error)}; remove it") from error
    return history


def patterns_of(history: HistoryContent, number: int = -1) -> dict[str, PatternAndMask]:
    """The pattern (T, T), exact to 0.004, and the mask (T, T) of each head of a snapshot by name,
    such as L0H1; ValueError or LookupError for a history that is damaged."""
    T = len(history["tokens"])
    heads = history["heads"]
    layers = layers_of(history)
    kept = history["snapshots"][number]
    levels = unpacked(kept["weights"], sum(heads), T)
    negative = unpacked(kept["negative"], sum(heads), T)
    masks = unpacked(history["mask"], len(heads), T).astype(bool)
    # The inverse of `quantized` in history.py.
    weights = np.where(levels == 255, np.nan, (levels / 254.0) ** 2).astype(np.float32)
    weights[negative == 1] *= -1
    patterns = iter(weights)
    found = {}
    for layer, count, mask in zip(layers, heads, masks, strict=True):
        for head in range(count):
            found[f"L{layer}H{head}"] = (next(patterns), mask)
    return found


def layers_of(history: HistoryContent) -> list[int]:
    """The numbers of the layers whose patterns a history has."""
    every = list(range(len(history["heads"])))
    return history.get("layers", every)


def unpacked(content: str, count: int, T: int) -> npt.NDArray[np.uint8]:
    """The bytes of `packed` in history.py as (count, T, T); ValueError for another number."""
    return np.frombuffer(zlib.decompress(base64.b64decode(content)), np.uint8).reshape(count, T, T)
