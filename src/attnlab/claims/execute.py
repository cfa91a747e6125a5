"""Executes the tasks of claims in worker processes."""

import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

from attnlab.claims.claim import Measured, RunMetric, Trained
from attnlab.claims.configs import compose_config, hydra_conf
from attnlab.claims.loading import load_claim
from attnlab.claims.paths import Paths
from attnlab.claims.plan import ClaimTask
from attnlab.claims.results import Row
from attnlab.errors import BadInput
from attnlab.workers import run_tasks

TIMES = ("wall_seconds", "tokens_per_second")  # of metrics.json; never the same twice


def execute(
    tasks: Sequence[ClaimTask], paths: Paths, jobs: int
) -> Iterator[tuple[ClaimTask, list[Row]]]:
    """Execute tasks in this order in `jobs` processes; yield each with its rows as it ends."""
    do = partial(execute_task, paths=paths)
    for task, rows, log in run_tasks(do, tasks, jobs, paths.outputs / "logs"):
        died = {"reason": f"its process died (out of memory?); see {log}"}
        yield task, [_row(task.id, task) | died] if rows is None else rows


def execute_task(task: ClaimTask, paths: Paths) -> list[Row]:
    """Do one task, in a worker: its row, and one for each metric that is read from a run."""
    with hydra_conf(paths.conf):
        if task.kind == "measure":
            return [_measure(task, paths)]
        rows = [_train(task, paths)]
        if task.kind == "run" and rows[0]["status"] != "failed":
            rows += [_read(id_, of, task, paths, rows[0]) for id_, of in task.metrics.items()]
        return rows


def _train(task: ClaimTask, paths: Paths) -> Row:
    from attnlab.training.config import read_config
    from attnlab.training.run import run

    with _filled(task.id, task) as row:
        cfg, variant = compose_config(task.overrides, task.seed, paths.experiments)
        config, directory = read_config(cfg), Path(task.directory)
        result = run(config, directory, variant=variant, overrides=task.overrides)
        metrics = result.metrics
        row["status"] = metrics["status"]
        row["values"] = {
            name: value
            for name, value in metrics.items()
            if isinstance(value, int | float) and name not in TIMES
        }
        row |= {name: metrics[name] for name in ("git", "versions", "precision", "device")}
        row["corpus"] = metrics["corpus"]["name"]
        row["seconds"] = metrics["wall_seconds"]
    return row


def _read(id_: str, source: tuple[str, str], task: ClaimTask, paths: Paths, run_row: Row) -> Row:
    with _filled(id_, task) as row:
        row["values"] = {}
        if run_row["status"] == "finished":
            prediction = _claim(paths.claim_file(source[0])).prediction(source[1])
            assert isinstance(prediction, Trained) and isinstance(prediction.metric, RunMetric)
            row["values"] = dict(prediction.metric.read(Path(task.directory)))
        row["status"] = run_row["status"]
    return row


def _measure(task: ClaimTask, paths: Paths) -> Row:
    from attnlab.training.run import git_state

    claim, name = task.source
    with _filled(task.id, task) as row:
        prediction = _claim(paths.claim_file(claim)).prediction(name)
        assert isinstance(prediction, Measured)
        row["values"] = dict(prediction.measure(task.seed))
        row |= {"status": "finished", "git": git_state()}
    return row


@contextmanager
def _filled(id_: str, task: ClaimTask) -> Iterator[Row]:
    """A row that says what went wrong if something did."""
    began, row = time.perf_counter(), _row(id_, task)
    try:
        yield row
    except BadInput as error:
        row |= {"status": "failed", "reason": str(error)}
    except Exception:
        row |= {"status": "failed", "reason": traceback.format_exc()}
    row["seconds"] = round(row["seconds"] or time.perf_counter() - began, 2)


def _row(id_: str, task: ClaimTask) -> Row:
    """The row of a task that has not finished."""
    row = {"id": id_, "label": task.label, "seed": task.seed}
    return row | {"status": "failed", "reason": None, "seconds": 0.0}


_claim = cache(load_claim)
