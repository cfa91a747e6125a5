"""From claims to tasks; a run that several claims need is one task."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from attnlab.claims.claim import Claim, Measured, Prediction, RunMetric, Trained, Values
from attnlab.claims.code_digest import function_digest
from attnlab.claims.configs import ConfigResolver, ResolvedConfig
from attnlab.claims.declare import Declared, read_declared
from attnlab.claims.paths import Paths
from attnlab.claims.rows import Kind, RowStore
from attnlab.claims.trial import PILOT_SEED
from attnlab.runs.settings import flat

CORE = 60e9  # floating-point operations per second, of one core
Counts = dict[tuple[str, str], int]  # (claim, prediction) -> how many seeds to look at


class ClaimSet:
    """Claims with their declarations, rows and configurations, while `hydra_conf` is open."""

    def __init__(
        self,
        paths: Paths,
        claims: Sequence[Claim],
        *,
        fresh: bool = False,
        kind: Kind = "rows",
        resolve: ConfigResolver | None = None,
    ) -> None:
        self.paths, self.claims = paths, claims
        self.resolve = resolve or ConfigResolver(paths)
        names = [claim.name for claim in claims]
        self.store = RowStore(paths, names, fresh=fresh, kind=kind)
        self.declared = dict.fromkeys(names, Declared())  # pilots are run before
        if kind == "rows":
            self.declared = {claim.name: read_declared(claim, self.resolve) for claim in claims}
        self.predictions = [(claim, each) for claim in claims for each in claim.predictions]


def pilots_of(
    claims: Sequence[Claim], paths: Paths, resolve: ConfigResolver, seed: int = PILOT_SEED
) -> ClaimSet:
    """The pilots of claims, from a seed on."""
    claims = [replace(claim, first_seed=seed) for claim in claims]
    return ClaimSet(paths, claims, kind="pilots", resolve=resolve)


@dataclass
class ClaimTask:
    """A run with the metrics to be read from it, or a measurement; it is sent to a worker."""

    id: str  # of its row
    kind: Literal["run", "measure"]
    label: str  # for the line of progress
    seed: int
    seconds: float  # estimate
    overrides: tuple[str, ...] = ()  # of a run
    directory: str = ""  # of a run
    continued: str = ""  # the directory of the run that it continues, if any
    source: tuple[str, str] = ("", "")  # claim and prediction that a measurement belongs to
    # Id of a metric's row -> the claim and prediction that define the metric.
    metrics: dict[str, tuple[str, str]] = field(default_factory=dict)
    # Claims that need the row -> whether it is part of their declared test.
    claims: dict[str, bool] = field(default_factory=lambda: defaultdict(bool))
    done: bool = False  # all of these claims have the row
    extra: dict[str, Any] = field(default_factory=dict)  # added to the row
    # Takes the content of metrics.json, and returns further values for the row of a run.
    read: Callable[[Values], Values] | None = None


@dataclass
class Plan:
    """Tasks by the ids of their rows."""

    tasks: dict[str, ClaimTask] = field(default_factory=dict)

    @property
    def todo(self) -> list[ClaimTask]:
        """The remaining tasks, longest first, so that all processes end at about the same time."""
        left = [task for task in self.tasks.values() if not task.done or task.metrics]
        return sorted(left, key=lambda task: -task.seconds)

    def seconds(self, jobs: int) -> float:
        """Estimated time of the remaining tasks."""
        return sum(task.seconds for task in self.todo) / max(1, jobs)


def make_plan(known: ClaimSet, counts: Counts) -> Plan:
    """Expand claims into tasks; predictions without a count have none.

    Hydra's directory must be open. Raises BadInput if a configuration cannot be composed.
    """
    plan = Plan()
    for claim, prediction in known.predictions:
        count = counts.get((claim.name, prediction.name), 0)
        for seed in range(claim.first_seed, claim.first_seed + count):
            for task in tasks_of(known, claim, prediction, seed).values():
                planned = plan.tasks.setdefault(task.id, task)
                planned.metrics |= task.metrics
                covered = known.declared[claim.name].covers(claim, prediction, seed)
                planned.claims[claim.name] |= covered
    for task in plan.tasks.values():
        rows = [row for claim in task.claims if (row := known.store.get(claim, task.id))]
        task.done = len(rows) == len(task.claims)
        failed = any(row["status"] == "failed" for row in rows)
        task.metrics = {  # those that have not been read
            id_: source
            for id_, source in task.metrics.items()
            if known.store.get(source[0], id_) is None and not failed
        }
        if task.done and Path(task.directory).exists():
            task.seconds = 1.0  # only a metric is missing, and the run's directory is there
    return plan


def unmet(known: ClaimSet, claim: Claim, prediction: Trained) -> str:
    """The first precondition that is not met in some arm, or an empty string."""
    if prediction.rates and not prediction.chosen:
        return f"learning rates are chosen first, by attnlab reproduce {claim.name} --select"
    for config in known.resolve.arms(claim, prediction).values():
        settings = flat(config.settings) | {"corpus": config.corpus}
        for key, wanted in prediction.given.items():
            if settings.get(key) != wanted:
                return f"{key} must be {wanted}, but is {settings.get(key)}"
    return ""


def tasks_of(
    known: ClaimSet, claim: Claim, prediction: Prediction, seed: int
) -> dict[str, ClaimTask]:
    """Arm -> its run, or "" -> the measurement; empty if a precondition is not met."""
    source, mine = (claim.name, prediction.name), known.declared[claim.name]
    if isinstance(prediction, Measured):
        name = prediction.measure.__name__.strip("<>")
        id_ = f"measure-{claim.name}.{name}-s{seed}{_code(prediction.measure, mine)}"
        label = f"{claim.name}: {name.replace('_', ' ')}, seed {seed}"
        seconds = prediction.seconds or 5.0
        return {"": ClaimTask(id_, "measure", label, seed, seconds, source=source)}
    if not isinstance(prediction, Trained) or unmet(known, claim, prediction):
        return {}
    tasks = {}
    for arm, config in known.resolve.arms(claim, prediction).items():
        id_ = f"run-{mine.arm_digests.get(arm, config.digest)}-s{seed}"
        label = f"{claim.name}: {arm}, seed {seed}"
        directory = str(config.run_directory(seed, known.paths.outputs / "runs"))
        seconds = prediction.seconds or run_seconds(config)
        task = ClaimTask(id_, "run", label, seed, seconds, config.overrides, directory)
        if choice := prediction.chosen.get(arm):
            base = next(x for x in prediction.arms if x.name == arm).overrides[:-2]
            task.extra = {"rate": choice.rate, "overrides": list(base)}
        if isinstance(prediction.metric, RunMetric):
            read = prediction.metric.read
            task.metrics[f"{id_}-{claim.name}.{read.__name__}{_code(read, mine)}"] = source
        tasks[arm] = task
    return tasks


def _code(function: Callable[..., object], mine: Declared) -> str:
    """What ends the id of a row: nothing where the declaration fixes the code."""
    return f"-{function_digest(function)}" if mine.exploratory else ""


def run_seconds(config: ResolvedConfig) -> float:
    """Six floating-point operations for each weight and character, on one core."""
    model, steps = config.settings["model"], config.settings["trainer"]["max_steps"]
    if not {"n_layer", "n_embd", "block_size"} <= model.keys():
        return 3.0 + 0.02 * steps  # not a GPT; corrected by the runs that are done
    weights = 12 * model["n_layer"] * model["n_embd"] ** 2
    characters = config.settings["data"]["batch_size"] * model["block_size"] * steps
    validated = 2 * 111_540 / 3  # forward only, twice at the end
    return 2.3 + 6 * weights * (characters + validated) / CORE
