"""The ranking: every variant against a baseline on every task, by the trials and rule of claims.

experiments/ranking/ranking.yaml is the protocol. A test run has 4 n steps at a constant rate, so
it is also read after n steps; a run that solved its task has ended, and counts for both lengths.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product, starmap
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from attnlab.claims.declared import Declared, undeclared
from attnlab.claims.judge import judge
from attnlab.claims.rows import COMMITTED, open_rows
from attnlab.claims.trials import Arm, Choice, Row, Run, processor_of, read_test, with_tests
from attnlab.claims.work import Work, composed
from attnlab.errors import BadInput
from attnlab.installation import lab_path
from attnlab.runs.seed_statistics import NO_INTERVAL, MedianInterval, median_interval
from attnlab.settings.roles import last_of

LONG = 4
REACHED = 0.9  # the accuracy to which steps are counted
SOLVED = 0.995  # the accuracy that ends a run, if it is there twice in a row
VERDICTS = {"confirmed": "worse", "refuted": "better", "open": "open"}  # if scores are higher
DECLARED_OF_CELL = ("steps", "rates", "floor", "length", "seeds_from", "rate_of_sdpa")


class Task(BaseModel, extra="forbid", frozen=True):
    """What variants are compared on."""

    says: str
    overrides: tuple[str, ...]
    steps: int  # n
    rates: tuple[float, ...]
    selection_seeds: tuple[int, ...] = (1000, 1001)
    floor: float | None = None  # the accuracy without attention; None for a text
    length: int | None = None  # of sequences, for the accuracy after 4 n steps, if not T
    quick: bool = False


class RankedVariant(BaseModel, extra="forbid", frozen=True):
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
    arms: dict[str, RankedVariant]

    def partner(self, name: str) -> str:
        """What a variant is compared with."""
        return self.arms[name].partner or self.baseline

    def overrides(self, name: str) -> tuple[str, ...]:
        """The overrides of a variant."""
        return self.arms[name].overrides or (f"attn={name}",)

    def quick_tasks(self) -> "Protocol":
        """The same with the tasks of --quick alone."""
        quick = {name: task for name, task in self.tasks.items() if task.quick}
        return self.model_copy(update={"tasks": quick})


@dataclass(frozen=True)
class Reading:
    """What a run says after n or after 4 n steps; the default is that of a run that diverged."""

    score: float = math.inf  # which run is better, and which rate: smaller is better
    nats: float = math.inf
    steps: float = math.inf  # to an accuracy of 90 %
    points: float = -math.inf  # of accuracy above that without attention
    solved: bool = False

    def in_unit(self, unit: str) -> float:
        """Its number in one of the three units of cells."""
        return {"nats": self.nats, "steps": self.steps, "points": self.points}[unit]


@dataclass(frozen=True, kw_only=True)
class Trial(Arm):
    """A variant on a task, after n or 4 n steps: an arm whose rate may follow from another's."""

    task: Task
    steps: int
    seeds: Sequence[int]  # of the test
    before: "Trial | None" = None  # whose rate comes first: n steps, or the partner of a control
    share: float = 0.0  # of a control: its rate is this share of that of its partner

    def choose(self, rows: Mapping[Run, Row]) -> Choice:
        """As for claims. At 4 n, only the best rate at n and its neighbors are tried, or none if
        all selection runs at that rate solved the task within n steps."""
        before = self.before
        if before is None:
            return super().choose(rows)
        choice = before.choose(rows)
        if choice.rate is None:
            return choice
        if self.share:
            return Choice(float(f"{choice.rate * self.share:.2g}"))
        at_best = [before.read(rows[before.run(seed, choice.rate)]) for seed in self.selection]
        if self.task.length is None and all(reading.solved for reading in at_best):
            return choice
        rates = sorted(choice.scores)
        at = rates.index(choice.rate)
        return replace(self, rates=tuple(rates[max(0, at - 1) : at + 2]), before=None).choose(rows)

    def score(self, row: Row) -> float:
        """What decides a learning rate."""
        return self.read(row).score

    def read(self, row: Row) -> Reading:
        """What a run of a text or of a task says after these steps."""
        diverged_at = row["values"].get("diverged_at_step")
        if diverged_at and diverged_at <= self.steps:
            return Reading()
        if self.task.floor is None:
            loss = float(row["values"]["curve"]["losses"][str(self.steps)])
            return Reading(score=loss, nats=loss)
        return self._read_accuracy(row["values"], self.task.floor)

    def _read_accuracy(self, values: Mapping[str, Any], floor: float) -> Reading:
        """A run that gets to 90 % is better the sooner it does (at 4 n: if it solved the task);
        others are compared by their accuracy."""
        every = values["curve"]["every"]
        curve = values["curve"]["accuracy"][: self.steps // every]
        reached = next((every * n for n, x in enumerate(curve, 1) if x >= REACHED), math.inf)
        solved = min(curve[-2:]) >= SOLVED
        accuracy = curve[-1]
        if self.steps > self.task.steps:
            at_other_length = self.task.length is not None
            accuracy = values["accuracy_at_length" if at_other_length else "val_accuracy"]
            if accuracy is None:  # NaN: the model overflows on sequences of this length
                return Reading()
            if at_other_length or not solved:
                reached = math.inf
        points = 100 * (accuracy - floor)
        # From -1 to 0 for runs that got there, so that they are before all others.
        score = 1 - accuracy if math.isinf(reached) else reached / self.steps - 1
        return Reading(score=score, steps=reached, points=points, solved=solved)


def trial(protocol: Protocol, name: str, task: Task, times: int) -> Trial:
    """A variant on a task, after n or 4 n steps."""
    arm = protocol.arms[name]
    n = task.steps
    words = [*task.overrides, *protocol.common]
    if task.floor is not None:
        words.append("callbacks=solved")
    words += [word for word in protocol.overrides(name) if word not in task.overrides]
    before = None
    if arm.rate_of_sdpa:
        before = trial(protocol, protocol.partner(name), task, times)
    elif times > 1:
        before = trial(protocol, name, task, 1)
    return Trial(
        overrides=tuple(words),
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


def at_n_and_4n(rows: Mapping[Run, Row]) -> dict[Run, Row]:
    """Rows by runs of n and of 4 n steps: a run of 4 n also says what one of n would, and a run of
    n that ended early what one of 4 n would."""
    found = dict(rows)
    for run, row in rows.items():
        n = task_steps(run)
        if run == with_steps(run, LONG * n):
            found[with_steps(run, n)] = row
        elif row["status"] != "finished":
            found.setdefault(with_steps(run, LONG * n), row)
    return found


def task_steps(run: Run) -> int:
    """The steps n of the task of a run, also if the run has 4 n."""
    return int(last_of(run.overrides)["trainer.val_check_interval"].partition("=")[2])


def with_steps(run: Run, steps: int) -> Run:
    """The same run for another number of steps."""
    words = []
    for word in run.overrides:
        is_steps = word.startswith("trainer.max_steps=")
        words.append(f"trainer.max_steps={steps}" if is_steps else word)
    return Run(tuple(words), run.seed)


@dataclass(frozen=True)
class Cell:
    """A variant on a task after n or 4 n steps, against its baseline, by ten seeds.

    The unit is that of what the verdict counts in most runs of both: nats, steps to 90 %, or
    points of accuracy above that without attention.
    """

    rows: list[Row]  # of the variant's test
    verdict: str = "not finished"  # also "baseline"
    unit: str = ""
    value: float = math.nan  # median
    difference: MedianInterval = NO_INTERVAL
    at_edge: bool = False
    diverged: int = 0
    failed: int = 0  # runs that diverged or, where steps are counted, did not get to 90 %
    rate: float = math.nan  # the learning rate, and that of the partner
    partner_rate: float = math.nan
    pilots: int = 0  # runs by which each rate was chosen
    agree: int = 0  # seeds on the side of most, better or worse
    other_processor: int = 0  # seeds whose partner ran on another processor
    first: str = ""  # the verdict before the runs were repeated; `verdict`: if both agree
    again: "Cell | None" = None  # the same runs with another instruction set

    @property
    def has_verdict(self) -> bool:
        """Whether it was decided, or left open, by counting seeds."""
        return self.verdict in VERDICTS.values()


class CellKey(NamedTuple):
    """Where a cell stands in the table of the ranking."""

    variant: str
    task: str
    times: int  # 1 or 4, for n or 4 n steps


Table = dict[CellKey, Cell]


def ranking_table(
    protocol: Protocol,
    rows: Mapping[Run, Row],
    names: Iterable[str],
    again: Mapping[Run, Row] | None = None,
) -> Table:
    """Every cell of some variants. `again`: rows of another instruction set; a verdict that
    changes with it is open."""
    both = at_n_and_4n(rows)
    repeated = at_n_and_4n(with_tests(rows, again)) if again else {}
    table = {}
    for key in starmap(CellKey, product(names, protocol.tasks, (1, LONG))):
        cell = judge_cell(protocol, both, key)
        if repeated and cell.has_verdict:
            then = judge_cell(protocol, repeated, key)
            if then.has_verdict:
                verdict = cell.verdict if then.verdict == cell.verdict else "open"
                cell = replace(cell, verdict=verdict, first=cell.verdict, again=then)
        table[key] = cell
    return table


def judge_cell(protocol: Protocol, rows: Mapping[Run, Row], key: CellKey) -> Cell:
    """The verdict on a variant, and the number that it counts."""
    task = protocol.tasks[key.task]
    partner = protocol.partner(key.variant)
    mine = trial(protocol, key.variant, task, key.times)
    other = trial(protocol, partner, task, key.times)
    my_test = read_test(mine, rows, mine.seeds)
    my_readings = [mine.read(row) for row in my_test.rows]
    other_test = read_test(other, rows, other.seeds)
    other_readings = [other.read(row) for row in other_test.rows]
    if my_test.missing or other_test.missing:
        return Cell(my_test.rows)
    if most_reached(my_readings) and most_reached(other_readings):
        unit = "steps"
    else:
        unit = "nats" if task.floor is None else "points"
    values = [reading.in_unit(unit) for reading in my_readings]
    cell = Cell(
        my_test.rows,
        "baseline",
        unit,
        median_interval(values).median,
        at_edge=my_test.choice.at_edge,
        diverged=sum(math.isinf(reading.score) for reading in my_readings),
        failed=sum(not math.isfinite(value) for value in values),
        rate=my_test.choice.rate or math.nan,
        partner_rate=other_test.choice.rate or math.nan,
        pilots=len(task.selection_seeds),
    )
    if key.variant == partner:
        return cell
    pairs = list(zip(my_readings, other_readings, strict=True))
    scores = [mine.score - other.score for mine, other in pairs]
    both_rows = zip(my_test.rows, other_test.rows, strict=True)
    tally = judge(scores, 0.0, math.inf)
    apart = [mine.in_unit(unit) - other.in_unit(unit) for mine, other in pairs]
    return replace(
        cell,
        verdict=VERDICTS[tally.verdict],
        difference=bounded_interval(apart),
        agree=max(sum(score > 0 for score in scores), sum(score < 0 for score in scores)),
        other_processor=sum(processor_of(x) != processor_of(y) for x, y in both_rows),
    )


def most_reached(readings: Sequence[Reading]) -> bool:
    """Whether most runs got to 90 %."""
    return 2 * sum(math.isfinite(reading.steps) for reading in readings) > len(readings)


def bounded_interval(values: Sequence[float]) -> MedianInterval:
    """The median with its interval; a NaN may be any number."""
    lowest_median, low, _ = median_interval([-math.inf if math.isnan(x) else x for x in values])
    highest_median, _, high = median_interval([math.inf if math.isnan(x) else x for x in values])
    median = lowest_median if lowest_median == highest_median else math.nan
    return MedianInterval(median, low, high)


def missing_of_ranking(
    protocol: Protocol, rows: Mapping[Run, Row], names: Sequence[str], *, quick: bool
) -> list[Run]:
    """The runs of some variants, and of what they are compared with, that can be made now;
    `quick`: of some tasks, n steps alone."""
    both = at_n_and_4n(rows)
    variants = dict.fromkeys([*names, *map(protocol.partner, names)])
    tasks = [task for task in protocol.tasks.values() if task.quick or not quick]
    lengths = (1,) if quick else (LONG, 1)  # times n
    missing: dict[Run, None] = {}  # in order, each once
    for name, task, times in product(variants, tasks, lengths):
        own = trial(protocol, name, task, times)
        missing |= dict.fromkeys(read_test(own, both, own.seeds).missing)
    return list(missing)


# The words of published rows, which are found by them, for those of today.
AS_IN_ROWS = dict.fromkeys(
    ("model.positions=none", "model=no_positions"), "model.learned_positions=false"
)


def with_own(protocol: Protocol, overrides: Sequence[str]) -> tuple[Protocol, str]:
    """The protocol with the variant of the command line, and its name; BadInput if more than its
    attention differs from the baseline, or from another one such as that without positions."""
    attention = [word for word in overrides if is_of_attention(word)]
    rest = tuple(AS_IN_ROWS.get(w, w) for w in overrides if not is_of_attention(w))
    partners = {}
    for name in map(protocol.partner, protocol.arms):
        settings = [word for word in protocol.overrides(name) if not is_of_attention(word)]
        partners[tuple(settings)] = name
    if not attention or rest not in partners:
        also = " or ".join(map(" ".join, filter(None, partners)))
        why = f"only settings of attn may change, as in attn=gate_head; also {also}"
        raise BadInput(f"{' '.join(overrides)} cannot be ranked: {why}")
    words = (*attention, *rest)
    name = " ".join(words).replace("attn._target_=", "").replace("attn=", "")
    mine = RankedVariant(says="yours", overrides=words, partner=partners[rest])
    return protocol.model_copy(update={"arms": protocol.arms | {name: mine}}), name


def is_of_attention(word: str) -> bool:
    """Whether an override is one of attention."""
    return word.lstrip("+").startswith(("attn=", "attn."))


def declaration_of_cell(content: Any, name: str, task: str) -> Any:
    """What ranking.yaml declares of a variant on a task; None if it does not."""
    if task not in content["tasks"] or name not in content["arms"]:
        return None
    of_task = content["tasks"][task]
    of_variant = {"overrides": [f"attn={name}"]} | content["arms"][name]
    declared = {key: content[key] for key in ("test_seeds", "baseline", "common")}
    for what, entry in (("task", of_task), ("variant", of_variant)):
        declared[what] = [entry["overrides"], *(entry.get(key) for key in DECLARED_OF_CELL)]
    return declared


def exploratory_cells(protocol: Protocol, table: Table) -> str:
    """Why rows of the table are not those of the declared protocol, in a sentence; or nothing."""
    made = set()
    for key, cell in table.items():
        rows = cell.rows + (cell.again.rows if cell.again else [])
        made |= {(row["commit"], (key.variant, key.task)) for row in rows}
    return undeclared(protocol.file, made, declaration_of_cell)


def find_ranking() -> Protocol:
    """The ranking in ./experiments, or that of the lab."""
    file = Path("experiments/ranking/ranking.yaml")
    return Protocol.read(file if file.exists() else lab_path(str(file)))


def open_ranking(
    protocol: Protocol, names: Sequence[str], outputs: Path, *, own: bool, quick: bool
) -> Work:
    """What `attnlab rank` does for some variants: all cells or, with `quick`, those of some tasks
    and the shorter length. The rows of a variant of the user, `own`, are kept apart."""
    outputs = own_directory(protocol, names, outputs, own=own)
    rows, commit = open_rows(protocol.folder / COMMITTED, outputs / COMMITTED, apart=own)
    missing = partial(missing_of_ranking, protocol, rows, names, quick=quick)
    return Work(protocol.folder, outputs, rows, commit, missing)


def own_directory(protocol: Protocol, names: Sequence[str], outputs: Path, *, own: bool) -> Path:
    """Where rows that are not committed are kept; for the user's own variant, a directory for its
    settings and code."""
    outputs = outputs.resolve()
    if not own:
        return outputs
    short = re.sub(r"[^a-zA-Z0-9_.=,-]+", "_", names[0])[:60]
    return outputs / f"{short}~{digest_of_healthy(protocol, names[0])}"


def digest_of_healthy(protocol: Protocol, name: str) -> str:
    """A digest of the settings and code of a variant; BadInput if it does not pass the checkup."""
    from attncheck import checkup

    config = config_of(protocol, name)
    result = checkup(config.model(len(config.data().alphabet)), name=name)
    if not result.healthy:
        raise BadInput(f"{name} does not pass the checkup and is not ranked:\n{result}")
    return hashlib.sha256(repr(config.settings.attn).encode()).hexdigest()[:8]


def is_without_pattern(protocol: Protocol, name: str) -> bool:
    """Whether a layer of a variant has no pattern, so that what it reads is not measured."""
    from attnlab.attention.layer import HasPattern

    config = config_of(protocol, name)
    blocks = config.model(len(config.data().alphabet)).blocks
    return not all(isinstance(block.attn, HasPattern) for block in blocks)


def config_of(protocol: Protocol, name: str) -> Any:
    """The composed settings of a variant on the first task."""
    task = next(iter(protocol.tasks.values()))
    words = (*task.overrides, *protocol.overrides(name))
    return composed(words, lab_path("experiments"))[0]
