"""`attnlab rank`: run what the ranking lacks, and place a variant of one's own among its rows."""

import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from rich.console import Console
from torch import nn

from attnlab.checkup import checkup
from attnlab.claims.claim import Claim
from attnlab.claims.configs import compose_config, hydra_conf
from attnlab.claims.paths import Paths
from attnlab.claims.plan import ClaimSet, ClaimTask, Plan
from attnlab.claims.progress import check_positive, duration, run_plan
from attnlab.claims.provenance import repository_state, sources_digest
from attnlab.claims.rows import Row
from attnlab.errors import BadInput, counted
from attnlab.files import read_json
from attnlab.ranking.own_contestant import code_of, has_convolution, own_contestant
from attnlab.ranking.protocol import NAME, Contestant, Task, Trial, read_protocol
from attnlab.ranking.trials import Course, Needed, by_trial
from attnlab.ranking.verdicts import Table, make_table
from attnlab.runs.run_directory import RunDirectory
from attnlab.training.checkpoints import processor, versions
from attnlab.training.config import read_config
from attnlab.workers import cores

FEW = 24  # runs; with fewer, processes wait for the last one, or only start


class Ranking:
    """The protocol, its rows, and the contestants that are run; Hydra's directory must be open.

    Args:
        overrides: of the user's own contestant; only it and its partner are run. Without any, all.
        quick: only the quick tasks, and only n steps.
        size: of the models, if not the published one.
    """

    def __init__(
        self, paths: Paths, overrides: Sequence[str], *, quick: bool, size: str | None = None
    ) -> None:
        self.paths, self.quick, self.size = paths, quick, size
        self.protocol = read_protocol(paths.experiments / NAME, size)
        self._healthy: set[str] = set()
        self.own = None
        self.known = ClaimSet(paths, [Claim("", (), name=NAME)])
        committed = self.known.store.committed(NAME)
        if overrides:  # checked before its partner is trained
            own = own_contestant(overrides, self.protocol)
            net = self.checked_model(own)  # which imports its modules
            tasks = [task for task in self.protocol.tasks if task.quick or not quick]
            partner = self.protocol.arms[own.partner]
            rows = [row for row in committed.values() if row["arm"] == partner.name]
            if outdated := [
                x.name for x in tasks if self._is_published(partner, x, rows) is False
            ]:
                raise BadInput(
                    f"the configuration is not the one with which {partner.name} was run on "
                    f"{', '.join(outdated)}, so its rows cannot be compared with yours; leave "
                    "--conf out, or undo the changes in conf/"
                )
            published = paths.config_dir is None and any(
                self._is_published(own, task, committed.values()) for task in tasks
            )
            code = "" if published else code_of(self._composed(own).attn, paths)
            self.own = replace(own, convolution=has_convolution(net), code=code)
            arms = {**self.protocol.arms, own.name: self.own}
            self.protocol = replace(self.protocol, arms=arms)
        stored = self.known.store.rows if self.own or paths.fixed else committed
        self.rows = by_trial(stored.values())

    @property
    def courses(self) -> list[Course]:
        """Those that are run, in order: one contestant after the other, so that what does not fit
        into the time is cut from the last ones.

        With a contestant of the user, only its tasks, and those of its partner, which needs no run
        if its rows are committed.
        """
        cells, own = self.protocol.cells(self.quick), self.own
        tasks = [task for arm, task in cells if arm is own]
        return [
            Course(self.protocol, arm, task, self.rows)
            for arm, task in cells
            if own is None or (arm.name in (own.name, own.partner) and task in tasks)
        ]

    def checked_model(self, arm: Contestant) -> nn.Module:
        """The model of a contestant; BadInput if the checkup finds a fault in it."""
        config = read_config(self._composed(arm))
        net = config.model(len(config.data().alphabet))
        report = checkup(net, name=arm.name)
        if report.exit_code:
            why = "; ".join(found.headline for found in report.diagnoses)
            raise BadInput(f"{arm.name} does not pass the checkup and is not ranked: {why}")
        self._healthy.add(arm.name)
        return net

    def _is_published(self, arm: Contestant, task: Task, committed: Iterable[Row]) -> bool | None:
        """Whether a committed row of a contestant on a task has today's settings; None without a
        row."""
        words = {*task.overrides, *arm.overrides}
        row = next((row for row in committed if words <= {*row["overrides"]}), None)
        if row is None:
            return None
        digest = self.known.resolve(tuple(row["overrides"])).digest
        return bool(row["id"].startswith(f"run-{digest}"))

    def _composed(self, arm: Contestant) -> DictConfig:
        overrides = (*self.protocol.tasks[0].overrides, *arm.overrides)
        return compose_config(overrides, 0, self.paths.experiments, self.paths.config_dir)[0]

    def table(self) -> Table:
        """All cells by the rows so far."""
        return make_table(self.protocol, self.rows, self.quick)

    def left(self, jobs: int) -> str:
        """How much there is to run, in a sentence."""
        left = [(course.task, *course.left(self.quick)) for course in self.courses]
        said = f"{len(left)} pairs of a variant and a task; about "
        said += f"{sum(runs for _, runs, _ in left):,} runs are left, "
        if any(task.seconds is None for task, *_ in left):
            steps = sum(steps for *_, steps in left)
            return (
                f"{said}{steps:,} steps; their time was not measured, and the first runs show it"
            )
        if not any(runs for _, runs, _ in left):
            return "Nothing is left to run."
        seconds = sum(steps / task.steps * (task.seconds or 0) for task, _, steps in left)
        on = f"{duration(seconds / jobs)} on {counted(jobs, 'process', 'es')}"
        return f"{said}{seconds / 3600:.1f} CPU hours, {on}"

    def run(self, jobs: int, console: Console, until: float | None) -> bool:
        """Run what is missing, one contestant after the other; False if the time was over.

        Rows are kept as runs end. Raises BadInput if a contestant does not pass the checkup, or a
        run fails.
        """
        while plan := self._plan():
            complete = run_plan(plan, self.known, jobs, until)
            for row in self.known.store.failed.values():
                why = str(row["reason"]).strip().splitlines()[-1]  # of a traceback
                where = plan.tasks[row["id"]].directory
                raise BadInput(f"{row['label']} failed: {why}; see {where}/status.json")
            self.rows |= by_trial(self.known.store.rows.values())
            if not complete:
                return False
        return True

    def _plan(self) -> Plan | None:
        """The runs of the first contestant that needs some, and of the next ones while there are
        few; None if there is none."""
        plan, last = Plan(), ""
        for course in self.courses:
            if course.arm.name != last and len(plan.tasks) >= FEW:
                break
            last = course.arm.name
            for needed in course.needed(self.quick):
                task, trial = self._task(needed)
                if row := self.known.store.get(NAME, task.id):  # of the same settings
                    self.rows[trial] = row
                    return self._plan()
                plan.tasks.setdefault(task.id, task)
        return plan if plan.tasks else None

    def _task(self, needed: Needed) -> tuple[ClaimTask, Trial]:
        arm, task = needed.arm, needed.task
        if arm.name not in self._healthy:
            self.checked_model(arm)
        trial = self.protocol.trial(arm, task, needed.rate, needed.steps, needed.seed)
        directory, steps, continued = self._directory(trial), needed.steps, ""
        code = f"-{trial.code}" if trial.code else ""
        run_id = f"run-{self.known.resolve(trial.overrides).digest}{code}-s{trial.seed}"
        extra = {"arm": arm.name, "task": task.name, "rate": needed.rate}
        if (earlier := needed.earlier) is not None and self._by_this_code(earlier):
            short = self.protocol.trial(arm, task, needed.rate, task.steps, needed.seed)
            if RunDirectory(found := self._directory(short)).is_done():
                # A later call may have to start at step 0, which it does in the other directory.
                directory = directory.with_name(directory.name + "-continued")
                steps, continued = needed.further, str(found)
                extra |= {"cpu_seconds_before": earlier["cpu_seconds"]}
        # An unfinished run of other source files would give a row that cannot be published.
        began = self.paths.outputs / "began" / f"{run_id}.json"
        then = read_json(began).get("sources") if began.exists() else ""
        if Path(directory).exists() and then != sources_digest(self.paths, NAME):
            shutil.rmtree(directory)
        return ClaimTask(
            run_id,
            "run",
            f"{arm.name}: {task.name}, rate {needed.rate:g}, {needed.steps:,} steps, "
            f"seed {trial.seed}",
            trial.seed,
            (task.seconds or task.steps) * steps / task.steps,
            # As the published rows, also where there is a GPU.
            (*trial.overrides, *(() if self.size else ("trainer.accelerator=cpu",))),
            str(directory),
            continued,
            extra=extra | {"overrides": list(trial.overrides), "code": trial.code},
            claims={NAME: self.own is None},
            read=further_values,
        ), trial

    def _directory(self, trial: Trial) -> Path:
        runs = self.paths.outputs / "runs"
        directory = self.known.resolve(trial.overrides).run_directory(trial.seed, runs)
        return directory.with_name(directory.name + (f"-{trial.code}" if trial.code else ""))

    def _by_this_code(self, row: Row) -> bool:
        """Whether a run was made by today's code and libraries, on a processor like this one."""
        same = row["sources"] == sources_digest(self.paths, NAME)
        same = same and row["processor"] == processor()
        return same and versions().items() <= row["versions"].items()


