"""What other committed rows say of the same arms: the same model, data, attention and steps.

A claim is judged by its own rows. Another claim, or the ranking, may have trained the same arms at
other learning rates and with other seeds. One question has one answer: where such rows contradict
a prediction, it is open. And a prediction whose arms all had rows before it was declared was not
at risk.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from attnlab.claims.claim import Claim
from attnlab.claims.finding import Finding
from attnlab.claims.judge import FEWEST_JUDGED, judge
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
# Settings of the data that say what is measured beside the loss.
NOT_TRAINED_ON = ("data.eval_lengths",)


def committed_rows(experiments: Path) -> RowsByFile:
    """All rows beside the claims by their file, also those of the ranking and of floors."""
    return {file: Rows(file) for file in sorted(experiments.glob("*/rows*.jsonl"))}


@dataclass(frozen=True)
class OtherReading:
    """What a row says after the steps of an arm that it trained alike, at one of its rates."""

    row: Row
    rate: str
    steps: int
    is_last: bool  # the run had as many steps; otherwise its curve is read

    def score(self, metric: str) -> float | None:
        """The metric; None if the row does not have it."""
        values = self.row["values"]
        if self.row["status"] == "diverged" or (self.is_last and metric in values):
            return metric_of(self.row, metric, worst=math.inf)
        if self.is_last:
            return None
        curve = values["curve"]
        if metric == "val_loss" and str(self.steps) in curve["losses"]:
            return float(curve["losses"][str(self.steps)])
        at = self.steps // curve["every"]
        if metric == "val_accuracy" and at <= len(curve["accuracy"]):
            return float(curve["accuracy"][at - 1])
        return None


def readings_of(
    arm: Arm, own: Sequence[Row], rows: Mapping[Run, Row], experiments: Path
) -> list[OtherReading]:
    """The rows that trained the same as an arm, with any seed and learning rate. `own` are rows of
    the arm.

    Equal models and data have equal sizes, so only rows with these are composed, which takes a
    while.
    """
    if is_measurement(arm.overrides) or not own or sizes_of(own[0]) is None:
        return []
    mine = arm_settings(without_rate(arm.overrides), experiments)
    steps = mine["trainer.max_steps"]
    found = []
    for run, row in rows.items():
        if sizes_of(row) != sizes_of(own[0]):
            continue
        theirs = arm_settings(without_rate(run.overrides), experiments)
        is_last = theirs["trainer.max_steps"] == steps
        is_passed = theirs["trainer.max_steps"] > steps and has_constant_rate(run, row)
        if (is_last or is_passed) and what_is_trained(theirs) == what_is_trained(mine):
            rate = last_of(run.overrides).get("optim.lr", "")
            found.append(OtherReading(row, rate, steps, is_last))
    return found


def sizes_of(row: Row) -> tuple[float, float] | None:
    """The parameters of the model of a row, and the tokens of a step; None of a measurement."""
    values = row["values"]
    if "parameters" not in values:
        return None
    return values["parameters"], values["tokens"] / values["steps"]


def has_constant_rate(run: Run, row: Row) -> bool:
    """Whether a run has a curve, and a rate that does not decay: after n steps, it says what a run
    of n steps would."""
    typed = last_of(run.overrides)
    rates = [typed.get(key, "").partition("=")[2] for key in ("optim.lr", "optim.min_lr")]
    return "curve" in row["values"] and rates[0] == rates[1]


def what_is_trained(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of model, data and attention."""
    found = {}
    for key, value in settings.items():
        if key.partition(".")[0] in ("model", "data", "attn") and key not in NOT_TRAINED_ON:
            found[key] = value
    return found


def scores_at_one_rate(readings: Sequence[OtherReading], metric: str) -> dict[int, float]:
    """The metric by seed, without pilots, at the rate that most seeds have; of several, at the one
    with the lowest mean."""
    by_rate: dict[str, dict[int, float]] = defaultdict(dict)
    for reading in readings:
        score = reading.score(metric)
        if score is not None and not is_pilot(reading.row["seed"]):
            by_rate[reading.rate][reading.row["seed"]] = score
    if not by_rate:
        return {}
    return min(by_rate.values(), key=lambda of_rate: (-len(of_rate), fmean(of_rate.values())))


def judged_by_others(
    claim: Claim, finding: Finding, committed: RowsByFile
) -> Iterator[tuple[str, Finding]]:
    """A finding as other claims, or the ranking, would have it, by the rows of each of their files
    that has at least ten seeds of all its arms."""
    prediction = finding.prediction
    for file, rows in committed.items():
        if file.parent == claim.folder:
            continue
        scores = {}
        for name, arm in finding.arms.items():
            readings = readings_of(arm, finding.rows[name], rows, claim.folder.parent)
            scores[name] = scores_at_one_rate(readings, prediction.metric)
        seeds = sorted(set.intersection(*map(set, scores.values())))
        if len(seeds) < FEWEST_JUDGED:
            continue
        by_arm = {name: [of_arm[seed] for seed in seeds] for name, of_arm in scores.items()}
        values = [prediction.value(of_seed) for of_seed in zip(*by_arm.values(), strict=True)]
        tally = judge(values, prediction.above, prediction.below, prediction.always, len(values))
        there = replace(finding, seeds=seeds, scores=by_arm, values=values, tally=tally)
        yield file.parent.name, there
