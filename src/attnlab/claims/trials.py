"""Fair trials: every arm at its best learning rate, seed by seed. Claims and the ranking use them.

A trial asks two things of the rows so far: which runs are still missing, and what those that are
there say. Nothing else decides what is trained, so every call continues where the last one ended.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product, takewhile
from statistics import fmean
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypedDict

FIRST_PILOT = 1000  # seeds from here on are those of pilots, which no test uses
# The instruction sets of rows that are older than their record, by the commit of a test or else by
# the processor. Rows that were trained again tell them, by losses that are equal to the last bit:
# - the Xeon: three with AVX-512 (more_heads, both arms of `wide`; recall_state, `large_state`;
#   seed 300);
# - unscaled: three with AVX-512 (the arms of 4,800 steps, seed 500), and none with SSE4.2 but for
#   one without attention;
# - identical_heads: one with AVX2 (`tied output`, seed 300), which is not equal with SSE4.2;
# - flipped_mask: none of four with AVX2 (sdpa, seeds 300 to 302; flipped, seed 300), nor of three
#   with SSE4.2, so AVX-512 is left.
SETS_BY_COMMIT = {
    "8547af4013719d33d0ca589ffa781bad72d44049": "AVX512",  # unscaled
    "45159ed9db5b796debb25e16a22ad9411a804d21": "AVX2",  # identical_heads
    "44cce883825052c2de0fb68c89f102ea7774f50f": "AVX512",  # flipped_mask
}
SETS_BY_PROCESSOR = {"Intel(R) Xeon(R) Processor": "AVX512"}
ChoosesRate = Literal["val_loss", "val_accuracy"]  # the lowest, or the highest
EXTENSIONS = 2  # how often the rates are extended while the best one is the first or the last


class RunResult(TypedDict):
    """What one run gave."""

    overrides: list[str]
    seed: int
    status: str  # finished, stopped or diverged
    values: dict[str, Any]  # numbers of metrics.json; of the ranking also the curve and the costs
    cpu_seconds: float | None  # null where it was not measured


class Row(RunResult, total=False):
    """A line of rows.jsonl: what a run gave, and where it was made."""

    commit: str
    machine: str  # model of the processor, and version of torch
    instruction_set: str  # rows that are older than --again have none


class Run(NamedTuple):
    """One training, or one measurement; its row is kept under it."""

    overrides: tuple[str, ...]
    seed: int

    def __str__(self) -> str:
        return f"{' '.join(self.overrides)} seed={self.seed}"


class Choice(NamedTuple):
    """The learning rate of an arm, or the runs that are missing for its choice."""

    rate: float | None = None  # None: it is not chosen yet, or the arm has no rates to choose from
    missing: Sequence[Run] = ()
    scores: Mapping[float, float] = MappingProxyType({})  # rate -> mean by which it was chosen
    at_edge: bool = False  # the best rate is the lowest or the highest of those that were tried


class Tested(NamedTuple):
    """What there is of the test of an arm, and what is missing."""

    rows: list[Row]  # at the best rate, a row a seed, up to the first seed without one
    missing: Sequence[Run]  # while the rate is not chosen, the runs that choose it
    choice: Choice


@dataclass(frozen=True)
class Arm:
    """One side of a comparison. Without rates, it is trained as its overrides say."""

    overrides: tuple[str, ...]
    rates: tuple[float, ...] = ()
    selection: Sequence[int] = range(FIRST_PILOT, FIRST_PILOT + 3)  # seeds that choose the rate
    floor: float = 0.1  # the rate decays to this share of itself; 1: it is constant
    last: tuple[str, ...] = ()  # overrides that are written after the rate
    chosen_by: ChoosesRate = "val_loss"

    def run(self, seed: int, rate: float | None = None) -> Run:
        """The run of a seed at a learning rate, which decays to `floor` times itself; None: with
        the rate that the overrides have."""
        if rate is None:
            return Run((*self.overrides, *self.last), seed)
        words = (f"optim.lr={rate:g}", f"optim.min_lr={rate * self.floor:g}")
        return Run((*self.overrides, *words, *self.last), seed)

    def score(self, row: Row) -> float:
        """What decides a learning rate, the loss or minus the accuracy: smaller is better, and
        infinite for a run that diverged."""
        if self.chosen_by == "val_accuracy":
            return -metric_of(row, "val_accuracy", worst=-math.inf)
        return metric_of(row, "val_loss", worst=math.inf)

    def choose(self, rows: Mapping[Run, Row]) -> Choice:
        """The rate with the lowest mean score, or the runs that are missing to choose it; neither
        if the arm has no rates. While the best one is the lowest or the highest that was tried,
        the next one beyond it is tried too, `EXTENSIONS` times at most."""
        if not self.rates:
            return Choice()
        tried = sorted(self.rates)
        while True:
            runs = [self.run(seed, rate) for rate, seed in product(tried, self.selection)]
            missing = [run for run in runs if run not in rows]
            if missing:
                return Choice(missing=missing)
            scores = {rate: self.mean_score(rate, rows) for rate in tried}
            best = min(scores, key=scores.__getitem__)
            at_edge = best in (tried[0], tried[-1])
            if not at_edge or len(tried) == len(self.rates) + EXTENSIONS:
                return Choice(best, scores=scores, at_edge=at_edge)
            neighbor = tried[1] if best == tried[0] else tried[-2]
            beyond = best**2 / neighbor  # as many times the best as the best is of its neighbor
            tried.append(float(f"{beyond:.2g}"))
            tried.sort()

    def mean_score(self, rate: float, rows: Mapping[Run, Row]) -> float:
        """The mean score of a rate over the seeds that choose it, whose rows are all there."""
        return fmean(self.score(rows[self.run(seed, rate)]) for seed in self.selection)


def read_test(arm: Arm, rows: Mapping[Run, Row], seeds: Sequence[int]) -> Tested:
    """What the rows have of the test of an arm with some seeds, at its best rate. While that is
    not chosen, there are no rows of the test, and the missing runs are those that choose it."""
    choice = arm.choose(rows)
    if choice.missing:
        return Tested([], choice.missing, choice)
    runs = [arm.run(seed, choice.rate) for seed in seeds]
    # Only up to the first gap: rows of several arms are paired by their place.
    found = [rows[run] for run in takewhile(lambda run: run in rows, runs)]
    return Tested(found, [run for run in runs if run not in rows], choice)


def each_once(runs_of_tests: Iterable[Iterable[Run]]) -> list[Run]:
    """The runs of several tests in order, each once: tests may share runs."""
    return list(dict.fromkeys(chain.from_iterable(runs_of_tests)))


def metric_of(row: Row, metric: str, worst: float = math.nan) -> float:
    """A metric of a row: NaN where it is missing or stored as null, as JSON stores NaN and
    infinity; `worst` for a run that diverged."""
    if row["status"] == "diverged":
        return worst
    stored = row["values"].get(metric)
    value = math.nan if stored is None else float(stored)
    # Where the worst is infinite, as for a loss, what is no number counts as the worst, too.
    if math.isinf(worst) and not math.isfinite(value):
        return worst
    return value


def processor_of(row: Row) -> str:
    """The model of the processor of a row, without the version of torch; empty if the row does not
    name it."""
    return row.get("machine", "").partition(", torch")[0]


def instruction_set_of(row: Row) -> str:
    """The instruction set of a row. For a row from before it was recorded, that of its test or of
    its processor, or an empty string if that is not known."""
    if recorded := row.get("instruction_set"):
        return recorded
    of_test = SETS_BY_COMMIT.get(row.get("commit", ""))
    return of_test or SETS_BY_PROCESSOR.get(processor_of(row), "")


def rows_until_missing(metric: str, rows: Iterable[Row]) -> list[Row]:
    """The rows before the first that lacks a metric. Rows of runs that diverged stay: they have no
    metrics, and count as the worst."""
    return list(
        takewhile(lambda row: row["status"] == "diverged" or metric in row["values"], rows)
    )


def is_pilot(seed: int) -> bool:
    """Whether a seed is one of the pilots, which are run before a test and never in one."""
    return seed >= FIRST_PILOT


def pilots_and_tests(
    with_pilots: Mapping[Run, Row], with_tests: Mapping[Run, Row]
) -> dict[Run, Row]:
    """The pilots among the first rows, which choose the rates, and what is no pilot among the
    second ones."""
    together = {run: row for run, row in with_pilots.items() if is_pilot(run.seed)}
    together |= {run: row for run, row in with_tests.items() if not is_pilot(run.seed)}
    return together


def is_measurement(overrides: Sequence[str]) -> bool:
    """Whether a run trains nothing and only calls a function of its seed: its one override is the
    name of that function, such as measure.function."""
    return len(overrides) == 1 and "=" not in overrides[0]


def without_rate(overrides: Iterable[str]) -> tuple[str, ...]:
    """The overrides without those of the learning rate and of the rate to which it decays."""
    rates = ("optim.lr=", "optim.min_lr=")
    return tuple(word for word in overrides if not word.startswith(rates))
