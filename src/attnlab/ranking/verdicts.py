"""Cells of the ranking: a contestant against its partner on a task, after n or 4 n steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from attnlab.claims.statistics import reach_probability
from attnlab.ranking.protocol import LONG, Contestant, Protocol, Task
from attnlab.ranking.trials import Course, Reading, Rows
from attnlab.runs.best_rates import Choice
from attnlab.runs.seed_statistics import Answer, count, declared_looks, median_interval

SEEDS = 10  # in a cell
WORDS = {"confirmed": "worse", "refuted": "better", "open": "open"}


@dataclass(frozen=True)
class Cell:
    """A verdict with its numbers. `verdict` is better, worse or open by 10 of 10 seeds, "baseline"
    for an arm that is its own partner, "partner not run" until the partner has all seeds, "not
    finished", or "not run"."""

    arm: Contestant
    task: Task
    steps: int
    verdict: str
    value: float = math.nan  # median: a loss, an accuracy, or steps to 90 %, as `unit` says
    unit: str = ""  # nats, steps, or points above the floor
    # Minus the partner, seed by seed: the median and its exact interval.
    difference: tuple[float, float, float] = (math.nan, math.nan, math.nan)
    order: float = math.nan  # the median score, smaller is better, whatever the unit
    diverged: int = 0
    by_steps: int = 0  # pairs that were decided by the steps to 90 %
    apart: int = 0  # pairs of runs on different processors
    ended: int = 0  # runs of a task with a further length that solved it before 4 n steps
    partner_at_edge: bool = False
    reached: Sequence[float] = ()  # the steps to 90 % of the answers of each seed
    accuracies: Sequence[float] = ()  # or losses
    choice: Choice | None = None
    seeds: int = 0  # how many were run

    @property
    def place(self) -> str:
        """The task and the length, in words."""
        return f"{self.task.title(self.steps)} ({self.steps:,} steps)"

    @property
    def number(self) -> str:
        """The number in the table."""
        if not self.seeds:
            return ""
        if not math.isfinite(self.value):
            return f"{self.diverged} diverged"
        return f"{self.value:,.{self.digits}f} {self.unit}"

    @property
    def digits(self) -> int:
        """Behind the point."""
        return {"nats": 3, "steps": 0}.get(self.unit, 1)

    @property
    def interval(self) -> str:
        """The difference from the partner, with its interval; empty if there is none."""
        if math.isnan(self.difference[1]):
            return ""
        words = [f"{x:+,.{self.digits}f}" for x in self.difference]
        words = [x.replace("inf", "∞").replace("+nan", "unknown") for x in words]
        return f"{words[0]} ({words[1]} to {words[2]})"


@dataclass(frozen=True)
class Table:
    """All cells, and how many of them may be false."""

    protocol: Protocol
    cells: dict[tuple[str, str, int], Cell] = field(default_factory=dict)  # arm, task, steps
    pairs: list[Cell] = field(default_factory=list)  # of arms that are compared with another one

    @property
    def judged(self) -> list[Cell]:
        """The cells with a verdict; of cells that rest on the same runs, or on the same steps to
        90 % after n and 4 n steps, the first."""
        found = dict[Any, Cell]()
        for c in (*self.cells.values(), *self.pairs):
            if c.verdict in WORDS.values():
                rate = math.nan if c.arm.rate_of_sdpa else 0.0  # at a tenth, other runs
                steps, same = c.steps, list[float]()
                if c.unit == "steps" and c.choice is not None:
                    steps, same = c.task.steps, [c.choice.rate, *c.reached, *c.difference]
                partner = self.protocol.arms[c.arm.partner]
                mine = self.protocol.trial(c.arm, c.task, rate, steps, 0)
                theirs = self.protocol.trial(partner, c.task, 0.0, steps, 0)
                found.setdefault((mine, theirs, *same), c)
        return list(found.values())

    @property
    def repeated(self) -> list[Cell]:
        """The cells with a verdict that say the same as a cell in `judged`."""
        judged = {id(cell) for cell in self.judged}
        every = (c for c in self.cells.values() if c.verdict in WORDS.values())
        return [cell for cell in every if id(cell) not in judged]

    @property
    def false_cells(self) -> float:
        """At most how many verdicts are expected to be false if no variant differed."""
        return len(self.judged) * 2 * reach_probability(0.5, declared_looks(SEEDS))

    @property
    def controls(self) -> list[Cell]:
        """The cells of controls that have a verdict."""
        return [c for c in self.cells.values() if c.arm.control and c.verdict in WORDS.values()]

    @property
    def broken(self) -> list[str]:
        """The cells of controls that do not have the verdict that they must have."""
        return [
            f"{c.arm.name} is {c.verdict} on {c.place}"
            for c in self.controls
            if c.verdict != c.arm.control
        ]

    @property
    def edges(self) -> list[str]:
        """The cells whose best rate is at the edge of those that were tried."""
        return [
            f"{c.arm.name} on {c.place}: {c.choice.rate:g}"
            for c in self.cells.values()
            if c.choice is not None and c.choice.at_edge and c.seeds
        ]


