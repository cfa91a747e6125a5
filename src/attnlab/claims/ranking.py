"""The ranking: every variant against a baseline on every task, by the trials and rule of claims.

experiments/ranking/ranking.yaml is the protocol. A test run has 4 n steps at a constant rate, so
it is also read after n steps; a run that solved its task has ended, and counts for both lengths.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel

from attnlab.claims.declared import Declared, why_undeclared
from attnlab.claims.judge import common_verdict, judge
from attnlab.claims.trials import (
    Arm,
    Choice,
    Row,
    Run,
    Tested,
    each_once,
    pilots_and_tests,
    processor_of,
    read_test,
)
from attnlab.claims.work import composed
from attnlab.errors import BadInput
from attnlab.installation import lab_path
from attnlab.runs.seed_statistics import UNDEFINED, Interval, median_interval
from attnlab.settings.roles import last_of

if TYPE_CHECKING:
    from attnlab.training.config import RunConfig

LONG = 4  # the longer of two trainings of a cell has so many times n steps
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
        """The name of the variant with which a variant is compared."""
        return self.arms[name].partner or self.baseline

    def overrides(self, name: str) -> tuple[str, ...]:
        """The overrides of a variant, which by default is named as its file in conf/attn."""
        return self.arms[name].overrides or (f"attn={name}",)

    def quick_tasks(self) -> "Protocol":
        """The same protocol with the tasks of `attnlab rank --quick` alone."""
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
        """The number of this reading in a unit of cells: nats, steps or points."""
        return {"nats": self.nats, "steps": self.steps, "points": self.points}[unit]


@dataclass(frozen=True, kw_only=True)
class Trial(Arm):
    """A variant on a task, after n or 4 n steps: an arm whose rate may follow from another's."""

    task: Task
    steps: int
    seeds: Sequence[int]  # of the test
    # From whose rate this one follows: that after n steps, or that of the partner of a control.
    rate_from: "Trial | None" = None
    share: float = 0.0  # of a control: its rate is this share of that of its partner

    def choose(self, rows: Mapping[Run, Row]) -> Choice:
        """The best rate, or the runs that are missing for the choice.

        After n steps, it is chosen as for claims. After 4 n, only the best rate after n and its
        two neighbors are tried; or no other if all pilots at that rate solved the task within n
        steps. A control has its share of the rate of its partner.
        """
        source = self.rate_from
        if source is None:
            return super().choose(rows)
        choice = source.choose(rows)
        if choice.rate is None:
            return choice
        if self.share:
            return Choice(float(f"{choice.rate * self.share:.2g}"))
        at_best = [source.read(rows[source.run(seed, choice.rate)]) for seed in self.selection]
        # Runs that solved the task have ended. After 4 n steps there is nothing else to compare,
        # unless accuracy at another length of sequences is.
        if self.task.length is None and all(reading.solved for reading in at_best):
            return choice
        rates = sorted(choice.scores)
        best = rates.index(choice.rate)
        neighbors = tuple(rates[max(0, best - 1) : best + 2])  # with the best one itself
        return replace(self, rates=neighbors, rate_from=None).choose(rows)

    def score(self, row: Row) -> float:
        """The number by which learning rates are compared: smaller is better."""
        return self.read(row).score

    def read(self, row: Row) -> Reading:
        """What a row says after the steps of this trial: of a text, its loss; of a task, what its
        accuracy says. A run that diverged later has not diverged yet."""
        diverged_at = row["values"].get("diverged_at_step")
        if diverged_at and diverged_at <= self.steps:
            return Reading()
        if self.task.floor is None:
            loss = float(row["values"]["curve"]["losses"][str(self.steps)])
            return Reading(score=loss, nats=loss)
        return self._read_accuracy(row["values"], self.task.floor)

    def _read_accuracy(self, values: Mapping[str, Any], floor: float) -> Reading:
        """What a row of a task says, in a trial of the n steps of the task or of 4 n.

        A run whose accuracy reaches 90 % is better the sooner it does, and better than all that do
        not, which are compared by their last accuracy. In a trial of 4 n steps, the 90 % count
        only if the run solved the task; and if the task names another length of sequences, they
        never count: the accuracy at that length decides alone.
        """
        every = values["curve"]["every"]
        accuracies = values["curve"]["accuracy"][: self.steps // every]
        steps_to_90_percent = math.inf
        for number, accuracy in enumerate(accuracies, 1):
            if accuracy >= REACHED:
                steps_to_90_percent = every * number
                break
        solved = min(accuracies[-2:]) >= SOLVED
        last_accuracy = accuracies[-1]
        if self.steps > self.task.steps:  # after 4 n
            at_other_length = self.task.length is not None
            last_accuracy = values["accuracy_at_length" if at_other_length else "val_accuracy"]
            if last_accuracy is None:  # NaN: the model overflows on sequences of this length
                return Reading()
            if at_other_length or not solved:
                steps_to_90_percent = math.inf
        points = 100 * (last_accuracy - floor)
        if math.isinf(steps_to_90_percent):
            score = 1 - last_accuracy  # from 0 to 1
        else:
            score = steps_to_90_percent / self.steps - 1  # from -1 to 0, before all others
        return Reading(score=score, steps=steps_to_90_percent, points=points, solved=solved)


def trial_of(protocol: Protocol, name: str, task: Task, times: int) -> Trial:
    """The trial of a variant on a task: after n steps with `times` = 1, after 4 n with 4."""
    arm = protocol.arms[name]
    n = task.steps
    words = [*task.overrides, *protocol.common]
    if task.floor is not None:  # a task that can be solved: then the run ends
        words.append("callbacks=solved")
    words += [word for word in protocol.overrides(name) if word not in task.overrides]
    rate_from = None
    if arm.rate_of_sdpa:  # a control, whose rate is a share of its partner's
        rate_from = trial_of(protocol, protocol.partner(name), task, times)
    elif times > 1:
        rate_from = trial_of(protocol, name, task, times=1)
    return Trial(
        overrides=tuple(words),
        last=(f"trainer.max_steps={times * n}", f"trainer.val_check_interval={n}"),
        rates=task.rates,
        floor=1.0,  # the rate is constant, so that a run of 4 n steps also says what one of n does
        selection=[arm.seeds_from + seed for seed in task.selection_seeds],
        seeds=[arm.seeds_from + seed for seed in protocol.test_seeds],
        task=task,
        steps=times * n,
        rate_from=rate_from,
        share=arm.rate_of_sdpa,
    )


def rows_at_n_and_4n(rows: Mapping[Run, Row]) -> dict[Run, Row]:
    """The rows, also under runs that were not made: a run of 4 n steps says what one of n would,
    and a run of n that ended early says what one of 4 n would, unless that was made."""
    found = dict(rows)
    for run, row in rows.items():
        n = task_steps(run)
        if run == with_steps(run, LONG * n):
            found[with_steps(run, n)] = row
        elif row["status"] != "finished":  # it solved its task, or diverged
            found.setdefault(with_steps(run, LONG * n), row)
    return found


def task_steps(run: Run) -> int:
    """The steps n of the task of a run, also if the run has 4 n: both are validated every n."""
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
    difference: Interval = UNDEFINED
    at_edge: bool = False
    diverged: int = 0
    failed: int = 0  # runs that diverged or, where steps are counted, did not get to 90 %
    rate: float = math.nan  # the learning rate, and that of the partner
    partner_rate: float = math.nan
    pilots: int = 0  # runs by which each rate was chosen
    agree: int = 0  # seeds on the side of most, better or worse
    other_processor: int = 0  # seeds whose partner ran on another processor
    first_verdict: str = ""  # that of the first runs, if they were repeated; `verdict` is of both
    again: "Cell | None" = None  # the same runs with another instruction set

    @property
    def has_verdict(self) -> bool:
        """Whether it is better, worse or open, and not unfinished or the baseline."""
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
    """Every cell of some variants: on every task, after n and after 4 n steps. `again`: rows of
    the repetition with another instruction set; a verdict that changes with it is open."""
    both = rows_at_n_and_4n(rows)
    repeated = rows_at_n_and_4n(pilots_and_tests(rows, again)) if again else {}
    table = {}
    for key in starmap(CellKey, product(names, protocol.tasks, (1, LONG))):
        cell = judge_cell(protocol, both, key)
        if repeated and cell.has_verdict:
            then = judge_cell(protocol, repeated, key)
            if then.has_verdict:
                verdict = common_verdict([cell.verdict, then.verdict])
                cell = replace(cell, verdict=verdict, first_verdict=cell.verdict, again=then)
        table[key] = cell
    return table


class Side(NamedTuple):
    """The test of a variant on a task."""

    tested: Tested
    readings: list[Reading]  # one a seed


def side_of_cell(protocol: Protocol, rows: Mapping[Run, Row], key: CellKey) -> Side:
    """The test of a variant in a cell, as far as there are rows of it, and what each row says."""
    own = trial_of(protocol, key.variant, protocol.tasks[key.task], key.times)
    tested = read_test(own, rows, own.seeds)
    return Side(tested, [own.read(row) for row in tested.rows])


def judge_cell(protocol: Protocol, rows: Mapping[Run, Row], key: CellKey) -> Cell:
    """A cell, by the rows of its variant and of the partner; "not finished" if one of them lacks
    rows. Steps are counted if most runs of both reached 90 %; if not, nats or points."""
    task = protocol.tasks[key.task]
    partner = protocol.partner(key.variant)
    mine = side_of_cell(protocol, rows, key)
    other = side_of_cell(protocol, rows, key._replace(variant=partner))
    if mine.tested.missing or other.tested.missing:
        return Cell(mine.tested.rows)
    if most_reached_90_percent(mine.readings) and most_reached_90_percent(other.readings):
        unit = "steps"
    else:
        unit = "nats" if task.floor is None else "points"
    values = [reading.in_unit(unit) for reading in mine.readings]
    cell = Cell(
        mine.tested.rows,
        "baseline",
        unit,
        median_interval(values).median,
        at_edge=mine.tested.choice.at_edge,
        diverged=sum(math.isinf(reading.score) for reading in mine.readings),
        # Steps to 90 % that were never reached are infinite, as are nats of a run that diverged.
        failed=sum(not math.isfinite(value) for value in values),
        rate=mine.tested.choice.rate or math.nan,
        partner_rate=other.tested.choice.rate or math.nan,
        pilots=len(task.selection_seeds),
    )
    return cell if key.variant == partner else compared_cell(cell, mine, other)


def compared_cell(cell: Cell, mine: Side, other: Side) -> Cell:
    """The cell with its verdict, by the test of its variant against that of the partner, seed by
    seed, and with the difference of both in its unit."""
    pairs = list(zip(mine.readings, other.readings, strict=True))
    scores = [a.score - b.score for a, b in pairs]  # above 0: worse than the partner
    differences = [a.in_unit(cell.unit) - b.in_unit(cell.unit) for a, b in pairs]
    rows = zip(mine.tested.rows, other.tested.rows, strict=True)
    return replace(
        cell,
        verdict=VERDICTS[judge(scores, 0.0, math.inf).verdict],
        difference=interval_despite_nan(differences),
        agree=max(sum(score > 0 for score in scores), sum(score < 0 for score in scores)),
        other_processor=sum(processor_of(a) != processor_of(b) for a, b in rows),
    )


def most_reached_90_percent(readings: Sequence[Reading]) -> bool:
    """Whether more than half of the runs reached an accuracy of 90 %."""
    return 2 * sum(math.isfinite(reading.steps) for reading in readings) > len(readings)


def interval_despite_nan(values: Sequence[float]) -> Interval:
    """The median with its interval. A NaN, as the difference of two runs that diverged, may be any
    number: so the interval has all that these may make of it, and the median is NaN if it depends
    on them."""
    lowest_median, low, _ = median_interval([-math.inf if math.isnan(x) else x for x in values])
    highest_median, _, high = median_interval([math.inf if math.isnan(x) else x for x in values])
    median = lowest_median if lowest_median == highest_median else math.nan
    return Interval(median, low, high)


def missing_of_ranking(
    protocol: Protocol, rows: Mapping[Run, Row], names: Sequence[str], *, quick: bool
) -> list[Run]:
    """The runs of some variants, and of those with which they are compared, that can be made now;
    with `quick`, of the tasks of --quick and after n steps alone."""
    variants = dict.fromkeys([*names, *map(protocol.partner, names)])
    tasks = (protocol.quick_tasks() if quick else protocol).tasks
    lengths = (1,) if quick else (LONG, 1)
    return missing_of_cells(protocol, rows, starmap(CellKey, product(variants, tasks, lengths)))


def missing_of_cells(
    protocol: Protocol, rows: Mapping[Run, Row], cells: Iterable[CellKey]
) -> list[Run]:
    """The runs that some cells lack and that can be made now, without those of their partners."""
    both = rows_at_n_and_4n(rows)
    tests = []
    for key in cells:
        own = trial_of(protocol, key.variant, protocol.tasks[key.task], key.times)
        tests.append(read_test(own, both, own.seeds))
    return each_once(test.missing for test in tests)


# The words of published rows, which are found by them, for those of today.
AS_IN_ROWS = dict.fromkeys(
    ("model.positions=none", "model=no_positions"), "model.learned_positions=false"
)


def with_own_variant(protocol: Protocol, overrides: Sequence[str]) -> tuple[Protocol, str]:
    """The protocol with a variant of the user, of these overrides, and the name that it has there.

    It is compared with the baseline, or with the partner of another variant, such as that without
    positions: the one from which it differs in attention alone. BadInput if there is none.
    """
    attention = [word for word in overrides if is_of_attention(word)]
    # What says the same in other words is said as in the rows of the partner.
    rest = tuple(AS_IN_ROWS.get(w, w) for w in overrides if not is_of_attention(w))
    partners = {}  # overrides that are not of attention -> name
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
    """Whether an override chooses the attention or one of its settings, with or without Hydra's
    + before it."""
    return word.lstrip("+").startswith(("attn=", "attn."))


def declaration_of_cell(content: Any, name: str, task: str) -> Any:
    """What the content of a ranking.yaml declares of a variant on a task, to be compared with what
    it declared when the runs were made; None if it lacks one of them. Words may change."""
    if task not in content["tasks"] or name not in content["arms"]:
        return None
    of_task = content["tasks"][task]
    of_variant = {"overrides": [f"attn={name}"]} | content["arms"][name]
    declared = {key: content[key] for key in ("test_seeds", "baseline", "common")}
    for what, entry in (("task", of_task), ("variant", of_variant)):
        declared[what] = [entry["overrides"], *(entry.get(key) for key in DECLARED_OF_CELL)]
    return declared


def why_exploratory_cells(protocol: Protocol, table: Table) -> str:
    """Why rows of the table, or of its repetition, are not those of the declared protocol, in a
    sentence; empty if they are."""
    tested = set()
    for key, cell in table.items():
        rows = cell.rows + (cell.again.rows if cell.again else [])
        tested |= {(row["commit"], (key.variant, key.task)) for row in rows}
    return why_undeclared(protocol.file, tested, declaration_of_cell)


def find_ranking() -> Protocol:
    """The protocol of the ranking in ./experiments or, if there is none, of that of the lab."""
    file = Path("experiments/ranking/ranking.yaml")
    return Protocol.read(file if file.exists() else lab_path(str(file)))


def is_without_pattern(protocol: Protocol, name: str) -> bool:
    """Whether some layer of a variant has no attention pattern, so that what it reads cannot be
    measured."""
    from attnlab.attention.layer import HasPattern

    config = config_of(protocol, name)
    blocks = config.model(len(config.data().alphabet)).blocks
    return not all(isinstance(block.attn, HasPattern) for block in blocks)


def config_of(protocol: Protocol, name: str) -> "RunConfig":
    """The checked settings of a variant on the first task, for what is the same on all tasks."""
    task = next(iter(protocol.tasks.values()))
    words = (*task.overrides, *protocol.overrides(name))
    config, _ = composed(words, lab_path("experiments"))
    return config
