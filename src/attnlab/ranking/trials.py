"""Which runs a cell of the ranking still needs, and what its rows say.

A run is read at n and at 4 n steps, so a longer run answers for a shorter one at its rate, and
continues it where it was made before: the rate is constant, and both have the same weights at step
n.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise, product, takewhile

from attnlab.claims.rows import Row
from attnlab.claims.trial import next_rates
from attnlab.ranking.protocol import LONG, Contestant, Protocol, Task, Trial
from attnlab.runs.best_rates import Choice, best_rate

REACHED = 0.9  # the accuracy whose steps are compared
SOLVED = 0.995  # twice in a row, which ends a run: conf/callbacks/solved.yaml
Rows = Mapping[Trial, Row]


@dataclass(frozen=True)
class Reading:
    """What a run says at a number of steps."""

    score: float  # smaller is better; decides rates and verdicts; inf if the run diverged
    value: float  # a loss, or an accuracy, as measured; NaN if the run diverged
    reached: float = math.inf  # steps to 90 % accuracy
    solved: bool = False  # at 4 n; the run ended then
    by_steps: bool = False  # the score is the steps to 90 %


@dataclass(frozen=True)
class Needed:
    """One run that is still needed."""

    arm: Contestant
    task: Task
    rate: float
    steps: int
    seed: int
    earlier: Row | None = None  # of the run of n steps that it continues

    @property
    def further(self) -> int:
        """The steps that it trains."""
        return self.steps - (0 if self.earlier is None else self.task.steps)


def by_trial(rows: Iterable[Row]) -> dict[Trial, Row]:
    """The rows of the ranking by what was run."""
    return {Trial(tuple(r["overrides"]), r["seed"], r.get("code", "")): r for r in rows}


def read(row: Row, task: Task, steps: int) -> Reading:
    """What a row says after `steps` steps.

    The score of a text is its loss. That of a task at n is the number of steps to 90 % or, where
    it does not get there, a number above n that falls with the accuracy; at 4 n it is the share of
    wrong answers or, for a run that ended because it had solved the task, a number below 0 that
    grows with the steps to 90 %.
    """
    curve = row["values"]["curve"]
    diverged_at = row["values"].get("diverged_at_step") or math.inf
    if diverged_at <= steps:
        return Reading(math.inf, math.nan)
    if task.floor is None:
        loss = float(curve["losses"][str(steps)])
        return Reading(loss, loss)
    every, solved = curve["every"], row["status"] == "stopped"
    accuracies = curve["accuracy"][: steps // every]
    reached = next((every * n for n, x in enumerate(accuracies, 1) if x >= REACHED), math.inf)
    if steps == task.steps:
        last, by_steps = accuracies[-1], math.isfinite(reached)
        score = reached if by_steps else steps * (2 - last)
        return Reading(score, last, reached, by_steps=by_steps)
    value = row["values"]["val_accuracy" if task.length is None else "accuracy_at_length"]
    if value is None:  # NaN: the model overflows at this length
        return Reading(math.inf, math.nan, reached, solved)
    by_steps = solved and task.length is None
    score = reached / steps - 1 if by_steps else 1 - value
    return Reading(score, float(value), reached, solved, by_steps)


@dataclass(frozen=True)
class Course:
    """A contestant on a task: its chosen rates, the rows of its test seeds, the runs it needs."""

    protocol: Protocol
    arm: Contestant
    task: Task
    rows: Rows

    def row(self, rate: float, steps: int, seed: int) -> Row | None:
        """The row of a run of n or 4 n steps; a run that solved its task is also a longer one."""
        short, long = self.task.steps, LONG * self.task.steps
        found = self.rows.get(self.protocol.trial(self.arm, self.task, rate, long, seed))
        if found is None:
            found = self.rows.get(self.protocol.trial(self.arm, self.task, rate, short, seed))
            if found is not None and steps == long and found["status"] == "finished":
                return None
        return found

    def tried(self, rates: Iterable[float], steps: int) -> dict[float, dict[int, float]]:
        """Rate -> selection seed -> score."""
        found: dict[float, dict[int, float]] = {}
        for rate, seed in product(rates, self.task.selection_seeds):
            if (row := self.row(rate, steps, seed)) is not None:
                found.setdefault(rate, {})[seed] = read(row, self.task, steps).score
        return found

    def choose(self, steps: int) -> tuple[Choice | None, list[Needed]]:
        """The best rate at a length or, while it is not known, the runs that choose it.

        At 4 n, the best rate at n is tried beside its two neighbors, unless all of its runs solved
        the task within n steps, and the task has no further length.
        """
        seeds, grid = self.task.selection_seeds, self.task.rates
        if steps != self.task.steps:
            short, needed = self.choose(self.task.steps)
            if short is None or self._solved(short.rate):
                return short, needed
            rates = sorted(short.losses)
            at = rates.index(short.rate)
            grid = tuple(rates[max(0, at - 1) : at + 2])
        tried = self.tried(grid, steps)
        while True:
            more = next_rates(grid, tried, seeds)
            found = self.tried(more, steps)
            missing = [
                self._needed(rate, steps, seed)
                for rate, seed in product(more, seeds)
                if seed not in found.get(rate, {})
            ]
            if missing:
                return None, missing
            if not more:
                return best_rate(tried, seeds), []
            tried |= found

    def _needed(self, rate: float, steps: int, seed: int) -> Needed:
        trial = self.protocol.trial(self.arm, self.task, rate, self.task.steps, seed)
        earlier = self.rows.get(trial)
        if earlier is not None and self._solves(earlier):  # a run of 4 n steps ends within n
            earlier = None
        return Needed(self.arm, self.task, rate, steps, seed, earlier)

    def _solves(self, row: Row) -> bool:
        """Whether a run of any length had solved the task after n steps."""
        curve = row["values"]["curve"]
        accuracies = curve["accuracy"][: self.task.steps // curve["every"]]
        return any(min(pair) >= SOLVED for pair in pairwise(accuracies))

    def _solved(self, rate: float) -> bool:
        rows = [self.row(rate, self.task.steps, seed) for seed in self.task.selection_seeds]
        return self.task.length is None and all(row and self._solves(row) for row in rows)

    def chosen(self, steps: int) -> tuple[Choice | None, list[Needed]]:
        """The rate of the test runs at a length, and the runs that are needed to choose it."""
        if not self.arm.rate_of_sdpa:
            return self.choose(steps)
        partner = self.protocol.arms[self.arm.partner]
        choice, needed = Course(self.protocol, partner, self.task, self.rows).choose(steps)
        if choice is None:
            return None, needed
        rate = float(f"{choice.rate * self.arm.rate_of_sdpa:.2g}")
        return Choice(rate, {}, at_edge=False), []

    def tests(self, steps: int) -> list[Row]:
        """The rows of the test seeds at a length, in order, up to the first that was not run."""
        choice, _ = self.chosen(steps)
        if choice is None:
            return []
        rows = (self.row(choice.rate, steps, seed) for seed in self.protocol.test)
        return [row for row in takewhile(bool, rows) if row is not None]

    def readings(self, steps: int) -> list[Reading]:
        """What these rows say."""
        return [read(row, self.task, steps) for row in self.tests(steps)]

    def needed(self, quick: bool) -> Iterator[Needed]:
        """The runs that can be made now; after them there may be more."""
        planned = set[float]()
        for steps in [self.task.steps] if quick else [LONG * self.task.steps, self.task.steps]:
            choice, missing = self.chosen(steps)
            yield from missing
            if choice is None:
                return
            for seed in self.protocol.test if choice.rate not in planned else ():
                if self.row(choice.rate, steps, seed) is None:
                    yield self._needed(choice.rate, steps, seed)
            planned.add(choice.rate)

    def left(self, quick: bool) -> tuple[int, int]:
        """About how many runs are left, and their steps; without further rates at an edge."""
        needed, task = list(self.needed(quick)), self.task
        runs, steps = len(needed), sum(each.further for each in needed)
        tests = len(self.protocol.test)
        length = task.steps if quick else LONG * task.steps
        if self.chosen(length)[0] is None:  # after these runs, there are more
            runs, steps = runs + tests, steps + tests * length
            if not quick and self.chosen(task.steps)[0] is None:
                checked = 3 * len(self.task.selection_seeds)
                runs, steps = runs + checked, steps + checked * (length - task.steps)
        return runs, steps
