"""Which attention recalls many key-value pairs?"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnlab.claims import Arm, AtLeast, AtMost, Claim, Pilot, RunMetric, Trained, level
from attnlab.files import read_json


def answers(folder: Path) -> Mapping[str, Any]:
    """The share of right answers of a run."""
    return {"accuracy": read_json(folder / "metrics.json")["val_accuracy"]}


FULL = Arm("full", ("attn=sdpa",))
WINDOW = Arm("window of 8", ("attn=sliding_window",))
LINEAR = Arm("linear", ("attn=linear",))
LARGE = Arm("linear, one head", ("attn=linear", "model.n_head=1"))
ACCURACY = RunMetric(answers, "accuracy")


CLAIM = Claim(
    says="Full attention recalls many pairs; linear attention and a short window do not.",
    last_look=20,
    first_seed=200,
    headline="linear",
    order=19,
    predictions=(
        Trained(
            "full",
            "Full attention gives at least 90 % of the answers.",
            AtLeast(0.9, unit="of the answers"),
            where="full attention recalls 16 pairs",
            pilot=Pilot(1.0, 0.01),
            seconds=10,
            arms=(FULL,),
            contrast=level,
            metric=ACCURACY,
        ),
        Trained(
            "linear",
            "Linear attention of four heads gives at most half of the answers.",
            AtMost(0.5, unit="of the answers"),
            where="linear attention of four heads does not",
            pilot=Pilot(0.21, 0.05),
            seconds=13,
            arms=(LINEAR,),
            contrast=level,
            metric=ACCURACY,
        ),
        Trained(
            "window",
            "A window of 8 positions gives at most 10 % of the answers.",
            AtMost(0.1, unit="of the answers"),
            where="a window of 8 does not",
            pilot=Pilot(0.04, 0.01),
            seconds=10,
            arms=(WINDOW,),
            contrast=level,
            metric=ACCURACY,
        ),
        Trained(
            "state",
            "With one head, four times the state, linear attention gives at least 0.3 more.",
            AtLeast(0.3, unit="of the answers"),
            role="secondary",
            pilot=Pilot(0.57, 0.05),
            seconds=11,
            arms=(LARGE, LINEAR),
            metric=ACCURACY,
        ),
    ),
)
