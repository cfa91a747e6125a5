"""Parity by one DeltaNet layer, with writes of a strength up to 1 and up to 2."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnlab.claims import Arm, AtLeast, AtMost, Claim, Pilot, RunMetric, Trained, level
from attnlab.files import read_json

TRAINED_AT, TESTED_AT = 20, 40
RATES = (3e-3, 1e-2, 3e-2)
LENGTHS = (300, 1200)


def beyond(folder: Path) -> Mapping[str, Any]:
    """The share of right answers at positions beyond those of training, and at each position."""
    longer = read_json(folder / "metrics.json")["by_length"][str(TESTED_AT)]
    right = longer["accuracy_by_position"]
    return {
        "beyond": sum(right[TRAINED_AT:]) / len(right[TRAINED_AT:]),
        "by position": [round(share, 4) for share in right],
    }


ANSWERS = RunMetric(beyond, "beyond")
UP_TO_2 = Arm("beta up to 2", ("attn=delta_net_negative",))
UP_TO_1 = Arm("beta up to 1", ("attn=delta_net",))
FP32 = {"trainer.precision": "32-true"}

CLAIM = Claim(
    says="One layer with beta up to 2 learns parity; with beta up to 1 it does not.",
    last_look=20,
    first_seed=200,
    headline="up_to_1",
    order=24,
    predictions=(
        Trained(
            "up_to_2",
            "Trained at 20 bits, beta up to 2: at least 95 % of the answers at bits 21 to 40.",
            AtLeast(0.95, unit="of the answers"),
            where="beta up to 2 learns it",
            pilot=Pilot(0.999, 0.0011),
            arms=(UP_TO_2,),
            contrast=level,
            metric=ANSWERS,
            rates=RATES,
            lengths=LENGTHS,
            given=FP32,
        ),
        Trained(
            "up_to_1",
            "Beta up to 1: at most 90 % of the answers at bits 21 to 40; guessing gives 50 %.",
            AtMost(0.9, unit="of the answers"),
            where="beta up to 1 does not",
            pilot=Pilot(0.652, 0.089),
            arms=(UP_TO_1,),
            contrast=level,
            metric=ANSWERS,
            rates=RATES,
            lengths=LENGTHS,
            given=FP32,
        ),
    ),
)
