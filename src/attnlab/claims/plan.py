"""What is to be run: from claims to tasks, each done once however many claims ask for it."""

import hashlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from attnlab.claims.claim import Claim, Effort, Measured, Reading, Trained, source_of
from attnlab.claims.discover import code_digest
from attnlab.claims.paths import Places
from attnlab.claims.resolve import Cell, Cells, setting

Key = tuple[str, str, str, int]  # claim, part, arm, seed


@dataclass
class Task:
    """A run with the readings of it, or a measurement.

    Args:
        id: of its row.
        seconds: estimate.
        message: what the worker is told, JSON.
        readings: ids of the readings that are still to be made.
        done: the row is there, and not of a failure.
    """

    id: str
    seconds: float
    message: dict[str, Any]
    readings: dict[str, dict[str, str]] = field(default_factory=dict)
    done: bool = False

    @property
    def label(self) -> str:
        return str(self.message["label"])


@dataclass
class Plan:
    """All tasks, and which rows belong to which part.

    Args:
        tasks: in the order in which they are done.
        rows: (claim, part, arm, seed) -> id of the row, and of its reading ("" without one).
        unmet: (claim, part) -> the precondition that does not hold.
    """

    tasks: dict[str, Task] = field(default_factory=dict)
    rows: dict[Key, tuple[str, str]] = field(default_factory=dict)
    unmet: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def todo(self) -> list[Task]:
        return [task for task in self.tasks.values() if not task.done or task.readings]

    def seconds(self, jobs: int) -> float:
        """Estimate of what is still to do."""
        return sum(task.seconds for task in self.todo) / max(1, jobs)


def make_plan(
    claims: Sequence[Claim], places: Places, *, seeds: int | None = None, gpu: bool = False
) -> Plan:
    """Expand claims; Hydra's folder must be open (`cells.hydra_conf`).

    Args:
        claims: in the order of the report.
        places: the folders, with the budget.
        seeds: instead of each part's own number.
        gpu: whether the overrides for a GPU apply.

    Raises:
        BadInput: a configuration cannot be composed.
    """
    plan = Plan()
    compose = Cells(places.conf, places.root / "cells.json", places.experiments)
    for claim in claims:
        for part in claim.parts:
            effort = part.budgets.get(places.budget)  # type: ignore[call-overload]
            if effort is None:
                continue
            count = seeds if seeds is not None and effort.seeds > 1 else effort.seeds
            if isinstance(part, Trained):
                _add_runs(plan, claim, part, effort, count, gpu, places, compose)
            elif isinstance(part, Measured):
                _add_measurements(plan, claim, part, effort, count, places)
    compose.save()
    _look_what_is_done(plan, places)
    return plan


def _add_runs(
    plan: Plan,
    claim: Claim,
    part: Trained,
    effort: Effort,
    seeds: int,
    gpu: bool,
    places: Places,
    compose: Cells,
) -> None:
    common = (f"experiment={claim.name}", *effort.overrides, *(effort.on_gpu if gpu else ()))
    cells = {arm.name: compose((*common, *arm.overrides)) for arm in part.arms}
    for cell in cells.values():
        for key, wanted in part.given.items():
            found = setting(cell.settings, key)
            if key != "corpus" and found != wanted:  # the corpus is known after the run
                plan.unmet[claim.name, part.name] = f"{key} = {wanted} is asked for, it is {found}"
    if (claim.name, part.name) in plan.unmet:
        return
    for seed in range(seeds):
        for arm, cell in cells.items():
            id_ = f"run-{cell.digest}-s{seed}"
            if id_ not in plan.tasks:
                message = {
                    "kind": "run",
                    "label": f"{claim.name}: {arm}, seed {seed}",
                    "overrides": list(cell.overrides),
                    "seed": seed,
                    "folder": str(cell.folder(seed, places.runs)),
                }
                plan.tasks[id_] = Task(id_, _run_seconds(cell), message)
            reading = _reading_of(claim, part, id_, places)
            if reading:
                reader = {"claim": claim.name, "part": part.name}
                plan.tasks[id_].readings[reading] = reader
            plan.rows[claim.name, part.name, arm, seed] = (id_, reading)


def _reading_of(claim: Claim, part: Trained, run: str, places: Places) -> str:
    if not isinstance(part.metric, Reading):
        return ""
    name = part.metric.read.__name__
    code = code_digest(places.claim_file(claim.name), name)
    return f"{run}-{claim.name}.{name}-{code}"


def _add_measurements(
    plan: Plan, claim: Claim, part: Measured, effort: Effort, seeds: int, places: Places
) -> None:
    name = part.measure.__name__
    code = code_digest(places.claim_file(claim.name), name)
    if name == "<lambda>":
        name = "lambda"
        code = hashlib.sha256(source_of(part.measure).encode()).hexdigest()[:8]
    for seed in range(seeds):
        id_ = f"measure-{claim.name}.{name}-s{seed}-{code}"
        message = {
            "kind": "measure",
            "label": f"{claim.name}: {name.replace('_', ' ')}, seed {seed}",
            "claim": claim.name,
            "part": part.name,
            "budget": places.budget,
            "seed": seed,
        }
        plan.tasks.setdefault(id_, Task(id_, effort.seconds, message))
        plan.rows[claim.name, part.name, "", seed] = (id_, "")


def _look_what_is_done(plan: Plan, places: Places) -> None:
    """Mark tasks whose rows are there; what really was needed corrects the estimate."""
    ratios = []
    for task in plan.tasks.values():
        row = places.read_row(task.id)
        task.done = row is not None and row["status"] != "failed"
        if row is not None and task.done and task.message["kind"] == "run":
            ratios.append(row["times"]["seconds"] / task.seconds)
        task.readings = {
            reading: what
            for reading, what in task.readings.items()
            if (places.read_row(reading) or {"status": "failed"})["status"] == "failed"
        }
    factor = statistics.median(ratios) if len(ratios) >= 3 else 1.0
    for task in plan.tasks.values():
        if task.done:
            task.seconds = 1.0  # a reading
        elif task.message["kind"] == "run":
            task.seconds *= factor


def _run_seconds(cell: Cell) -> float:
    """An estimate: six floating-point operations per weight and character, on one laptop core."""
    model, steps = cell.settings["model"], cell.settings["trainer"]["max_steps"]
    if not {"n_layer", "n_embd", "block_size"} <= model.keys():
        return 3.0 + 0.02 * steps  # not a GPT; corrected by the runs that are done
    weights = 12 * model["n_layer"] * model["n_embd"] ** 2
    characters = cell.settings["data"]["batch_size"] * model["block_size"] * steps
    validated = 2 * 111_540 / 3  # forward only, twice at the end
    return 1.5 + 6 * weights * (characters + validated) / 35e9
