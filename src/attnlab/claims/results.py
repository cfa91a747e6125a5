"""The results of a claim: judged predictions with their rows, and the verdict."""

import math
from dataclasses import dataclass, field
from typing import Any

from attnlab.claims.claim import Claim, Prediction
from attnlab.claims.judge import Outcome
from attnlab.claims.rows import Row
from attnlab.claims.rule import Sentence
from attnlab.runs.seed_statistics import median_interval


@dataclass
class PredictionResult:
    """One prediction with its rows."""

    prediction: Prediction
    seeds: list[int] = field(default_factory=list)  # those that have rows, in declared order
    # Arm -> one row a seed; a measurement has the one arm "".
    rows: dict[str, list[Row]] = field(default_factory=dict)
    scores: dict[str, list[float]] = field(default_factory=dict)  # diverged runs included
    values: list[float] = field(default_factory=list)  # the judged values, one per seed
    outcome: Outcome | None = None  # None where nothing was judged
    remark: str = ""  # why nothing was judged, or which runs failed

    @property
    def all_rows(self) -> list[Row]:
        """The rows of all arms."""
        return [row for rows in self.rows.values() for row in rows]

    @property
    def failed(self) -> list[Row]:
        """The rows of runs and measurements that failed, with their reasons."""
        return [row for row in self.all_rows if row["status"] == "failed"]

    @property
    def verdict(self) -> str:
        """confirmed, refuted or open; "shown" for a prediction that is not judged."""
        if self.prediction.role == "shown":
            return "shown"
        return self.outcome.verdict if self.outcome is not None else "open"

    @property
    def interval(self) -> tuple[float, float, float]:
        """Median of all values but NaN, with its exact interval; NaN without values."""
        values = [value for value in self.values if not math.isnan(value)]
        return median_interval(values) if values else (math.nan, math.nan, math.nan)

    @property
    def line(self) -> str:
        """The evidence in plain English; for what is only shown, the median."""
        if self.outcome is not None:
            return self.outcome.line
        return f"median {self.measured}" if self.values else ""

    @property
    def measured(self) -> str:
        """The median with its interval and unit."""
        of_judged = self.outcome and (self.outcome.median, self.outcome.low, self.outcome.high)
        median, low, high = of_judged or self.interval
        effect = f"{median:.4g} {self.prediction.criterion.unit}".strip()
        return effect if math.isnan(low) else f"{effect} ({low:.4g} to {high:.4g})"

    @property
    def diverged(self) -> dict[str, int]:
        """Arm -> how many of its runs diverged."""
        return {
            arm: sum(row["status"] == "diverged" for row in rows)
            for arm, rows in self.rows.items()
        }

    def each(self, key: str, arm: str = "") -> list[Any]:
        """One entry of every row's values, in the order of the seeds, without diverged runs."""
        return [row["values"][key] for row in self.rows[arm] if key in row["values"]]


@dataclass
class Evidence:
    """A claim with the results of its predictions."""

    claim: Claim
    found: dict[str, PredictionResult]  # by the name of the prediction
    verdict: Sentence = "open"  # on the sentence, from the primary predictions alone
    line: str = ""  # the verdict in plain English
    version: int = 0  # of the declaration; 0 where nothing was declared
    exploratory: str = ""  # why this is not a declared test; empty if it is one
    tested: str = ""  # at which learning rates, lengths, texts and processors, in a sentence
    rows: dict[str, Row] = field(default_factory=dict)  # of the declared test, by id

    @property
    def failed(self) -> list[str]:
        """The predictions whose runs failed."""
        return [name for name, result in self.found.items() if result.failed]

    @property
    def headline(self) -> PredictionResult:
        """The result that represents the claim in a table: one that was run, if there is any."""
        results = list(self.found.values())
        results = [r for r in results if r.prediction.role == "primary"] or results
        if self.claim.headline:
            results.insert(0, self.found[self.claim.headline])
        return next((result for result in results if result.values), results[0])

    def shown(self, name: str) -> PredictionResult | None:
        """The result of a prediction that has rows; None where there are none."""
        result = self.found.get(name)
        return result if result is not None and result.values else None
