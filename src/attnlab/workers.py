"""Worker processes that import once, use their share of the cores, and end with their parent."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def run_tasks(
    do: Callable[[T], R], tasks: Sequence[T], jobs: int, logs: Path, *, threads: int = 1
) -> Iterator[tuple[T, R | None, Path]]:
    """Call a function for each task in worker processes.

    The function must be picklable. Tasks start in order, in `jobs` processes of `threads` threads
    each, and their output goes to files in the directory `logs`. Yields each task when it ends,
    what the function returned (None if its process was killed), and the log of its worker.
    """
    others = set(multiprocessing.active_children())
    workers = {n: make_worker(n, logs, threads) for n in range(min(jobs, len(tasks)))}
    waiting, idle = list(reversed(tasks)), list(workers)
    running: dict[Future[R], tuple[int, T]] = {}
    before = dict(os.environ)
    libraries = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    os.environ |= dict.fromkeys(libraries, str(threads)) | {"HYDRA_FULL_ERROR": "1"}
    try:
        while waiting or running:
            while waiting and idle:
                number, task = idle.pop(), waiting.pop()
                running[workers[number].submit(do, task)] = number, task
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                number, task = running.pop(future)
                result, error = None, future.exception()
                if isinstance(error, BrokenProcessPool):
                    workers[number] = make_worker(number, logs, threads)
                elif not isinstance(error, SystemExit):  # SIGTERM ended the task alone
                    result = future.result()
                idle.append(number)
                yield task, result, _log(logs, number)
    finally:  # also if the caller was interrupted; the runs resume when they are called again
        for child in set(multiprocessing.active_children()) - others:
            child.kill()
        for worker in workers.values():
            worker.shutdown(cancel_futures=True)
        os.environ.clear()
        os.environ |= before


def cores() -> int:
    """The cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads_given() -> int | None:
    """The number of threads that the variable OMP_NUM_THREADS gives to this process."""
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # more: nested regions
    return max(1, int(threads)) if threads.isdigit() else None


def make_worker(number: int, logs: Path, threads: int) -> ProcessPoolExecutor:
    """An executor of one process with its own log; if it dies, only its own task fails."""
    context = multiprocessing.get_context("spawn")  # threads of PyTorch do not survive a fork
    return ProcessPoolExecutor(1, context, start_worker, (str(_log(logs, number)), threads))


def _log(logs: Path, number: int) -> Path:
    return logs / f"worker-{number}.log"


def start_worker(log: str, threads: int) -> None:
    """Prepare a worker: it ends with its parent, ignores Ctrl-C, and writes to a log."""
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

    torch.set_num_threads(threads)
