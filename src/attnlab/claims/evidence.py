"""What was found: the rows of a claim's runs and measurements, and its verdict."""

from dataclasses import dataclass, field
from typing import Any

from attnlab.claims.claim import Claim, Part
from attnlab.claims.criteria import Outcome, Verdict

Row = dict[str, Any]  # one run or one measurement, as stored


@dataclass
class Found:
    """One part with its rows.

    Args:
        part: the prediction.
        seeds: whose rows there are.
        rows: arm -> one row a seed; a measurement has the one arm "".
        scores: arm -> one score a seed, diverged runs included.
        values: what was judged, one a seed.
        outcome: None where this budget does not judge the part.
        remark: why not, or which runs failed.
        failed: whether runs failed.
    """

    part: Part
    seeds: list[int] = field(default_factory=list)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    scores: dict[str, list[float]] = field(default_factory=dict)
    values: list[float] = field(default_factory=list)
    outcome: Outcome | None = None
    remark: str = ""
    failed: bool = False

    @property
    def diverged(self) -> dict[str, int]:
        """Arm -> how many of its runs diverged."""
        return {
            arm: sum(row["status"] == "diverged" for row in rows)
            for arm, rows in self.rows.items()
        }

    def each(self, key: str, arm: str = "") -> list[Any]:
        """One entry of every row's values, in the order of the seeds."""
        return [row["values"][key] for row in self.rows[arm]]


@dataclass
class Evidence:
    """A claim with all that was found.

    Args:
        claim: the claim.
        budget: quick or full.
        found: part name -> its rows.
        verdict: on the claim's predictions taken together.
        sentence: what that means for the textbook sentence.
        line: in plain English.
        p: the claim's p in the family, None where nothing random was tested.
        p_holm: adjusted for the family of claims.
        changed: the declaration is not the one that was kept before the first run.
    """

    claim: Claim
    budget: str
    found: dict[str, Found]
    verdict: Verdict = "inconclusive"
    sentence: str = "open"
    line: str = ""
    p: float | None = None
    p_holm: float | None = None
    changed: bool = False

    @property
    def failed(self) -> list[str]:
        """The parts whose runs failed."""
        return [name for name, found in self.found.items() if found.failed]

    def shown(self, name: str) -> Found | None:
        """A part that has rows; None where this budget has none."""
        found = self.found.get(name)
        return found if found is not None and found.values else None
