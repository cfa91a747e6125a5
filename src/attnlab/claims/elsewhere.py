"""What other committed rows say of the same arms: the same model, data, attention and steps.

A claim is judged by its own rows. Another claim, or the ranking, may have trained the same arms at
other learning rates and with other seeds. One question has one answer: where such rows contradict
a prediction, it is open. And a prediction whose arms all had rows before it was declared was not
at risk.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from attnlab.claims.claim import Claim
from attnlab.claims.finding import Finding, tally_of
from attnlab.claims.judge import FEWEST_JUDGED
from attnlab.claims.rows import Rows
from attnlab.claims.trials import (
    Arm,
    Row,
    Run,
    is_measurement,
    is_pilot,
    metric_of,
    without_rate,
)
from attnlab.claims.work import arm_settings
from attnlab.settings.roles import last_of

RowsByFile = Mapping[Path, Mapping[Run, Row]]
# Settings of the data that change no training: the lengths at which a trained model is evaluated.
ONLY_EVALUATED = ("data.eval_lengths",)


def committed_rows(experiments: Path) -> RowsByFile:
    """All committed rows in the directories of a directory of claims, by their file: those of
    claims, of their repetitions, of the ranking and of the floors of tasks."""
    return {file: Rows(file) for file in sorted(experiments.glob("*/rows*.jsonl"))}


@dataclass(frozen=True)
class OtherReading:
    """What a row says of an arm of a claim after the steps of that arm, if it trained the same."""

    row: Row
    rate: str  # the override of its learning rate; empty if it has none
    steps: int  # of the arm
    ends_there: bool  # the run had as many steps; if not, it had more, and its curve is read

    def score(self, metric: str) -> float | None:
        """The metric after the steps of the arm, infinite for a run that diverged; None if the row
        does not have it. A curve has losses by step, and a list of accuracies, one after each
        `every` steps."""
        values = self.row["values"]
        if self.row["status"] == "diverged" or (self.ends_there and metric in values):
            return metric_of(self.row, metric, worst=math.inf)
        if self.ends_there:
            return None
        curve = values["curve"]
        if metric == "val_loss" and str(self.steps) in curve["losses"]:
            return float(curve["losses"][str(self.steps)])
        number = self.steps // curve["every"]
        if metric == "val_accuracy" and number <= len(curve["accuracy"]):
            return float(curve["accuracy"][number - 1])
        return None


def readings_of(
    arm: Arm, own: Sequence[Row], rows: Mapping[Run, Row], experiments: Path
) -> list[OtherReading]:
    """What `rows` say of an arm: those that trained the same model on the same data, with any seed
    and learning rate, for as many steps or for more. Nothing for an arm that trains no model.
    `own` are the rows that its claim has of it, if any: they tell its sizes, so that fewer
    settings must be composed, which is slow.
    """
    if is_measurement(arm.overrides):
        return []
    mine = arm_settings(without_rate(arm.overrides), experiments)
    steps = mine["trainer.max_steps"]
    found = []
    own_sizes = next(filter(None, map(sizes_of, own)), None)  # a run that diverged has none
    for run, row in rows.items():
        if is_measurement(run.overrides):
            continue
        sizes = sizes_of(row)
        # Where sizes differ, models or data do. Some files do not have them.
        if sizes and own_sizes and sizes != own_sizes:
            continue
        theirs = arm_settings(without_rate(run.overrides), experiments)
        # A run that a callback ended has no value after all of its steps.
        ends_there = theirs["trainer.max_steps"] == steps and row["status"] != "stopped"
        passes_there = theirs["trainer.max_steps"] > steps and has_curve_at_one_rate(run, row)
        if not (ends_there or passes_there):
            continue
        if training_settings(theirs) == training_settings(mine):
            rate = last_of(run.overrides).get("optim.lr", "")
            found.append(OtherReading(row, rate, steps, ends_there))
    return found


def training_of(row: Row) -> tuple[int, float | None, float | None]:
    """What tells the trainings of one arm for so many steps apart: the seed, the learning rate and
    that to which it decays; None where they are those of the settings. Rows in which these are
    equal are of the same training, and no second answer."""
    typed = last_of(row["overrides"])
    first, last = (typed.get(key, "").partition("=")[2] for key in ("optim.lr", "optim.min_lr"))
    return row["seed"], float(first) if first else None, float(last) if last else None


def sizes_of(row: Row) -> tuple[float, float] | None:
    """The number of parameters of the model of a row, and of tokens in a training step; None for a
    row that has no model."""
    values = row["values"]
    if "parameters" not in values:
        return None
    return values["parameters"], values["tokens"] / values["steps"]


def has_curve_at_one_rate(run: Run, row: Row) -> bool:
    """Whether a row has a curve of a run whose learning rate does not decay. Such a run says after
    n steps what a run of n steps would; where the rate decays, a longer run decays later."""
    typed = last_of(run.overrides)
    first, last = (typed.get(key, "").partition("=")[2] for key in ("optim.lr", "optim.min_lr"))
    return "curve" in row["values"] and first == last


def training_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of model, attention and data that decide what is trained: without those of
    optimizer and trainer, which arms are compared across, and of what is only evaluated."""
    found = {}
    for key, value in settings.items():
        if key.partition(".")[0] in ("model", "data", "attn") and key not in ONLY_EVALUATED:
            found[key] = value
    return found


