"""The file history.json of a run: the patterns of all heads on one text, during training."""

import zlib
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from attnlab.errors import BadInput, first_line
from attnlab.files import read_file
from attnlab.plotting.drawing import Pixels
from attnlab.plotting.heatmaps import Panel, shades

LARGEST_HISTORY = 2**24  # bytes of history.json
MOST_BYTES = 2**26  # of its maps in memory
Count = Annotated[int, Field(ge=0, le=2**53)]  # an integer in JavaScript, too


class Snapshot(BaseModel):
    """One entry of a history, see `attnlab.probes.capture.snapshot`."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    step: Count
    loss: float | None
    weights: str
    negative: str
    equal: list[list[Count]]
    measures: dict[str, list[list[float | None]]]


class PatternHistory(BaseModel):
    """The content of history.json, see `attnlab.probes.capture.history`."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    tokens: list[str] = Field(min_length=2)
    heads: list[Count] = Field(min_length=1)
    mask: str
    snapshots: list[Snapshot] = Field(min_length=1)

    @model_validator(mode="after")
    def check(self) -> "PatternHistory":
        """Refuse, by ValueError, lists and maps whose sizes do not match."""
        cells = len(self.tokens) ** 2
        if min(self.heads) < 1 or len(self.snapshots) * sum(self.heads) * cells > MOST_BYTES:
            raise ValueError("its sizes are out of range")
        unpacked(self.mask, len(self.heads) * cells)
        steps = [each.step for each in self.snapshots]
        if steps != sorted(set(steps)):
            raise ValueError("its steps do not increase")
        for each in self.snapshots:
            unpacked(each.weights, sum(self.heads) * cells)
            unpacked(each.negative, sum(self.heads) * cells)
            tables: list[Sequence[Sequence[object]]] = [each.equal, *each.measures.values()]
            if any([len(row) for row in table] != self.heads for table in tables):
                raise ValueError("its heads are not the same everywhere")
        return self


def unpacked(content: str, size: int) -> bytes:
    """The bytes of a map; ValueError if there are not so many."""
    unpacker = zlib.decompressobj()
    found = unpacker.decompress(b64decode(content, validate=True), size + 1)
    if len(found) != size or not unpacker.eof:
        raise ValueError(f"a map must have {size:,} bytes")
    return found


def read_history(folder: Path) -> PatternHistory | None:
    """The history of a run directory, or None without one; BadInput if it is damaged."""
    file = folder / "history.json"
    if not file.is_file():
        return None
    try:
        return PatternHistory.model_validate_json(read_file(file, at_most=LARGEST_HISTORY))
    except (OSError, ValueError, zlib.error) as error:
        reason = first_line(error)
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            reason = f"{'.'.join(map(str, ('content', *first['loc'])))[:80]}: {first['msg']}"
        advice = "remove it to show the trained model alone"
        raise BadInput(f"{file} is damaged or cannot be read ({reason}); {advice}") from error


def maps(history: PatternHistory) -> dict[str, Pixels]:
    """The last pattern of each head as colors, a pixel for each weight: "L0H1" -> (T, T, 3)."""
    T, last = len(history.tokens), history.snapshots[-1]
    levels, negative, masks = (
        np.frombuffer(zlib.decompress(b64decode(content)), np.uint8).reshape(-1, T, T)
        for content in (last.weights, last.negative, history.mask)
    )
    weights = np.where(levels == 255, np.nan, (levels / 254.0) ** 2).astype(np.float32)
    weights[negative == 1] *= -1
    heads = [(layer, head) for layer, n in enumerate(history.heads) for head in range(n)]
    return {
        f"L{layer}H{head}": shades(Panel("", weights[n], masks[layer].astype(bool)))
        for n, (layer, head) in enumerate(heads)
    }
