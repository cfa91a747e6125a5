"""What is lost at twice the trained length."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnlab.files import read_json


def at_twice_the_length(folder: Path) -> Mapping[str, Any]:
    """The loss at twice the trained length minus that at the trained one; of a task, also the
    share of right answers there, and how much smaller it is."""
    by_length = read_json(folder / "metrics.json")["by_length"]
    trained, twice = (by_length[key] for key in sorted(by_length, key=int))
    found = {"nats lost": twice["loss"] - trained["loss"]}
    if "accuracy" in twice:
        found["answers"] = twice["accuracy"]
        found["answers lost"] = trained["accuracy"] - twice["accuracy"]
    return found
