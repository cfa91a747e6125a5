"""Answers at lengths beyond that of training."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnlab.files import read_json

LENGTHS = (128, 256)


def beyond(folder: Path) -> Mapping[str, Any]:
    """The share of right answers in sequences of each of the longer lengths."""
    by_length = read_json(folder / "metrics.json")["by_length"]
    return {f"at {length}": by_length[str(length)]["accuracy"] for length in LENGTHS}