def make_table(protocol: Protocol, rows: Rows, quick: bool = False) -> Table:
    """Judge every cell by the rows that there are."""
    table = Table(protocol)
    for arm, task in protocol.cells(quick):
        for steps in (task.steps,) if quick else (task.steps, LONG * task.steps):
            table.cells[arm.name, task.name, steps] = judge_cell(protocol, rows, arm, task, steps)
            if task.name in arm.pairs:
                other = replace(arm, partner=arm.pairs[task.name])
                table.pairs.append(judge_cell(protocol, rows, other, task, steps))
    return table


def judge_cell(protocol: Protocol, rows: Rows, arm: Contestant, task: Task, steps: int) -> Cell:
    """Judge a contestant on a task; it is "not finished" until all seeds are there."""
    course = Course(protocol, arm, task, rows)
    mine, (choice, _) = course.readings(steps), course.chosen(steps)
    if len(mine) < len(protocol.test):
        begun = mine or (not arm.rate_of_sdpa and course.tried(task.rates, task.steps))
        return Cell(arm, task, steps, "not finished" if begun else "not run", choice=choice)
    partner = protocol.arms[arm.partner]
    theirs = Course(protocol, partner, task, rows)
    other, (other_choice, _) = theirs.readings(steps), theirs.chosen(steps)
    unit = _unit((mine, other if len(other) == len(mine) else mine), task, steps)
    values = [_number(x, task, unit) for x in mine]
    cell = Cell(
        *(arm, task, steps, "baseline" if arm.name == partner.name else "partner not run"),
        value=median_interval(values)[0],
        unit=unit,
        order=median(x.score for x in mine),
        diverged=sum(math.isinf(x.score) for x in mine),
        ended=sum(x.solved for x in mine) if task.length is not None else 0,
        partner_at_edge=other_choice is not None and other_choice.at_edge,
        reached=[x.reached for x in mine],
        accuracies=[x.value for x in mine],
        choice=choice,
        seeds=len(mine),
    )
    if cell.verdict == "baseline" or len(other) < len(protocol.test):
        return cell
    verdict, _, _ = count([_answer(a, b) for a, b in zip(mine, other, strict=True)], SEEDS)
    differences = [a - _number(b, task, unit) for a, b in zip(values, other, strict=True)]
    machines = [[row["processor"] for row in x.tests(steps)] for x in (course, theirs)]
    return replace(
        cell,
        verdict=WORDS[verdict],
        difference=_unknown_interval(differences),
        by_steps=sum(a.by_steps and b.by_steps for a, b in zip(mine, other, strict=True)),
        apart=sum(a != b for a, b in zip(*machines, strict=True)),
    )


def _answer(mine: Reading, other: Reading) -> Answer:
    """Whether this seed says that the first is worse; equal scores say neither."""
    if mine.score == other.score:
        return "neither"
    return "yes" if mine.score > other.score else "below"


def _unit(arms: Sequence[Sequence[Reading]], task: Task, steps: int) -> str:
    """What the numbers of a cell are: the loss of a text; the steps to 90 % if, at n, most seeds
    of both arms get there or, at 4 n, all solve the task; otherwise the accuracy above the floor.
    """
    if task.floor is None:
        return "nats"
    if steps == task.steps:
        counts = (sum(math.isfinite(x.reached) for x in arm) / max(1, len(arm)) for arm in arms)
        return "steps" if all(count > 0.5 for count in counts) else "points"
    solved = task.length is None and all(x.solved for arm in arms for x in arm)
    return "steps" if solved else "points"


def _number(reading: Reading, task: Task, unit: str) -> float:
    """A run that diverged counts as worse than any number."""
    if unit == "steps":
        return reading.reached
    if math.isnan(reading.value):
        return -math.inf if unit == "points" else math.inf
    return reading.value if task.floor is None else 100 * (reading.value - task.floor)


def _unknown_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median of differences with its exact interval. A NaN, of two runs that both diverged or,
    for steps, did not get to 90 %, may be any number."""
    least, low, _ = median_interval([-math.inf if math.isnan(x) else x for x in values])
    most, _, high = median_interval([math.inf if math.isnan(x) else x for x in values])
    return (least if least == most else math.nan), low, high
