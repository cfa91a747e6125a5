"""Fair trials: every arm at its best learning rate, seed by seed. Claims and the ranking use them.

A trial asks two things of the rows so far: which runs are still missing, and what those that are
there say. Nothing else decides what is trained, so every call continues where the last one ended.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from statistics import fmean
from typing import Any, NamedTuple

Row = dict[str, Any]  # overrides, seed, status, values, and where it was made
EXTENSIONS = 2  # how often the rates are extended while the best one is the first or the last


class Run(NamedTuple):
    """One training, or one measurement; its row is kept under it."""

    overrides: tuple[str, ...]
    seed: int


Rows = Mapping[Run, Row]


@dataclass(frozen=True)
class Choice:
    """A learning rate, and the mean scores by which it was chosen."""

    rate: float
    scores: Mapping[float, float]
    at_edge: bool  # the best rate is the lowest or the highest of those that were tried


@dataclass(frozen=True)
class Arm:
    """One side of a comparison. Without rates, it is trained as its overrides say."""

    name: str
    overrides: tuple[str, ...] = ()
    rates: tuple[float, ...] = ()
    floor: float = 0.1  # the rate decays to this share of itself; 1: it is constant
    selection: Collection[int] = field(default=range(1000, 1003))  # seeds that choose the rate

    def run(self, seed: int, rate: float | None = None) -> Run:
        """The run of a seed, at a rate."""
        at = () if rate is None else (f"optim.lr={rate:g}", f"optim.min_lr={rate * self.floor:g}")
        return Run((*self.overrides, *at), seed)

    def row(self, rows: Rows, seed: int, rate: float | None = None) -> Row | None:
        """The row of a run; the ranking also accepts one of a longer run."""
        return rows.get(self.run(seed, rate))

    def score(self, row: Row) -> float:
        """What decides a learning rate; smaller is better, and a diverged run is the worst."""
        return number(row, "val_loss", worst=math.inf)

    def choose(self, rows: Rows) -> tuple[Choice | None, list[Run]]:
        """The best rate, or None and the runs that are missing for the choice."""
        if not self.rates:
            return None, []
        tried, extended = sorted(self.rates), 0
        while True:
            runs = [(r, s, self.row(rows, s, r)) for r in tried for s in self.selection]
            if missing := [self.run(s, r) for r, s, row in runs if row is None]:
                return None, missing
            scores = {r: fmean(self.score(row) for at, _, row in runs if row and at == r)
                      for r in tried}  # fmt: skip
            best = min(scores, key=scores.__getitem__)
            at_edge = best in (tried[0], tried[-1])
            if not at_edge or extended == EXTENSIONS:
                return Choice(best, scores, at_edge), []
            beside = tried[1] if best == tried[0] else tried[-2]
            tried, extended = sorted([*tried, float(f"{best**2 / beside:.2g}")]), extended + 1


def tests(arm: Arm, rows: Rows, seeds: Sequence[int]) -> tuple[list[Row], list[Run]]:
    """The rows of test seeds at the best rate, up to the first gap, and the runs that are missing.

    While the rate is not chosen, what is missing is what chooses it.
    """
    choice, missing = arm.choose(rows)
    if missing:
        return [], missing
    rate = choice.rate if choice else None
    found = [arm.row(rows, seed, rate) for seed in seeds]
    runs = [arm.run(s, rate) for s, row in zip(seeds, found, strict=True) if row is None]
    return [row for row in takewhile(bool, found) if row], runs


def number(row: Row, key: str, worst: float = math.nan) -> float:
    """A number of a row; `worst` for a run that diverged. JSON stores NaN as null."""
    if row["status"] == "diverged":
        return worst
    value = row["values"].get(key)
    value = math.nan if value is None else float(value)
    return worst if math.isinf(worst) and not math.isfinite(value) else value


def has(row: Row, key: str) -> bool:
    """Whether a number was measured; a run that diverged has none to measure."""
    return row["status"] == "diverged" or key in row["values"]