class Scored(NamedTuple):
    """The row of a training, and its metric."""

    row: Row
    score: float


def scored_at_one_rate(readings: Sequence[OtherReading], metric: str) -> dict[int, Scored]:
    """The metric by seed, without pilots, at the learning rate that most seeds have; if several
    rates have as many, at the one with the lowest mean. Empty if no row has the metric."""
    by_rate: dict[str, dict[int, Scored]] = defaultdict(dict)
    for reading in readings:
        score = reading.score(metric)
        if score is not None and not is_pilot(reading.row["seed"]):
            by_rate[reading.rate][reading.row["seed"]] = Scored(reading.row, score)

    def by_seeds_then_mean(of_rate: Mapping[int, Scored]) -> tuple[int, float]:
        return -len(of_rate), fmean(of_seed.score for of_seed in of_rate.values())

    return min(by_rate.values(), key=by_seeds_then_mean, default={})


def compares_rates(arms: Collection[Arm]) -> bool:
    """Whether some of the arms differ in nothing but the learning rate that they name."""
    return len({without_rate(arm.overrides) for arm in arms}) < len(arms)


def findings_by_others(
    claim: Claim, finding: Finding, committed: RowsByFile
) -> Iterator[tuple[str, Finding]]:
    """The finding as it would be by the rows of others: the name of a claim, or of the ranking,
    and the finding that its rows give, for each file of others that has ten seeds or more of all
    the finding's arms."""
    prediction = finding.prediction
    if not finding.values:
        return  # what has no seeds yet cannot be contradicted
    if compares_rates(finding.arms.values()):
        return  # rows of others are read at any rate, and cannot say what a rate does
    for file, rows in committed.items():
        if file.parent == claim.folder:
            continue
        chosen = {}
        for name, arm in finding.arms.items():
            readings = readings_of(arm, finding.rows[name], rows, claim.folder.parent)
            chosen[name] = scored_at_one_rate(readings, prediction.metric)
        shared = set.intersection(*map(set, chosen.values()))
        seeds = sorted(seed for seed in shared if not is_own(finding, chosen, seed))
        if len(seeds) < FEWEST_JUDGED:
            continue
        by_arm = {name: [of_arm[seed].score for seed in seeds] for name, of_arm in chosen.items()}
        values = [prediction.value(of_seed) for of_seed in zip(*by_arm.values(), strict=True)]
        tally = tally_of(prediction, values, most_seeds=len(values))
        theirs = replace(finding, seeds=seeds, scores=by_arm, values=values, tally=tally)
        yield file.parent.name, theirs


def is_own(finding: Finding, chosen: Mapping[str, Mapping[int, Scored]], seed: int) -> bool:
    """Whether what others have of a seed are, for all arms, trainings of the finding itself."""
    for name, of_arm in chosen.items():
        if training_of(of_arm[seed].row) not in map(training_of, finding.rows[name]):
            return False
    return True
