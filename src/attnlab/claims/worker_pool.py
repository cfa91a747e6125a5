"""Does tasks in worker processes: the many, in parallel, surviving the death of any."""

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attnlab.claims.paths import Places
from attnlab.claims.plan import Task
from attnlab.files import write_json

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "HYDRA_FULL_ERROR": "1",
}


class Worker:
    """One worker process.

    Its session is its own, so that Ctrl-C reaches the one who can say what it means.
    """

    def __init__(self, number: int, places: Places, replies: "queue.Queue[Reply]") -> None:
        self.number = number
        self.task: Task | None = None
        log = places.root / "logs" / f"worker-{number}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "attnlab.claims.worker", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
                env=os.environ | ONE_THREAD,
            )
        folders = {"experiments": places.experiments, "conf": places.conf}
        folders["outputs"] = places.outputs
        self.tell(
            {name: str(path.resolve()) for name, path in folders.items()}
            | {"budget": places.budget}
        )
        threading.Thread(target=self._listen, args=(replies,), daemon=True).start()

    def give(self, task: Task) -> None:
        """Hand over a task."""
        self.task = task
        self.tell(task.message | {"id": task.id, "readings": task.readings})

    def tell(self, message: dict[str, Any]) -> None:
        """Send one line; a worker that has died meanwhile is noticed by its silence."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return

    def end(self) -> None:
        """Kill the process; whatever it was doing is gone on with by the next call."""
        self.process.kill()
        self.process.wait()

    def _listen(self, replies: "queue.Queue[Reply]") -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            replies.put((self, str(json.loads(line)["status"])))
        replies.put((self, None))


Reply = tuple[Worker, str | None]


def work(tasks: Sequence[Task], places: Places, jobs: int) -> Iterator[tuple[Task, str]]:
    """Do tasks and tell of each as it ends.

    Args:
        tasks: begun in this order.
        places: the folders.
        jobs: how many processes.

    Yields:
        a task and its status: finished, diverged or failed.
    """
    waiting = list(reversed(tasks))
    replies: queue.Queue[Reply] = queue.Queue()
    workers = [Worker(n, places, replies) for n in range(min(jobs, len(waiting)))]
    try:
        for worker in workers:
            worker.give(waiting.pop())
        busy = len(workers)
        while busy:
            worker, status = replies.get()
            task = worker.task
            if task is None:
                continue  # the silence of one that had nothing left to do
            if status is None:
                status = _died(worker, task, places)
                workers.remove(worker)
                worker = Worker(worker.number, places, replies)
                workers.append(worker)
            worker.task = None
            if waiting:
                worker.give(waiting.pop())
            else:
                busy -= 1
            yield task, status
    finally:
        for worker in workers:
            worker.end()


def _died(worker: Worker, task: Task, places: Places) -> str:
    """Record what took its worker with it: memory that ran out, say."""
    code = worker.process.wait()
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    log = Path("logs") / f"worker-{worker.number}.log"
    reason = f"its process ended by {how}; see {log}"
    row = {"id": task.id, "label": task.label, "seed": task.message["seed"]}
    row |= {"kind": task.message["kind"], "status": "failed", "reason": reason, "times": {}}
    write_json(places.row(task.id), row)
    return "failed"
