"""Copying from a distance, by attention and by a GRU of as many weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnlab.claims import Arm, AtLeast, AtMost, Claim, Pilot, RunMetric, Trained, level
from attnlab.files import read_json

KEPT = 4  # symbols to be copied
NEAR, FAR = 4, 32
RATES = (1e-3, 3e-3, 1e-2)
LATE = ("trainer.max_steps=2000", "trainer.val_check_interval=2000")


def answers(folder: Path) -> Mapping[str, Any]:
    """The share of right answers of a run."""
    return {"accuracy": read_json(folder / "metrics.json")["val_accuracy"]}


def arm(attn: str, distance: int, *more: str) -> Arm:
    """Attention or a GRU, each answer `distance` positions back."""
    name = f"{'GRU' if attn == 'recurrent' else 'attention'}, {distance} back"
    overrides = (f"attn={attn}", f"model.block_size={distance + KEPT}", *more)
    return Arm(f"{name}, 2,000 steps" if more else name, overrides)


ACCURACY = RunMetric(answers, "accuracy")


CLAIM = Claim(
    says="Copying gets harder with distance for a recurrent network, and not for attention.",
    last_look=20,
    first_seed=300,
    headline="falls",
    order=18,
    predictions=(
        Trained(
            "falls",
            "After 500 steps, from 4 to 32 positions, the GRU loses at least 0.3 of the answers.",
            AtLeast(0.3, unit="of the answers"),
            where="a GRU loses the answers at 32 positions, 500 steps",
            pilot=Pilot(0.653, 0.15),
            seconds=9,
            arms=(arm("recurrent", NEAR), arm("recurrent", FAR)),
            rates=RATES,
            metric=ACCURACY,
        ),
        Trained(
            "falls_late",
            "After 2,000 steps, the GRU still loses at least 0.1 of the answers.",
            AtLeast(0.1, unit="of the answers"),
            where="a GRU still loses answers after 2,000 steps",
            role="secondary",
            budget="full",
            seeds=5,
            pilot=Pilot(0.403, 0.28),
            seconds=45,
            arms=(arm("recurrent", NEAR, *LATE), arm("recurrent", FAR, *LATE)),
            rates=RATES,
            metric=ACCURACY,
        ),
        Trained(
            "stays",
            "After 500 steps, from 4 to 32 positions, attention loses at most 0.05.",
            AtMost(0.05, unit="of the answers"),
            where="attention keeps them, 500 steps",
            pilot=Pilot(0.0),
            seconds=7,
            arms=(arm("sdpa", NEAR), arm("sdpa", FAR)),
            rates=RATES,
            metric=ACCURACY,
        ),
        Trained(
            "learns_near",
            "At 4 positions the GRU gives at least 90 % of the answers after 500 steps.",
            AtLeast(0.9, unit="of the answers"),
            role="control",
            pilot=Pilot(1.0),
            seconds=6,
            arms=(arm("recurrent", NEAR),),
            rates=RATES,
            contrast=level,
            metric=ACCURACY,
        ),
        Trained(
            "learns_far",
            "At 32 positions attention gives at least 95 % of the answers after 500 steps.",
            AtLeast(0.95, unit="of the answers"),
            role="secondary",
            pilot=Pilot(1.0),
            seconds=8,
            arms=(arm("sdpa", FAR),),
            rates=RATES,
            contrast=level,
            metric=ACCURACY,
        ),
        Trained(
            "between",
            "At 16 and at 64 positions, after 500 steps at one learning rate, 2e-3.",
            AtLeast(0.0, unit="of the answers"),
            role="shown",
            budget="full",
            seeds=3,
            seconds=14,
            arms=tuple(arm(attn, n) for attn in ("sdpa", "recurrent") for n in (16, 64)),
            metric=ACCURACY,
        ),
    ),
)
