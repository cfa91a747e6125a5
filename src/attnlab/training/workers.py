"""Workers: processes in which runs train beside each other, for `-m`, `sweep` and claims."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from itertools import islice
from types import TracebackType
from typing import Any, TypeVar

from loky import ProcessPoolExecutor, cpu_count
from typing_extensions import Self

from attnlab.errors import BadInput

CallArguments = TypeVar("CallArguments", bound=tuple[Any, ...])
Returned = TypeVar("Returned")

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # what torch reads when it is imported


class WorkerDied(BadInput):
    """A worker that ended before its run did."""


class Workers:
    """Up to `at_once` processes with a run each; a context, at whose end none is left.

    Each is a pool of one of loky's: if a process of a larger pool dies, loky ends the others, too.
    Workers end with this process, even if it is killed, and Ctrl-C is for this process alone.

    Args:
        at_once: how many runs train at once.
        environment: variables that workers have before they import torch. By default, they share
            the cores.

    Raises BadInput if `at_once` is no positive number.
    """

    def __init__(self, at_once: int, environment: Mapping[str, str] | None = None) -> None:
        if not isinstance(at_once, int) or at_once < 1:
            raise BadInput(f"{at_once} runs at once are not possible; at least 1 is needed")
        threads = str(max(cpu_count() // at_once, 1))
        shared = {name: os.environ.get(name, threads) for name in THREADS}
        self.at_once = at_once
        self.environment = shared | dict(environment or {})
        self._all: list[ProcessPoolExecutor] = []
        self._idle: list[ProcessPoolExecutor] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._all:
            worker.shutdown(kill_workers=kind is not None)  # a run can be resumed

    def each(
        self, function: Callable[..., Returned], calls: Iterable[CallArguments]
    ) -> Iterator[tuple[CallArguments, "Future[Returned]"]]:
        """Call a function with each tuple of arguments, and give these when the call has ended,
        with its result or error; WorkerDied if its process died.

        The next arguments are taken when a worker is free for them.
        """
        waiting = iter(calls)
        running: dict[Future[Returned], tuple[CallArguments, ProcessPoolExecutor]] = {}
        while True:
            for call in islice(waiting, self.at_once - len(running)):
                worker, future = self._submit(function, call)
                running[future] = call, worker
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                call, worker = running.pop(future)
                error = future.exception()
                if isinstance(error, BrokenProcessPool):
                    self._all.remove(worker)
                else:
                    self._idle.append(worker)
                # A run that a signal ends raises SystemExit; its process lives on.
                is_lost = isinstance(error, BrokenProcessPool | SystemExit)
                yield call, failed_by_death(error) if is_lost else future

    def _submit(
        self, function: Callable[..., Returned], call: CallArguments
    ) -> tuple[ProcessPoolExecutor, "Future[Returned]"]:
        """Hand a call to a worker that has nothing to do, or to a new one."""
        while self._idle:
            worker = self._idle.pop()
            with suppress(BrokenProcessPool):  # it died since its last run
                return worker, worker.submit(function, *call)
        worker = ProcessPoolExecutor(  # of one process
            1, initializer=begin_worker, initargs=(os.getpid(),), env=self.environment
        )
        self._all.append(worker)
        return worker, worker.submit(function, *call)


def begin_worker(parent: int) -> None:
    """What a worker does first: it leaves Ctrl-C to its parent, whose process number is given, and
    starts a thread that ends it soon after the parent, which may be gone already."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.name != "posix":
        return  # elsewhere the number of the parent stays the same after its end

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)  # a run can be killed at any moment

    threading.Thread(target=watch, daemon=True).start()


def failed_by_death(error: BaseException | None) -> "Future[Returned]":
    """A future with the error WorkerDied, which says what to do; `error` is its cause."""
    future: Future[Returned] = Future()
    said = WorkerDied(
        "its process was ended from outside, as by a system that has no memory left; the same "
        "command resumes it, and fewer runs at once need less memory"
    )
    said.__cause__ = error
    future.set_exception(said)
    return future
