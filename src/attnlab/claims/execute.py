"""Executes tasks in worker processes that import once, use one thread each, and end with us.

Each worker is a `ProcessPoolExecutor` of its own: when a process dies (out of memory, a signal),
only the task that it was doing fails, and the others continue.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from attnlab.claims.claim import Measured, RunMetric, Trained
from attnlab.claims.configs import compose_config, hydra_conf
from attnlab.claims.loading import load_claim
from attnlab.claims.paths import Paths
from attnlab.claims.plan import ClaimTask
from attnlab.claims.results import Row
from attnlab.errors import BadInput

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "HYDRA_FULL_ERROR": "1",
}
TIMES = ("wall_seconds", "tokens_per_second")  # of metrics.json; never the same twice


def execute(
    tasks: Sequence[ClaimTask], paths: Paths, jobs: int
) -> Iterator[tuple[ClaimTask, list[Row]]]:
    """Execute tasks, and yield each with its rows as it ends.

    Args:
        tasks: started in this order.
        paths: the directories.
        jobs: how many processes.
    """
    others = set(multiprocessing.active_children())
    workers = {number: _worker(number, paths) for number in range(min(jobs, len(tasks)))}
    waiting, idle = list(reversed(tasks)), list(workers)
    running: dict[Future[list[Row]], tuple[int, ClaimTask]] = {}
    with _environment(ONE_THREAD):
        try:
            while waiting or running:
                while waiting and idle:
                    number, task = idle.pop(), waiting.pop()
                    running[workers[number].submit(execute_task, task, paths)] = number, task
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    number, task = running.pop(future)
                    try:
                        rows = future.result()
                    except BrokenProcessPool:
                        log = _log(paths, number)
                        reason = f"its process died (out of memory?); see {log}"
                        rows = [_row(task.id, task) | {"reason": reason}]
                        workers[number] = _worker(number, paths)
                    idle.append(number)
                    yield task, rows
        finally:  # also where the caller was interrupted: runs resume in the next call
            for child in set(multiprocessing.active_children()) - others:
                child.kill()
            for worker in workers.values():
                worker.shutdown(cancel_futures=True)


def cores() -> int:
    """The cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _worker(number: int, paths: Paths) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")  # threads of PyTorch do not survive a fork
    return ProcessPoolExecutor(1, context, _start_worker, (str(_log(paths, number)),))


def _log(paths: Paths, number: int) -> Path:
    return paths.outputs / "logs" / f"worker-{number}.log"


def _start_worker(log: str) -> None:
    """In the worker: end with the parent, leave Ctrl-C to it, and write to a log."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()  # returns when the parent is gone, even by SIGKILL
        os._exit(1)  # otherwise this process would hold the lock of a run directory

    threading.Thread(target=watch, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    with Path(log).open("ab") as stream:
        sys.stdout.flush()
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    import torch

    torch.set_num_threads(1)


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set variables for the processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def execute_task(task: ClaimTask, paths: Paths) -> list[Row]:
    """Do one task, in a worker.

    Returns:
        its row, and a row for each metric that is read from a run.
    """
    with hydra_conf(paths.conf):
        if task.kind == "measure":
            return [_measure(task, paths)]
        row = _train(task, paths)
        rows = [row]
        if task.kind == "run" and row["status"] != "failed":
            rows += [_read(id_, source, task, paths, row) for id_, source in task.metrics.items()]
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
