"""Claims: predictions with thresholds declared beforehand, runs that test them, verdicts."""

from attnlab.claims.claim import (
    Arm,
    Claim,
    Measured,
    Pilot,
    Prediction,
    RunMetric,
    Trained,
)
from attnlab.claims.criteria import (
    AtLeast,
    AtMost,
    Bound,
    Exactly,
    Happens,
    Proof,
    Within,
    difference,
    level,
)

__all__ = [
    "Arm",
    "AtLeast",
    "AtMost",
    "Bound",
    "Claim",
    "Exactly",
    "Happens",
    "Measured",
    "Pilot",
    "Prediction",
    "Proof",
    "RunMetric",
    "Trained",
    "Within",
    "difference",
    "level",
]
