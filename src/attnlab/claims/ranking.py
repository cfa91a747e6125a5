"""The ranking: every variant against a baseline on every task, by the trials and rule of claims.

experiments/ranking/ranking.yaml is the protocol. A test run has 4 n steps at a constant rate, so
it is also read after n steps; a run that solved its task has ended, and counts for both lengths.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any, NamedTuple

from pydantic import BaseModel

from attnlab.claims.judge import Criterion, judge, median_interval
from attnlab.claims.rows import Renamed, rename
from attnlab.claims.trials import Arm, Choice, Row, Rows, Run, tests
from attnlab.errors import BadInput

LONG = 4
REACHED, SOLVED = 0.9, 0.995  # accuracies: whose steps are compared; twice in a row ends a run
VERDICTS = {"confirmed": "worse", "refuted": "better", "open": "open"}
WORSE = Criterion(low=0.0)  # of differences of scores, which are smaller for better runs
WORDS = (  # of tasks and variants: they may change after runs
    "says claims quick partner control selection_seeds seconds only convolution pairs without"
).split()


class Task(BaseModel, extra="forbid", frozen=True):
    """What variants are compared on."""

    says: str
    overrides: tuple[str, ...]
    steps: int  # n
    rates: tuple[float, ...]
    selection_seeds: tuple[int, ...] = (1000, 1001)
    floor: float | None = None  # the accuracy without attention; None for a text
    length: int | None = None  # at which the accuracy after 4 n steps is measured, if not T
    quick: bool = False


class Variant(BaseModel, extra="forbid", frozen=True):
    """A variant of attention, or a control."""

    says: str
    claims: str = ""  # what its paper claims
    overrides: tuple[str, ...] = ()
    partner: str = ""  # what it is compared with, if not the baseline
    seeds_from: int = 0  # added to every seed
    rate_of_sdpa: float = 0.0  # a control: this share of the baseline's rate
    control: str = ""  # the verdict that it must have in every cell


class Protocol(BaseModel, extra="forbid", frozen=True):
    """Tasks, variants, and what all runs share."""

    test_seeds: tuple[int, ...]
    baseline: str
    common: tuple[str, ...]
    tasks: dict[str, Task]
    arms: dict[str, Variant]

    def partner(self, name: str) -> str:
        """What a variant is compared with."""
        return self.arms[name].partner or self.baseline

    def overrides(self, name: str) -> tuple[str, ...]:
        """The overrides of a variant."""
        return self.arms[name].overrides or (f"attn={name}",)


class Reading(NamedTuple):
    """What a run says at a length."""

    score: float  # smaller is better
    value: float  # its loss or accuracy
    reached: float  # its steps to 90 %
    by_steps: bool = False  # whether the score counts these


@dataclass(frozen=True, kw_only=True)
class Trial(Arm):
    """A variant on a task, after n or 4 n steps."""

    protocol: Protocol
    task: Task
    steps: int

    def run(self, seed: int, rate: float | None = None) -> Run:
        """The run of this length; all validate every n steps, so equal rates have equal curves."""
        end = () if self.task.floor is None else ("callbacks=solved",)
        further = [x for x in self.overrides if x not in self.task.overrides]
        n = (f"trainer.max_steps={self.steps}", f"trainer.val_check_interval={self.task.steps}")
        at = (f"optim.lr={rate:g}", f"optim.min_lr={rate:g}") if rate is not None else ()
        words = (*self.task.overrides, *self.protocol.common, *end, *further, *at, *n)
        return Run(words, self.protocol.arms[self.name].seeds_from + seed)

    def row(self, rows: Rows, seed: int, rate: float | None = None) -> Row | None:
        """Its row, or that of the other length if it says the same."""
        long = rows.get(self.at(LONG).run(seed, rate))
        short = rows.get(self.at(1).run(seed, rate))
        ended = short is not None and short["status"] != "finished"
        return long or (short if self.steps == self.task.steps or ended else None)

    def score(self, row: Row) -> float:
        """What decides a learning rate."""
        return self.read(row).score

    def at(self, times: int) -> "Trial":
        """The trial of n or 4 n steps."""
        return replace(self, steps=times * self.task.steps)

    def read(self, row: Row) -> Reading:
        """The score of a text is its loss. On a task, a run that gets to 90 % is better the sooner
        it does (at 4 n: if it solved the task), and others by their accuracy."""
        values, task = row["values"], self.task
        if (values.get("diverged_at_step") or math.inf) <= self.steps:
            return Reading(math.inf, math.nan, math.inf)
        if task.floor is None:
            loss = float(values["curve"]["losses"][str(self.steps)])
            return Reading(loss, loss, math.inf)
        every = values["curve"]["every"]
        curve = values["curve"]["accuracy"][: self.steps // every]
        reached = next((every * n for n, x in enumerate(curve, 1) if x >= REACHED), math.inf)
        if self.steps == task.steps:
            by_steps, value = math.isfinite(reached), curve[-1]
        else:
            by_steps = row["status"] == "stopped" and task.length is None
            value = values["val_accuracy" if task.length is None else "accuracy_at_length"]
            if value is None:  # NaN: the model overflows at this length
                return Reading(math.inf, math.nan, reached)
        score = reached / self.steps - 1 if by_steps else 1 - value
        return Reading(score, float(value), reached, by_steps)

    def choose(self, rows: Rows) -> tuple[Choice | None, list[Run]]:
        """As for claims; at 4 n, only the best rate at n and its neighbors are tried, or none if
        all selection runs at that rate solved the task within n steps."""
        if share := self.protocol.arms[self.name].rate_of_sdpa:
            partner, times = self.protocol.partner(self.name), self.steps // self.task.steps
            choice, missing = trial(self.protocol, partner, self.task, times).choose(rows)
            rate = choice and float(f"{choice.rate * share:.2g}")
            return (Choice(rate, {}, at_edge=False) if rate else None), missing
        if self.steps == self.task.steps:
            return super().choose(rows)
        short, missing = self.at(1).choose(rows)
        if short is None:
            return None, missing
        at_best = [self.at(1).row(rows, seed, short.rate) for seed in self.selection]
        if self.task.length is None and all(map(self._solves, filter(None, at_best))):
            return short, []
        rates, at = sorted(short.scores), sorted(short.scores).index(short.rate)
        near = replace(self, rates=tuple(rates[max(0, at - 1) : at + 2]))
        return super(Trial, near).choose(rows)

    def _solves(self, row: Row) -> bool:
        curve = row["values"]["curve"]
        within = curve.get("accuracy", [])[: self.task.steps // curve["every"]]
        return any(min(pair) >= SOLVED for pair in pairwise(within))


def trial(protocol: Protocol, name: str, task: Task, times: int) -> Trial:
    """A variant on a task, after n or 4 n steps."""
    return Trial(
        name=name, overrides=protocol.overrides(name), rates=task.rates,
        selection=task.selection_seeds, protocol=protocol, task=task, steps=times * task.steps,
    )  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """A variant on a task at a length, against its baseline, by ten seeds.

    The unit is that of what the verdict counts in most runs of both: nats, steps to 90 %, or
    points of accuracy above that without attention.
    """

    verdict: str  # also "baseline" and "not finished"
    unit: str = ""
    value: float = math.nan  # median
    difference: tuple[float, float, float] = (math.nan,) * 3  # with interval
    at_edge: bool = False
    diverged: int = 0


Table = dict[tuple[str, str, int], Cell]  # by variant, task, and 1 or 4


def cells(protocol: Protocol, rows: Rows, names: Iterable[str] = ()) -> Table:
    """Every cell of the table, of some variants or all."""
    return {
        (name, task, times): judge_cell(protocol, rows, name, protocol.tasks[task], times)
        for name in names or protocol.arms
        for task in protocol.tasks
        for times in (1, LONG)
    }


def judge_cell(protocol: Protocol, rows: Rows, name: str, task: Task, times: int) -> Cell:
    """The verdict on a variant, and the number that it counts."""
    both = [trial(protocol, x, task, times) for x in (name, protocol.partner(name))]
    found = [[x.read(row) for row in tests(x, rows, protocol.test_seeds)[0]] for x in both]
    if min(map(len, found)) < len(protocol.test_seeds):
        return Cell("not finished")
    a, b = found
    by_steps = all(2 * sum(x.by_steps for x in of) > len(of) for of in (a, b))
    unit = "nats" if task.floor is None else "steps" if by_steps else "points"
    values = [_number(x, task, unit) for x in a]
    choice, _ = both[0].choose(rows)
    cell = Cell("baseline", unit, median_interval(values)[0],
                at_edge=choice is not None and choice.at_edge,
                diverged=sum(math.isinf(x.score) for x in a))  # fmt: skip
    if name == protocol.partner(name):
        return cell
    outcome = judge([_minus(x.score, y.score) for x, y in zip(a, b, strict=True)], WORSE)
    apart = [_minus(x, _number(y, task, unit)) for x, y in zip(values, b, strict=True)]
    return replace(cell, verdict=VERDICTS[outcome.verdict], difference=_interval(apart))


def _minus(a: float, b: float) -> float:
    return math.nan if math.isinf(a) and a == b else a - b


def _number(reading: Reading, task: Task, unit: str) -> float:
    if unit == "steps":
        return reading.reached if reading.by_steps else math.inf
    if math.isnan(reading.value):
        return -math.inf if unit == "points" else math.inf
    return reading.value if task.floor is None else 100 * (reading.value - task.floor)


def _interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median with its interval; a NaN may be any number."""
    least, low, _ = median_interval([-math.inf if math.isnan(x) else x for x in values])
    most, _, high = median_interval([math.inf if math.isnan(x) else x for x in values])
    return (least if least == most else math.nan), low, high


