"""Claims: predictions with thresholds fixed beforehand, runs that test them, verdicts."""

from attnlab.claims.claim import (
    Arm,
    Claim,
    Effort,
    Measured,
    Part,
    Reading,
    Trained,
    level,
)
from attnlab.claims.criteria import (
    AtLeast,
    AtMost,
    Exactly,
    Proved,
    ShareAtLeast,
    Within,
)

__all__ = [
    "Arm",
    "AtLeast",
    "AtMost",
    "Claim",
    "Effort",
    "Exactly",
    "Measured",
    "Part",
    "Proved",
    "Reading",
    "ShareAtLeast",
    "Trained",
    "Within",
    "level",
]
