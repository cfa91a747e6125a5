"""Workers: each has one run, ends with its parent, and costs no other run when it dies."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attnlab.errors import BadInput
from attnlab.training.workers import WorkerDied, Workers
from tests.conftest import ROOT
from tests.training.test_sweeps import is_alive

# Ways in which a process ends in the middle of a run.
ENDS = {
    "SIGKILL": "__import__('os').kill(__import__('os').getpid(), 9)",
    "SIGTERM": "__import__('os').kill(__import__('os').getpid(), 15)",
    "_exit": "__import__('os')._exit(0)",
    "SIGTERM, told by Lightning": "__import__('sys').exit(143)",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_worker_that_dies_costs_its_run_alone(end: str) -> None:
    calls = [("0",), (ENDS[end],), ("2",), ("3",), (f"[{ENDS[end]}]",), ("5",)]
    with Workers(2) as workers:
        ended = {words: future for (words,), future in workers.each(eval, calls)}
    lost = {words for words, future in ended.items() if future.exception()}
    assert lost == {calls[1][0], calls[4][0]}
    assert all(isinstance(ended[words].exception(), WorkerDied) for words in lost)
    assert {ended[words].result() for words in ended.keys() - lost} == {0, 2, 3, 5}


def test_a_worker_that_died_between_two_runs_is_replaced() -> None:
    with Workers(1) as workers:
        for _, future in workers.each(os.getpid, [()]):
            os.kill(future.result(), signal.SIGKILL)
        time.sleep(0.5)
        assert [future.result() for _, future in workers.each(abs, [(-3,)])] == [3]


def test_calls_are_taken_when_a_worker_is_free() -> None:
    taken: list[int] = []

    def calls() -> Iterator[tuple[int]]:
        for number in range(5):
            taken.append(number)
            yield (number,)

    with Workers(2) as workers:
        seen = [len(taken) for _ in workers.each(abs, calls())]
    assert seen[0] <= 3 and len(seen) == 5


def test_workers_begin_where_and_as_this_process_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker of an earlier sweep is used again, with its directory."""
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        with Workers(2, {"OF_WORKERS": name}) as workers:
            seen = [future.result() for _, future in workers.each(os.getcwd, [(), ()])]
            given = workers.each(os.getenv, [("OF_WORKERS",)])
            assert [future.result() for _, future in given] == [name]
        assert seen == [str(folder)] * 2


@pytest.mark.parametrize("at_once", [0, -1, "two"])
def test_at_least_one_run_trains(at_once: Any) -> None:
    with pytest.raises(BadInput):
        Workers(at_once)


def test_an_error_ends_all_workers() -> None:
    with pytest.raises(ZeroDivisionError), Workers(2) as workers:
        pids = [future.result() for _, future in workers.each(os.getpid, [(), ()])]
        next(workers.each(time.sleep, [(0,), (600,)]))
        raise ZeroDivisionError
    assert not [pid for pid in pids if is_alive(pid)]


PARENT = """
import os, sys, time
from attnlab.errors import BadInput
from attnlab.training.workers import Workers

with Workers(2) as workers:
    for _ in workers.each(time.sleep, [(600,), (600,)]):
        pass
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("after", [0.0, 0.3, 1.0])
def test_workers_end_with_a_parent_that_is_killed_at_any_moment(after: float) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], env=os.environ | {"PYTHONPATH": str(ROOT / "src")}
    )
    children: list[int] = []
    while len(children) < 2:  # the first is loky's own, which counts semaphores
        assert parent.poll() is None
        children = children_of(parent.pid)
    time.sleep(after)
    children = children_of(parent.pid)
    parent.kill()
    parent.wait()
    for _ in range(100):
        if not any(map(is_alive, children)):
            return
        time.sleep(0.1)
    raise AssertionError(f"{children} are alive after 10 s")


def children_of(pid: int) -> list[int]:
    """The processes that a process has started."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for thread in threads for child in thread.read_text().split()]
