"""Runs the tasks of claims in worker processes."""

import time
import traceback
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

from attnlab.claims.claim import Prediction
from attnlab.claims.configs import compose_config, hydra_conf
from attnlab.claims.loading import load_claim
from attnlab.claims.paths import Paths
from attnlab.claims.plan import ClaimTask
from attnlab.claims.provenance import machine, repository_state, sources_digest
from attnlab.claims.rows import Row
from attnlab.errors import BadInput
from attnlab.files import read_json, write_json
from attnlab.runs.run_directory import RERUN, now
from attnlab.workers import run_tasks

STATE = ("git", "sources", "processor", "versions")  # keys of a row that tell where it was made
TIMES = ("wall_seconds", "tokens_per_second")  # of metrics.json; never the same twice


def execute(
    tasks: Sequence[ClaimTask], paths: Paths, jobs: int
) -> Generator[tuple[ClaimTask, list[Row]], None, None]:
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
            first |= task.extra | _state(task, paths)
            first |= _measure(task, paths) if task.kind == "measure" else _train(task, paths)
        rows = [first]
        if task.kind == "run" and first["status"] != "failed":
            for id_, source in task.metrics.items():
                with _new_row(id_, task) as row:
                    row |= {"values": {}, "status": first["status"]}
                    row |= {key: first[key] for key in STATE}
                    if first["status"] != "diverged":
                        metric = vars(_prediction(source, paths))["metric"]
                        row["values"] = dict(metric.read(Path(task.directory)))
                rows.append(row)
        return rows


def _train(task: ClaimTask, paths: Paths) -> Row:
    from attnlab.training.config import read_config
    from attnlab.training.run import run

    overrides = ["train_loss=false", *task.overrides]  # an arm may turn it on
    overrides += [f"continue_from='{task.continued}'"] if task.continued else []
    cfg, variant = compose_config(overrides, task.seed, paths.experiments, paths.config_dir)
    config, directory = read_config(cfg), Path(task.directory)
    metrics = run(config, directory, variant=variant, overrides=task.overrides).metrics
    values = {
        name: value
        for name, value in metrics.items()
        if isinstance(value, int | float) and name not in TIMES
    }
    values |= task.read(metrics) if task.read is not None else {}
    row = {name: metrics[name] for name in ("status", "versions", "precision", "device")}
    row |= {"corpus": metrics["corpus"]["name"], "seconds": metrics["wall_seconds"]}
    return row | {"values": values}


def _measure(task: ClaimTask, paths: Paths) -> Row:
    measure = vars(_prediction(task.source, paths))["measure"]
    return {"status": "finished", "values": dict(measure(task.seed))}


def _state(task: ClaimTask, paths: Paths) -> Row:
    """Repository, sources and machine of a row; never compared.

    A run that another call began counts as changed, unless it began with the same source files.
    """
    claim = task.source[0] or next(iter(task.claims))
    state = machine() | {"git": repository_state(paths), "sources": sources_digest(paths, claim)}
    if not task.directory:
        return state
    began = paths.outputs / "began" / f"{task.id}.json"
    if not Path(task.directory).exists():
        write_json(began, state)
    then = read_json(began) if began.exists() else {}
    if then.get("sources") == state["sources"]:
        return then
    return state | {"git": state["git"] | {"dirty": True}}


@contextmanager
def _new_row(id_: str, task: ClaimTask) -> Iterator[Row]:
    """The row to fill in; if an exception is raised, it holds the reason."""
    began, cpu, row = time.perf_counter(), time.process_time(), _failed_row(id_, task)
    try:
        yield row
    except BadInput as error:
        again = f"delete {task.directory} to rerun"  # `attnlab reproduce` has no force=true
        row |= {"status": "failed", "reason": str(error).replace(RERUN, again)}
    except Exception:
        row |= {"status": "failed", "reason": traceback.format_exc()}
    row["seconds"] = round(row["seconds"] or time.perf_counter() - began, 2)
    row |= {"cpu_seconds": round(time.process_time() - cpu, 2), "time": now()}


def _failed_row(id_: str, task: ClaimTask) -> Row:
    """The row of a task that did not finish."""
    row = {"id": id_, "label": task.label, "seed": task.seed}
    return row | {"status": "failed", "reason": None, "seconds": 0.0}


@cache
def _prediction(source: tuple[str, str], paths: Paths) -> Prediction:
    claim, name = source
    return load_claim(paths.experiments / claim / "claim.py").prediction(name)
