"""The largest score and the largest logit at the end of a training."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnlab.files import read_json


def largest(folder: Path) -> Mapping[str, Any]:
    """The largest score of all heads and the largest absolute logit of the validation; null where
    the layer tells no scores."""
    probes = read_json(folder / "metrics.json")["probes"]
    return {"max_score": probes["attn/max_score"], "max_logit": probes["max_logit"]}
