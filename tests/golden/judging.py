"""The judge's verdicts on two claims with fixed rows; with judge.json, all that is about it."""

import math
from typing import Any

from attnlab.claims import Arm, AtLeast, AtMost, Claim, Effort, Exactly, Trained, Within
from attnlab.claims.evidence import Evidence, Found
from attnlab.claims.judge import judge_claim, judge_family, judge_part

OLD = [2.401, 2.397, 2.412, 2.388, 2.405, 2.399]
NAN = math.nan
# claim -> part -> the test, what it bears, and the losses of the new arm; NaN: diverged.
CLAIMS: dict[str, dict[str, tuple[Any, str, list[float]]]] = {
    "clear": {
        "worse": (AtLeast(0.1), "for", [2.583, 2.574, 2.601, 2.566, 2.590, 2.581]),
        "better": (AtMost(-0.05), "against", [2.283, 2.262, 2.290, 2.251, 2.279, 2.266]),
        "equal": (Within(0.005), "neither", [2.4012, 2.3968, 2.4123, 2.3879, 2.4049, 2.3991]),
        "same bits": (Exactly(0.0), "neither", OLD),
    },
    "mixed": {
        "noise": (AtLeast(0.0), "for", [2.5, 2.3, 2.6, 2.1, 2.45, 2.38]),
        "refuted": (AtLeast(0.1), "for", [2.301, 2.297, 2.312, 2.288, 2.305, 2.299]),
        "diverged": (AtLeast(0.1), "for", [2.583, NAN, 2.601, 2.566, NAN, 2.581]),
    },
}


def judged() -> dict[str, Any]:
    """Verdicts and p of the claims as one family, and of their parts."""
    family = [_evidence(name, parts) for name, parts in CLAIMS.items()]
    judge_family(family)
    return {
        e.claim.name: {
            "verdict": e.verdict,
            "sentence": e.sentence,
            "p_holm": e.p_holm,
            "parts": {name: _outcome(found) for name, found in e.found.items()},
        }
        for e in family
    }


def _evidence(name: str, parts: dict[str, tuple[Any, str, list[float]]]) -> Evidence:
    found = {}
    for part, (test, bearing, new) in parts.items():
        trained = Trained(
            part,
            f"{part}.",
            test,
            {"quick": Effort(6)},
            bearing=bearing,  # type: ignore[arg-type]
            arms=(Arm("new"), Arm("old")),
        )
        rows = {"new": [_row(loss) for loss in new], "old": [_row(loss) for loss in OLD]}
        found[part] = Found(trained, list(range(6)), rows)
        judge_part(found[part])
    claim = Claim("A sentence.", tuple(f.part for f in found.values()), name=name)
    evidence = Evidence(claim, "quick", found)
    judge_claim(evidence)
    return evidence


def _row(loss: float) -> dict[str, Any]:
    status = "finished" if math.isfinite(loss) else "diverged"
    return {"status": status, "values": {"val_loss": loss}, "loss_at_start": math.log(65)}


def _outcome(found: Found) -> dict[str, Any]:
    assert found.outcome is not None
    return {"verdict": found.outcome.verdict, "p": found.outcome.p}
