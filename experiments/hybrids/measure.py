"""How soon a task is learned."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnlab.files import read_json

REACHED = 0.9  # of the answers


def doublings(folder: Path) -> Mapping[str, Any]:
    """The base-2 logarithm of the steps after which 90 % of the answers are right; a run that does
    not get there counts as one of twice its steps."""
    metrics = read_json(folder / "metrics.json")
    curve = metrics["probes"]["curve"]
    steps = 2 * metrics["steps"]
    for number, accuracy in enumerate(curve["accuracy"], 1):
        if accuracy >= REACHED:
            steps = curve["every"] * number
            break
    return {"log2 of steps": math.log2(steps)}
