"""Run what is missing and keep its rows: what `attnlab reproduce` and `attnlab rank` do."""

import json
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnlab.claims.claims import function, is_measurement
from attnlab.claims.rows import Rows, machine
from attnlab.claims.trials import Arm, Row, Run
from attnlab.errors import BadInput
from attnlab.files import write_json
from attnlab.installation import lab_path

TIMES = ("wall_seconds", "tokens_per_second", "seed", "devices", "threads")  # not kept in rows


@dataclass(frozen=True)
class Work:
    """What a command does for a claim or the ranking."""

    folder: Path  # of claim.yaml or ranking.yaml
    outputs: Path  # contains the run directories, `runs/<n>`, and rows that are not committed
    rows: Rows
    commit: str  # of new rows, with a + if files differ from it
    needed: Callable[[], Sequence[Run]]  # runs that can be made now
    report: Callable[[], str]  # what came out, in Markdown
    reads: Collection[tuple[tuple[str, ...], str]] = ()  # overrides but the rate, and a function


def run_missing(work: Work, train: Callable[..., Row], jobs: int, minutes: float | None) -> bool:
    """Run until nothing is missing; False if the time was over, and the same call continues.

    What is missing follows from the rows so far, so it is asked for again after each round: the
    best rates are known only when all rates were tried. After a run that fails no other begins;
    the rows of those that are running are kept, and its error is raised.
    """
    until = time.monotonic() + 60 * minutes if minutes else math.inf
    if not work.needed():
        return True
    context = multiprocessing.get_context("spawn")  # threads of PyTorch do not survive a fork
    with ProcessPoolExecutor(jobs, context, start_worker, (sys.path,)) as pool:
        while waiting := list(work.needed())[::-1]:
            print(f"{len(waiting)} runs come next", flush=True)
            running, failed = set[Future[Row]](), list[BaseException]()
            while running or (waiting and not failed and time.monotonic() < until):
                while waiting and not failed and len(running) < jobs and time.monotonic() < until:
                    run = waiting.pop()
                    reads = [read for words, read in work.reads if words == without_rate(run)]
                    directory = run_directory(run, work.outputs, work.commit)
                    running.add(pool.submit(train, run, directory, work.folder, reads))
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    if error := future.exception():
                        failed.append(error)
                    else:
                        made = {"commit": work.commit, "machine": machine()}
                        print(work.rows.add(future.result() | made), flush=True)
            if failed:
                raise failed[0]
            if waiting:
                return False
    return True


def start_worker(path: list[str]) -> None:
    """Prepare a worker: imports as its parent, one thread, so that rounding has one order; it ends
    with its parent, and not by Ctrl-C."""
    parent: Any = multiprocessing.parent_process()

    def watch() -> None:
        parent.join()  # returns when the parent is gone, even by SIGKILL
        os._exit(1)  # otherwise this process would hold the lock of a run directory

    threading.Thread(target=watch, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[:] = path
    import torch

    torch.set_num_threads(1)


def run_directory(run: Run, outputs: Path, commit: str) -> Path:
    """The numbered directory of a run: the one in which this commit began it, or a new one.

    Overrides may be longer than the name of a file; they are in `<n>.json` beside it.
    """
    key = {"overrides": list(run.overrides), "seed": run.seed, "commit": commit}
    files = sorted((outputs / "runs").glob("*.json"))
    begun = [file for file in files if json.loads(file.read_bytes()) == key]
    number = int(files[-1].stem) + 1 if files else 1
    file = begun[0] if begun else outputs / "runs" / f"{number:05}.json"
    write_json(file, key)
    return file.with_suffix("")


def train_run(run: Run, directory: Path, folder: Path, reads: Iterable[str] = ()) -> Row:
    """Train one run as `train.py` does and read it, or call a measurement; the row of what it
    gave. `folder` holds the functions of the claim.

    A curve is kept with the costs and, where lengths are evaluated, the accuracy at the longest.
    """
    began = time.process_time()
    if is_measurement(run.overrides):
        status, values = "finished", dict(function(folder, run.overrides[0])(run.seed))
    else:
        from attnlab.training.run import run as train  # Lightning takes seconds to import

        config, variant = composed([*run.overrides, f"seed={run.seed}"], folder.parent)
        metrics = train(config, directory, variant=variant, overrides=run.overrides).metrics
        status, numbers = metrics["status"], metrics.keys() - TIMES
        values = {k: x for k, x in metrics.items() if k in numbers and isinstance(x, int | float)}
        if curve := metrics["probes"].get("curve"):  # with probes=curve, as in the ranking
            values |= {"curve": curve, "costs": metrics["costs"]}
            if lengths := metrics.get("by_length"):
                values["accuracy_at_length"] = lengths[max(lengths, key=int)]["accuracy"]
        for name in reads if status != "diverged" else ():
            values |= function(folder, name)(directory)
    return {
        "overrides": list(run.overrides),
        "seed": run.seed,
        "status": status,
        "values": values,
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def composed(overrides: Sequence[str], experiments: Path) -> tuple[Any, str]:
    """The configuration that `train.py` would compose from overrides, and the name of its variant;
    `conf` in the directory of the claims holds what only claims use. BadInput with Hydra's message
    if it cannot."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    from attnlab.training.config import read_config

    own = experiments.resolve() / "conf"
    path = [f"hydra.searchpath=['{own}']"] if own.is_dir() else []
    words = [*path, "train_loss=false", *overrides]  # an arm may turn it on
    with initialize_config_dir(str(lab_path("conf").resolve()), version_base="1.3"):
        try:
            cfg = compose("train", words, return_hydra_config=True)
        except HydraException as error:
            raise BadInput(f"{' '.join(overrides)} cannot be composed: {error}") from error
    variant = str(cfg.hydra.runtime.choices["attn"]).replace("/", "-")
    return read_config(OmegaConf.masked_copy(cfg, [*map(str, cfg.keys() - {"hydra"})])), variant


def without_rate(run: Run | Arm) -> tuple[str, ...]:
    """Overrides but those that choose the learning rate."""
    rates = ("optim.lr=", "optim.min_lr=")
    return tuple(word for word in run.overrides if not word.startswith(rates))
