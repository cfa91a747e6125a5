"""Answers at positions beyond those of training."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnlab.files import read_json

TRAINED_AT, TESTED_AT = 20, 40


def beyond(folder: Path) -> Mapping[str, Any]:
    """The share of right answers at positions beyond those of training, and at each position."""
    longer = read_json(folder / "metrics.json")["by_length"][str(TESTED_AT)]
    right = longer["accuracy_by_position"]
    return {
        "beyond": sum(right[TRAINED_AT:]) / len(right[TRAINED_AT:]),
        "by position": [round(share, 4) for share in right],
    }