def further_values(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """What a row holds beside the numbers of metrics.json."""
    values: dict[str, Any] = {"curve": metrics["probes"]["curve"], "costs": metrics["costs"]}
    longest = max(metrics.get("by_length", {}), key=int, default=None)
    if longest is not None:
        values["accuracy_at_length"] = metrics["by_length"][longest]["accuracy"]
    return values


def rank(
    paths: Paths,
    overrides: Sequence[str] = (),
    *,
    quick: bool = False,
    jobs: int | None = None,
    minutes: float | None = None,
    size: str | None = None,
    only_plan: bool = False,
) -> tuple[Ranking, bool]:
    """Run what the published table still needs or, with overrides, only the variant that they
    describe, and its partner if no rows of it are published.

    With `quick`, only some tasks and n steps; with a `size`, models of that size, on a GPU. After
    `minutes`, what runs is stopped, and the same call continues. `only_plan` prints what there is
    to run. Returns the ranking, and whether all of it was run. Raises BadInput as `Ranking` does,
    for numbers that are not positive, if another call is running, and for a `size` without a GPU.
    """
    check_positive(jobs=jobs, minutes=minutes)
    if size is not None and not only_plan and not torch.cuda.is_available():
        raise BadInput(
            f"--size {size} would take days without a CUDA GPU, and there is none; run this "
            "command on a machine with one, or add --plan to see the runs"
        )
    console, jobs = Console(soft_wrap=True), jobs or (cores() if size is None else 1)
    until = time.monotonic() + 60 * minutes if minutes else None
    with nullcontext() if only_plan else paths.lock(), hydra_conf(paths.conf):
        ranking = Ranking(paths, overrides, quick=quick, size=size)
        console.print(ranking.left(jobs))
        if only_plan:
            return ranking, True
        if not overrides and repository_state(paths)["dirty"]:
            console.print("--publish will refuse these rows: there are uncommitted changes.")
        complete = ranking.run(jobs, console, until)
    if not complete:
        console.print("Time is up; the same command continues.")
    return ranking, complete
