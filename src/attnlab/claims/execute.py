"""Runs the tasks of claims in worker processes."""

import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

from attnlab.claims.claim import Prediction
from attnlab.claims.configs import compose_config, hydra_conf
from attnlab.claims.loading import load_claim
from attnlab.claims.paths import Paths
from attnlab.claims.plan import ClaimTask
from attnlab.claims.results import Row
from attnlab.errors import BadInput
from attnlab.runs.run_directory import RERUN
from attnlab.workers import run_tasks

TIMES = ("wall_seconds", "tokens_per_second")  # of metrics.json; never the same twice


def execute(
    tasks: Sequence[ClaimTask], paths: Paths, jobs: int
) -> Iterator[tuple[ClaimTask, list[Row]]]:
    """Run tasks, in this order, in `jobs` processes; yield each with its rows when it ends."""
    do = partial(execute_task, paths=paths)
    for task, rows, log in run_tasks(do, tasks, jobs, paths.outputs / "logs"):
        if rows is None:
            reason = f"its process died (out of memory?); see {log}"
            rows = [_failed_row(task.id, task) | {"reason": reason}]
        yield task, rows


def execute_task(task: ClaimTask, paths: Paths) -> list[Row]:
    """Run one task in a worker; return its row, and one for each metric that it reads."""
    with hydra_conf(paths.conf):
        with _new_row(task.id, task) as first:
            first |= _measure(task, paths) if task.kind == "measure" else _train(task, paths)
        rows = [first]
        if task.kind == "run" and first["status"] != "failed":
            for id_, source in task.metrics.items():
                with _new_row(id_, task) as row:
                    row |= {"values": {}, "status": first["status"]}
                    if first["status"] != "diverged":
                        metric = vars(_prediction(source, paths))["metric"]
                        row["values"] = dict(metric.read(Path(task.directory)))
                rows.append(row)
        return rows


def _train(task: ClaimTask, paths: Paths) -> Row:
    from attnlab.training.config import read_config
    from attnlab.training.run import run

    cfg, variant = compose_config(task.overrides, task.seed, paths.experiments)
    config, directory = read_config(cfg), Path(task.directory)
    metrics = run(config, directory, variant=variant, overrides=task.overrides).metrics
    values = {
        name: value
        for name, value in metrics.items()
        if isinstance(value, int | float) and name not in TIMES
    }
    row = {name: metrics[name] for name in ("status", "git", "versions", "precision", "device")}
    row |= {"corpus": metrics["corpus"]["name"], "seconds": metrics["wall_seconds"]}
    return row | {"values": values}


def _measure(task: ClaimTask, paths: Paths) -> Row:
    from attnlab.training.metrics import git_state

    measure = vars(_prediction(task.source, paths))["measure"]
    return {"status": "finished", "values": dict(measure(task.seed)), "git": git_state()}


@contextmanager
def _new_row(id_: str, task: ClaimTask) -> Iterator[Row]:
    """The row to fill in; if an exception is raised, it holds the reason."""
    began, row = time.perf_counter(), _failed_row(id_, task)
    try:
        yield row
    except BadInput as error:
        again = f"delete {task.directory} to rerun"  # `attnlab reproduce` has no force=true
        row |= {"status": "failed", "reason": str(error).replace(RERUN, again)}
    except Exception:
        row |= {"status": "failed", "reason": traceback.format_exc()}
    row["seconds"] = round(row["seconds"] or time.perf_counter() - began, 2)


def _failed_row(id_: str, task: ClaimTask) -> Row:
    """The row of a task that did not finish."""
    row = {"id": id_, "label": task.label, "seed": task.seed}
    return row | {"status": "failed", "reason": None, "seconds": 0.0}


@cache
def _prediction(source: tuple[str, str], paths: Paths) -> Prediction:
    claim, name = source
    return load_claim(paths.experiments / claim / "claim.py").prediction(name)
