"""The ranking: every variant against a baseline on every task, by the trials and rule of claims.

experiments/ranking/ranking.yaml is the protocol. A test run has 4 n steps at a constant rate, so
it is also read after n steps; a run that solved its task has ended, and counts for both lengths.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from pydantic import BaseModel

from attnlab.claims.claims import Declared
from attnlab.claims.judge import judge, median_interval
from attnlab.claims.rows import Renamed, rename
from attnlab.claims.trials import Arm, Choice, Row, Rows, Run, tests
from attnlab.errors import BadInput

LONG = 4
REACHED, SOLVED = 0.9, 0.995  # accuracies: whose steps are compared; twice in a row ends a run
VERDICTS = {"confirmed": "worse", "refuted": "better", "open": "open"}  # if scores are higher
FIXED = "steps rates floor length seeds_from rate_of_sdpa".split()  # beside overrides


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


class Protocol(Declared, frozen=True):
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


# What a run that diverged says: a score, of which a smaller one is better, and numbers by unit.
WORST = {"score": math.inf, "nats": math.inf, "steps": math.inf, "points": -math.inf, "solved": 0}


@dataclass(frozen=True, kw_only=True)
class Trial(Arm):
    """A variant on a task, after n or 4 n steps: an arm whose rate may follow from another's."""

    task: Task
    steps: int
    seeds: Sequence[int]  # of the test
    before: "Trial | None" = None  # whose rate comes first: n steps, or the partner of a control
    share: float = 0.0  # of a control: its rate is this share of that of its partner

    def choose(self, rows: Rows) -> tuple[Choice | None, list[Run]]:
        """As for claims. At 4 n, only the best rate at n and its neighbors are tried, or none if
        all selection runs at that rate solved the task within n steps."""
        before = self.before
        choice, missing = before.choose(rows) if before else super().choose(rows)
        if choice is None or before is None:
            return choice, missing
        if self.share:
            return Choice(float(f"{choice.rate * self.share:.2g}"), {}, at_edge=False), []
        at_best = [before.read(rows[before.run(seed, choice.rate)]) for seed in self.selection]
        if self.task.length is None and all(numbers["solved"] for numbers in at_best):
            return choice, []
        rates = sorted(choice.scores)
        at = rates.index(choice.rate)
        return replace(self, rates=tuple(rates[max(0, at - 1) : at + 2]), before=None).choose(rows)

    def score(self, row: Row) -> float:
        """What decides a learning rate."""
        return self.read(row)["score"]

    def read(self, row: Row) -> dict[str, float]:
        """The score of a text is its loss. On a task, a run that gets to 90 % is better the sooner
        it does (at 4 n: if it solved the task), and others by their accuracy."""
        values, task = row["values"], self.task
        if (values.get("diverged_at_step") or math.inf) <= self.steps:
            return WORST
        if task.floor is None:
            loss = float(values["curve"]["losses"][str(self.steps)])
            return WORST | {"score": loss, "nats": loss}
        every = values["curve"]["every"]
        curve = values["curve"]["accuracy"][: self.steps // every]
        reached = next((every * n for n, x in enumerate(curve, 1) if x >= REACHED), math.inf)
        solved, accuracy = min(curve[-2:]) >= SOLVED, curve[-1]
        if self.steps > task.steps:
            accuracy = values["val_accuracy" if task.length is None else "accuracy_at_length"]
            if accuracy is None:  # NaN: the model overflows at this length
                return WORST
            reached = reached if solved and task.length is None else math.inf
        score = 1 - accuracy if math.isinf(reached) else reached / self.steps - 1
        points = 100 * (accuracy - task.floor)
        return {"score": score, "steps": reached, "points": points, "solved": solved}


def trial(protocol: Protocol, name: str, task: Task, times: int) -> Trial:
    """A variant on a task, after n or 4 n steps."""
    arm, n = protocol.arms[name], task.steps
    end = () if task.floor is None else ("callbacks=solved",)
    own = [word for word in protocol.overrides(name) if word not in task.overrides]
    before = trial(protocol, name, task, 1) if times > 1 else None
    if arm.rate_of_sdpa:
        before = trial(protocol, protocol.partner(name), task, times)
    return Trial(
        overrides=(*task.overrides, *protocol.common, *end, *own),
        last=(f"trainer.max_steps={times * n}", f"trainer.val_check_interval={n}"),
        rates=task.rates,
        floor=1.0,
        selection=[arm.seeds_from + seed for seed in task.selection_seeds],
        seeds=[arm.seeds_from + seed for seed in protocol.test_seeds],
        task=task,
        steps=times * n,
        before=before,
        share=arm.rate_of_sdpa,
    )


def at_both_lengths(rows: Rows) -> Rows:
    """Rows by runs of n and of 4 n steps: a long run also says what the short one would, and a
    short run that ended early what the long one would."""
    found = dict(rows)
    for (overrides, seed), row in rows.items():
        *words, _, every = overrides
        n = int(every.partition("=")[2])  # of trainer.val_check_interval
        short, long = (Run((*words, f"trainer.max_steps={k}", every), seed) for k in (n, LONG * n))
        if overrides == long.overrides:
            found[short] = row
        elif row["status"] != "finished":
            found.setdefault(long, row)
    return found


@dataclass(frozen=True)
class Cell:
    """A variant on a task at a length, against its baseline, by ten seeds.

    The unit is that of what the verdict counts in most runs of both: nats, steps to 90 %, or
    points of accuracy above that without attention.
    """

    rows: list[Row]  # of the variant's test
    verdict: str = "not finished"  # also "baseline"
    unit: str = ""
    value: float = math.nan  # median
    difference: tuple[float, float, float] = (math.nan,) * 3  # with interval
    at_edge: bool = False
    diverged: int = 0


Table = dict[tuple[str, str, int], Cell]  # by variant, task, and 1 or 4


def cells(protocol: Protocol, rows: Rows, names: Iterable[str]) -> Table:
    """Every cell of some variants."""
    keys, both = product(names, protocol.tasks, (1, LONG)), at_both_lengths(rows)
    return {key: judge_cell(protocol, both, *key) for key in keys}


def judge_cell(protocol: Protocol, rows: Rows, name: str, task_name: str, times: int) -> Cell:
    """The verdict on a variant, and the number that it counts."""
    task, partner = protocol.tasks[task_name], protocol.partner(name)
    mine, other = (trial(protocol, x, task, times) for x in (name, partner))
    found = tests(mine, rows, mine.seeds)[0]
    a = [mine.read(row) for row in found]
    b = [other.read(row) for row in tests(other, rows, other.seeds)[0]]
    if min(len(a), len(b)) < len(protocol.test_seeds):
        return Cell(found)
    most = [2 * sum(math.isfinite(x["steps"]) for x in of) > len(of) for of in (a, b)]
    unit = "steps" if all(most) else "nats" if task.floor is None else "points"
    values, others = ([x[unit] for x in of] for of in (a, b))
    choice, _ = mine.choose(rows)
    cell = Cell(found, "baseline", unit, median_interval(values)[0],
                at_edge=choice is not None and choice.at_edge,
                diverged=sum(math.isinf(x["score"]) for x in a))  # fmt: skip
    if name == partner:
        return cell
    outcome = judge([x["score"] - y["score"] for x, y in zip(a, b, strict=True)], 0.0, math.inf)
    apart = _interval([x - y for x, y in zip(values, others, strict=True)])
    return replace(cell, verdict=VERDICTS[outcome.verdict], difference=apart)


def _interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median with its interval; a NaN may be any number."""
    least, low, _ = median_interval([-math.inf if math.isnan(x) else x for x in values])
    most, _, high = median_interval([math.inf if math.isnan(x) else x for x in values])
    return (least if least == most else math.nan), low, high


def needed(protocol: Protocol, rows: Rows, names: Sequence[str], *, quick: bool) -> list[Run]:
    """The runs of some variants, and of what they are compared with, that can be made now;
    `quick`: of some tasks, n steps alone."""
    both = at_both_lengths(rows)
    variants = dict.fromkeys([*names, *map(protocol.partner, names)])
    tasks = [task for task in protocol.tasks.values() if task.quick or not quick]
    keys = product(variants, tasks, (1,) if quick else (LONG, 1))
    trials = [trial(protocol, name, task, times) for name, task, times in keys]
    return list(dict.fromkeys(run for own in trials for run in tests(own, both, own.seeds)[1]))


def with_own(protocol: Protocol, overrides: Sequence[str]) -> tuple[Protocol, str]:
    """The protocol with the variant of the command line, and its name; BadInput if more than its
    attention differs from the baseline, or from another one such as that without positions."""
    attention = [word for word in overrides if word.lstrip("+").startswith(("attn=", "attn."))]
    rest = [word for word in overrides if word not in attention]
    partners = {protocol.overrides(x)[1:]: x for x in map(protocol.partner, protocol.arms)}
    if not attention or tuple(rest) not in partners:
        also = " or ".join(map(" ".join, filter(None, partners)))
        why = f"only settings of attn may change, as in attn=gate_head; also {also}"
        raise BadInput(f"{' '.join(overrides)} cannot be ranked: {why}")
    words = (*attention, *rest)
    name = " ".join(words).replace("attn._target_=", "").replace("attn=", "")
    mine = Variant(says="yours", overrides=words, partner=partners[tuple(rest)])
    return protocol.model_copy(update={"arms": protocol.arms | {name: mine}}), name


def of_cell(content: Any, which: str, renamed: Renamed) -> Any:
    """What ranking.yaml declares of a variant on a task; None if it does not."""
    name, _, task = which.partition(" on ")
    if task not in content["tasks"] or name not in content["arms"]:
        return None
    found = [content["test_seeds"], content["baseline"], rename(content["common"], renamed)]
    for entry in (content["tasks"][task], {"overrides": [f"attn={name}"]} | content["arms"][name]):
        found += [rename(entry["overrides"], renamed), *(entry.get(key) for key in FIXED)]
    return found
