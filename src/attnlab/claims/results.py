"""What was found: the rows of a claim's runs and measurements, and its verdict."""

from dataclasses import dataclass, field
from typing import Any, Literal

from attnlab.claims.claim import Claim, Prediction
from attnlab.claims.judge import Outcome

Row = dict[str, Any]  # one run or one measurement, as stored
Sentence = Literal["holds", "holds only if", "does not hold", "open"]


@dataclass
class PredictionResult:
    """One prediction with its rows."""

    prediction: Prediction
    seeds: list[int] = field(default_factory=list)  # whose rows there are, in declared order
    # Arm -> one row a seed; a measurement has the one arm "".
    rows: dict[str, list[Row]] = field(default_factory=dict)
    scores: dict[str, list[float]] = field(default_factory=dict)  # diverged runs included
    values: list[float] = field(default_factory=list)  # what was judged, one per seed
    outcome: Outcome | None = None  # None where nothing was judged
    remark: str = ""  # why not, or which runs failed
    failed: bool = False

    @property
    def verdict(self) -> str:
        """confirmed, refuted or open; "shown" for what is not judged."""
        if self.prediction.role == "shown":
            return "shown"
        return self.outcome.verdict if self.outcome is not None else "open"

    @property
    def diverged(self) -> dict[str, int]:
        """Arm -> how many of its runs diverged."""
        return {
            arm: sum(row["status"] == "diverged" for row in rows)
            for arm, rows in self.rows.items()
        }

    def each(self, key: str, arm: str = "") -> list[Any]:
        """One entry of every row's values, in the order of the seeds; diverged runs have none."""
        return [row["values"][key] for row in self.rows[arm] if key in row["values"]]


@dataclass
class Evidence:
    """A claim with everything that was found."""

    claim: Claim
    budget: str
    found: dict[str, PredictionResult]  # by the name of the prediction
    verdict: Sentence = "open"  # on the sentence, from the primary predictions alone
    line: str = ""  # the verdict in plain English
    version: int = 0  # of the declaration; 0 where nothing was declared
    exploratory: str = ""  # why this is not a declared test; empty where it is

    @property
    def failed(self) -> list[str]:
        """The predictions whose runs failed."""
        return [name for name, result in self.found.items() if result.failed]

    @property
    def headline(self) -> PredictionResult:
        """The result that stands for the claim in a table: one that was run, if there is any."""
        results = [r for r in self.found.values() if r.prediction.role == "primary"]
        if self.claim.headline:
            results.insert(0, self.found[self.claim.headline])
        return next((result for result in results if result.outcome is not None), results[0])

    def shown(self, name: str) -> PredictionResult | None:
        """The result of a prediction that has rows; None where there are none."""
        result = self.found.get(name)
        return result if result is not None and result.values else None
