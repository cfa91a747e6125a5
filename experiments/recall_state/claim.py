"""Which attention recalls many key-value pairs?"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnlab.claims import Arm, AtLeast, AtMost, Claim, Pilot, RunMetric, Trained, level
from attnlab.files import read_json

RATES = (1e-3, 3e-3, 1e-2)
PAIRS, HEADS = (4, 8, 16), (1, 4, 16)  # of the map


def answers(folder: Path) -> Mapping[str, Any]:
    """The share of right answers of a run."""
    return {"accuracy": read_json(folder / "metrics.json")["val_accuracy"]}


def smallest(*accuracies: float) -> float:
    """The smallest accuracy of the map."""
    return min(accuracies)


def _linear(heads: int, pairs: int = 16) -> Arm:
    """Linear attention stores 64 x 64 / heads numbers."""
    return Arm(
        f"linear, {64 * 64 // heads:,} numbers, {pairs} pairs",
        ("attn=linear", f"model.n_head={heads}", f"data.pairs={pairs}"),
    )


FULL = Arm("full", ("attn=sdpa",))
WINDOW = Arm("window of 8", ("attn=sliding_window",))
LARGE = Arm("linear, four heads of 16", ("attn=linear",))
SMALL = Arm("linear, 16 heads of 4", ("attn=linear", "model.n_head=16"))
EARLY = ("trainer.max_steps=600", "trainer.val_check_interval=600")
ACCURACY = RunMetric(answers, "accuracy")


CLAIM = Claim(
    says="Full attention recalls many pairs; linear attention and a short window do not.",
    last_look=20,
    first_seed=300,
    headline="small_state",
    order=19,
    predictions=(
        Trained(
            "full",
            "Full attention gives at least 90 % of the answers.",
            AtLeast(0.9, unit="of the answers"),
            where="full attention recalls 16 pairs",
            pilot=Pilot(1.0, 0.0),
            arms=(FULL,),
            contrast=level,
            metric=ACCURACY,
            rates=RATES,
        ),
        Trained(
            "small_state",
            "Linear attention of 16 heads, a state of 256 numbers, gives at most 97 %.",
            AtMost(0.97, unit="of the answers"),
            where="linear attention with a state of 256 numbers misses some",
            pilot=Pilot(0.714, 0.2),
            arms=(SMALL,),
            contrast=level,
            metric=ACCURACY,
            rates=RATES,
        ),
        Trained(
            "large_state",
            "Linear attention of 4 heads, a state of 1,024 numbers, gives at least 80 %.",
            AtLeast(0.8, unit="of the answers"),
            bearing="against",
            where="linear attention with a state of 1,024 numbers does",
            pilot=Pilot(0.984, 0.035),
            arms=(LARGE,),
            contrast=level,
            metric=ACCURACY,
            rates=RATES,
        ),
        Trained(
            "window",
            "A window of 8 positions gives at most 10 % of the answers.",
            AtMost(0.1, unit="of the answers"),
            where="a window of 8 does not",
            pilot=Pilot(0.0935, 0.0015),
            arms=(WINDOW,),
            contrast=level,
            metric=ACCURACY,
            rates=RATES,
        ),
        Trained(
            "speed",
            "Full attention, and linear attention of four heads, after 600 steps.",
            AtLeast(0.5, unit="of the answers"),
            role="shown",
            budget="full",
            seeds=3,
            arms=tuple(
                Arm(f"{arm.name}, 600 steps", (*arm.overrides, *EARLY)) for arm in (FULL, LARGE)
            ),
            contrast=smallest,
            metric=ACCURACY,
        ),
        Trained(
            "map",
            "Linear attention with 4, 8 and 16 pairs, and states of 256, 1,024 and 4,096 numbers.",
            AtLeast(0.5, unit="of the answers"),
            role="shown",
            budget="full",
            seeds=3,
            arms=tuple(_linear(heads, pairs) for pairs in PAIRS for heads in HEADS),
            contrast=smallest,
            metric=ACCURACY,
        ),
    ),
)
