"""What has to be run: from claims to tasks, each done once however many claims ask for it."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from attnlab.claims.claim import Claim, Measured, RunMetric, Trained
from attnlab.claims.configs import ConfigResolver, ResolvedConfig
from attnlab.claims.declare import Declared
from attnlab.claims.paths import Paths
from attnlab.claims.rows import RowStore
from attnlab.claims.source_digest import source_digest
from attnlab.training.run_directory import flat

CORE = 60e9  # floating-point operations a second, of one core
RowKey = tuple[str, str, str, int]  # claim, prediction, arm, seed
Counts = dict[tuple[str, str], int]  # (claim, prediction) -> how many seeds to look at


@dataclass
class ClaimTask:
    """A run with the metrics to be read from it, or a measurement. It travels to a worker.

    Args:
        id: of its row.
        kind: run, measure, or reference (a few steps, which pin the training code).
        label: for the progress bar.
        seed: of the run or measurement.
        seconds: estimate.
        overrides, directory: of a run.
        source: claim and prediction that a measurement belongs to.
        metrics: id of the row of a metric -> claim and prediction that read it.
        claims: claims that the row belongs to -> whether it is part of their declared test.
        done: every claim has the row.
    """

    id: str
    kind: Literal["run", "measure", "reference"]
    label: str
    seed: int
    seconds: float
    overrides: tuple[str, ...] = ()
    directory: str = ""
    source: tuple[str, str] = ("", "")
    metrics: dict[str, tuple[str, str]] = field(default_factory=dict)
    claims: dict[str, bool] = field(default_factory=dict)
    done: bool = False


@dataclass
class Plan:
    """All tasks, and which rows belong to which prediction.

    Args:
        tasks: id -> task.
        rows: (claim, prediction, arm, seed) -> id of the row, and of its metric ("" without one).
        unmet: (claim, prediction) -> the precondition that does not hold.
    """

    tasks: dict[str, ClaimTask] = field(default_factory=dict)
    rows: dict[RowKey, tuple[str, str]] = field(default_factory=dict)
    unmet: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def todo(self) -> list[ClaimTask]:
        """What is left, the longest tasks first, so that all processes end together."""
        left = [task for task in self.tasks.values() if not task.done or task.metrics]
        return sorted(left, key=lambda task: -task.seconds)

    def seconds(self, jobs: int) -> float:
        """Estimate of what is still to do."""
        return sum(task.seconds for task in self.todo) / max(1, jobs)


def make_plan(
    claims: Sequence[Claim],
    paths: Paths,
    store: RowStore,
    declared: Mapping[str, Declared],
    resolve: ConfigResolver,
    counts: Counts,
) -> Plan:
    """Expand claims; Hydra's directory must be open (`configs.hydra_conf`).

    Args:
        claims: in the order of the report.
        paths: the directories.
        store: rows that exist.
        declared: claim -> its declaration.
        resolve: resolves configurations.
        counts: how many seeds to look at; a prediction that is missing is not run.

    Raises:
        BadInput: a configuration cannot be composed.
    """
    plan = Plan()
    for claim in claims:
        for prediction in claim.predictions:
            count = counts.get((claim.name, prediction.name), 0)
            seeds = range(claim.first_seed, claim.first_seed + count)
            if isinstance(prediction, Trained):
                _add_runs(plan, claim, prediction, seeds, paths, declared[claim.name], resolve)
            elif isinstance(prediction, Measured):
                _add_measurements(plan, claim, prediction, seeds, declared[claim.name])
    _mark_done(plan, store)
    return plan


def _add_runs(
    plan: Plan,
    claim: Claim,
    prediction: Trained,
    seeds: Sequence[int],
    paths: Paths,
    declared: Declared,
    resolve: ConfigResolver,
) -> None:
    configs = resolve.arms(claim, prediction)
    unmet = unmet_precondition(prediction, configs.values())
    if unmet:
        plan.unmet[claim.name, prediction.name] = unmet
        return
    for seed in seeds:
        for arm, config in configs.items():
            digest = declared.arm_digests.get(arm, config.digest)
            id_ = f"run-{digest}-s{seed}"
            if id_ not in plan.tasks:
                plan.tasks[id_] = ClaimTask(
                    id_,
                    "run",
                    f"{claim.name}: {arm}, seed {seed}",
                    seed,
                    prediction.seconds or run_seconds(config),
                    config.overrides,
                    str(config.run_directory(seed, paths.runs)),
                )
            metric = ""
            if isinstance(prediction.metric, RunMetric):
                read = prediction.metric.read
                metric = f"{id_}-{claim.name}.{read.__name__}-{source_digest(read)}"
                plan.tasks[id_].metrics[metric] = (claim.name, prediction.name)
            plan.tasks[id_].claims[claim.name] = declared.covers(claim, prediction, seed)
            plan.rows[claim.name, prediction.name, arm, seed] = (id_, metric)


def _add_measurements(
    plan: Plan, claim: Claim, prediction: Measured, seeds: Sequence[int], declared: Declared
) -> None:
    name = prediction.measure.__name__.strip("<>")
    code = source_digest(prediction.measure)
    for seed in seeds:
        id_ = f"measure-{claim.name}.{name}-s{seed}-{code}"
        task = ClaimTask(
            id_,
            "measure",
            f"{claim.name}: {name.replace('_', ' ')}, seed {seed}",
            seed,
            prediction.seconds or 5.0,
            source=(claim.name, prediction.name),
        )
        plan.tasks.setdefault(id_, task)
        plan.tasks[id_].claims[claim.name] = declared.covers(claim, prediction, seed)
        plan.rows[claim.name, prediction.name, "", seed] = (id_, "")


def unmet_precondition(prediction: Trained, configs: Iterable[ResolvedConfig]) -> str:
    """The first precondition that an arm does not meet; empty where all are met."""
    for config in configs:
        for key, wanted in prediction.given.items():
            found = config.corpus if key == "corpus" else flat(config.settings).get(key)
            if found != wanted:
                return f"{key} must be {wanted}, but is {found}"
    return ""


def _mark_done(plan: Plan, store: RowStore) -> None:
    """Mark tasks whose rows exist; how long those took corrects the estimate of the others."""
    ratios = []
    for task in plan.tasks.values():
        rows = [row for claim in task.claims if (row := store.get(claim, task.id))]
        task.done = len(rows) == len(task.claims)
        failed = any(row["status"] == "failed" for row in rows)
        if task.done and task.kind == "run" and not failed:
            ratios.append(rows[0]["seconds"] / task.seconds)
        task.metrics = {
            id_: source
            for id_, source in task.metrics.items()
            if store.get(source[0], id_) is None and not failed
        }
    factor = statistics.median(ratios) if len(ratios) >= 3 else 1.0
    for task in plan.tasks.values():
        if task.kind == "run" and not (task.done and Path(task.directory).exists()):
            task.seconds *= factor
        elif task.kind == "run":
            task.seconds = 1.0  # only a metric is missing, and the run's directory is there


def run_seconds(config: ResolvedConfig) -> float:
    """Six floating-point operations for each weight and character, on one core."""
    model, steps = config.settings["model"], config.settings["trainer"]["max_steps"]
    if not {"n_layer", "n_embd", "block_size"} <= model.keys():
        return 3.0 + 0.02 * steps  # not a GPT; corrected by the runs that are done
    weights = 12 * model["n_layer"] * model["n_embd"] ** 2
    characters = config.settings["data"]["batch_size"] * model["block_size"] * steps
    validated = 2 * 111_540 / 3  # forward only, twice at the end
    return 2.3 + 6 * weights * (characters + validated) / CORE
