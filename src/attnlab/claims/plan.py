"""What has to be run: from claims to tasks, each done once however many claims ask for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from attnlab.claims.claim import Claim, Measured, RunMetric, Trained
from attnlab.claims.configs import ConfigResolver, ResolvedConfig
from attnlab.claims.declare import Declared
from attnlab.claims.rows import RowStore
from attnlab.claims.source_digest import source_digest
from attnlab.training.run_directory import flat

CORE = 60e9  # floating-point operations per second, of one core
Counts = dict[tuple[str, str], int]  # (claim, prediction) -> how many seeds to look at


@dataclass
class ClaimTask:
    """A run with the metrics to be read from it, or a measurement. It travels to a worker."""

    id: str  # of its row
    kind: Literal["run", "measure", "reference"]  # reference: a few steps pin the training code
    label: str  # for the progress bar
    seed: int
    seconds: float  # estimate
    overrides: tuple[str, ...] = ()  # of a run
    directory: str = ""  # of a run
    source: tuple[str, str] = ("", "")  # claim and prediction that a measurement belongs to
    # Id of the row of a metric -> claim and prediction that read it.
    metrics: dict[str, tuple[str, str]] = field(default_factory=dict)
    # Claims that the row belongs to -> whether it is part of their declared test.
    claims: dict[str, bool] = field(default_factory=dict)
    done: bool = False  # every claim has the row


@dataclass
class Plan:
    """All tasks, and which rows belong to which prediction."""

    tasks: dict[str, ClaimTask] = field(default_factory=dict)
    # Claim, prediction, arm, seed -> id of the row, and of its metric ("" without one).
    rows: dict[tuple[str, str, str, int], tuple[str, str]] = field(default_factory=dict)
    # Claim, prediction -> the precondition that does not hold.
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
    store: RowStore,
    declared: Mapping[str, Declared],
    resolve: ConfigResolver,
    counts: Counts,
) -> Plan:
    """Expand claims; Hydra's directory must be open. A prediction without a count is not run.

    Raises:
        BadInput: a configuration cannot be composed.
    """
    plan = Plan()
    for claim in claims:
        for prediction in claim.predictions:
            count = counts.get((claim.name, prediction.name), 0)
            seeds = range(claim.first_seed, claim.first_seed + count)
            if isinstance(prediction, Trained):
                _add_runs(plan, claim, prediction, seeds, declared[claim.name], resolve)
            elif isinstance(prediction, Measured):
                _add_measurements(plan, claim, prediction, seeds, declared[claim.name])
    _mark_done(plan, store)
    return plan


def _add_runs(
    plan: Plan,
    claim: Claim,
    prediction: Trained,
    seeds: Sequence[int],
    declared: Declared,
    resolve: ConfigResolver,
) -> None:
    configs = resolve.arms(claim, prediction)
    for config in configs.values():
        settings = flat(config.settings) | {"corpus": config.corpus}
        for key, wanted in prediction.given.items():
            if settings.get(key) != wanted:
                found = f"{key} must be {wanted}, but is {settings.get(key)}"
                plan.unmet[claim.name, prediction.name] = found
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
                    str(config.run_directory(seed, resolve.paths.runs)),
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


def _mark_done(plan: Plan, store: RowStore) -> None:
    """Mark tasks whose rows exist, and metrics that are left to be read."""
    for task in plan.tasks.values():
        rows = [row for claim in task.claims if (row := store.get(claim, task.id))]
        task.done = len(rows) == len(task.claims)
        failed = any(row["status"] == "failed" for row in rows)
        task.metrics = {
            id_: source
            for id_, source in task.metrics.items()
            if store.get(source[0], id_) is None and not failed
        }
        if task.done and Path(task.directory).exists():
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