def needed(protocol: Protocol, rows: Rows, names: Collection[str], *, quick: bool) -> list[Run]:
    """The runs of some variants, and of what they are compared with, that can be made now;
    `quick`: of some tasks, n steps alone."""
    found: dict[Run, None] = {}
    both = dict.fromkeys([*names, *map(protocol.partner, names)])
    tasks = [task for task in protocol.tasks.values() if task.quick or not quick]
    for name, task, times in product(both, tasks, (1,) if quick else (LONG, 1)):
        own = trial(protocol, name, task, times)
        found |= dict.fromkeys(tests(own, rows, protocol.test_seeds)[1])
    return list(found)


def with_own(protocol: Protocol, overrides: Sequence[str]) -> tuple[Protocol, str]:
    """The protocol with the variant of the command line, and its name; BadInput if more than its
    attention differs from the baseline, or from another one such as that without positions."""
    attention = [word for word in overrides if word.lstrip("+").startswith(("attn=", "attn."))]
    rest = tuple(word for word in overrides if word not in attention)
    partners = {protocol.overrides(x)[1:]: x for x in map(protocol.partner, protocol.arms)}
    if rest not in partners or not attention:
        also = " or ".join(" ".join(words) for words in partners if words)
        raise BadInput(
            f"{' '.join(rest or overrides)} cannot be ranked: only settings of attn may change, "
            f"as in attn=gate_head; also {also}"
        )
    words = (*attention, *rest)
    for name, arm in protocol.arms.items():
        if protocol.overrides(name) == words and not arm.control:
            return protocol, name
    name = " ".join(word.replace("attn._target_=", "").replace("attn=", "") for word in words)
    mine = Variant(says="yours", overrides=words, partner=partners[rest])
    return protocol.model_copy(update={"arms": {**protocol.arms, name: mine}}), name


def made(protocol: Protocol, rows: Rows) -> Iterator[tuple[str, str]]:
    """What `rows.undeclared` compares: each variant on each task, by the commits of its rows."""
    for name, task, times in product(protocol.arms, protocol.tasks, (1, LONG)):
        own = trial(protocol, name, protocol.tasks[task], times)
        for commit in {row["commit"] for row in tests(own, rows, protocol.test_seeds)[0]}:
            yield commit, f"{name} on {task}"


def of_cell(content: Any, which: str, renamed: Renamed) -> Any:
    """What ranking.yaml declares of a variant on a task: all but words; None if it does not."""
    name, _, task = which.partition(" on ")
    if task not in content["tasks"] or name not in content["arms"]:
        return None
    found = [content["test_seeds"], content["baseline"], rename(content["common"], renamed)]
    for entry in (content["tasks"][task], content["arms"][name]):
        fixed = {key: x for key, x in entry.items() if key not in WORDS}
        fixed["overrides"] = rename(entry.get("overrides", [f"attn={name}"]), renamed)
        found.append(fixed)
    return found
