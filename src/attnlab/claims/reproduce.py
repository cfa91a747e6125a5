"""Run what is missing and keep its rows: what `attnlab reproduce` and `attnlab rank` do."""

import json
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnlab.claims.claims import function, is_measurement
from attnlab.claims.rows import Rows, machine, said
from attnlab.claims.trials import Row, Run
from attnlab.errors import BadInput
from attnlab.files import write_json
from attnlab.installation import lab_path

TIMES = ("wall_seconds", "tokens_per_second", "seed", "devices", "threads")  # not kept in rows


@dataclass(frozen=True)
class Place:
    """Where runs are made.

    Args:
        folder: of the claim, whose modules can be imported.
        outputs: contains the run directories, `runs/<n>`, and rows that are not committed.
        commit: of the repository, with a + if files differ from it.
        reads: overrides but the learning rate -> `measure.function`s that read a finished run.
    """

    folder: Path
    outputs: Path
    commit: str
    reads: Mapping[tuple[str, ...], Collection[str]] = field(default_factory=dict)


Train = Callable[[Run, Path, Place], Row]  # in a worker: trains in a directory, gives the row


def run_missing(
    needed: Callable[[], Sequence[Run]],
    rows: Rows,
    place: Place,
    *,
    train: Train,
    jobs: int,
    minutes: float | None,
) -> bool:
    """Run until nothing is missing; False if the time was over, and the same call continues.

    What is missing follows from the rows so far, so it is asked for again after each round: the
    best rates are known only when all rates were tried. After a run that fails no other begins;
    the rows of those that are running are kept, and its error is raised.
    """
    until = time.monotonic() + 60 * minutes if minutes else math.inf
    if not needed():
        return True
    context = multiprocessing.get_context("spawn")  # threads of PyTorch do not survive a fork
    with ProcessPoolExecutor(jobs, context, start_worker, (sys.path,)) as pool:
        while todo := needed():
            print(f"{len(todo)} runs come next", flush=True)
            waiting, running = list(todo[::-1]), set[Future[Row]]()
            failed: BaseException | None = None
            while running or (waiting and time.monotonic() < until):
                while waiting and len(running) < jobs and time.monotonic() < until:
                    run = waiting.pop()
                    running.add(pool.submit(train, run, run_directory(run, place), place))
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    if error := future.exception():
                        failed, waiting = failed or error, []
                        continue
                    rows.add(row := future.result())
                    print(said(row["overrides"], row["seed"]), flush=True)
            if failed:
                raise failed
            if waiting:
                return False
    return True


def start_worker(path: list[str]) -> None:
    """Prepare a worker: imports as its parent, one thread, ends with its parent, not by Ctrl-C.

    Two processes of one thread are faster than one of two, and rounding has one order.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()  # returns when the parent is gone, even by SIGKILL
        os._exit(1)  # otherwise this process would hold the lock of a run directory

    threading.Thread(target=watch, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[:] = path
    import torch

    torch.set_num_threads(1)


def run_directory(run: Run, place: Place) -> Path:
    """The numbered directory of a run: the one in which this commit began it, or a new one.

    Overrides may be longer than the name of a file; they are in `<n>.json` beside it.
    """
    key = {"overrides": list(run.overrides), "seed": run.seed, "commit": place.commit}
    files = sorted((place.outputs / "runs").glob("*.json"))
    begun = [file for file in files if json.loads(file.read_bytes()) == key]
    number = int(files[-1].stem) + 1 if files else 1
    file = begun[0] if begun else place.outputs / "runs" / f"{number:05}.json"
    write_json(file, key)
    return file.with_suffix("")


def train_run(run: Run, folder: Path, place: Place) -> Row:
    """Train one run as `train.py` does, or call a measurement; the row of what it gave.

    A curve is kept with the costs and, where lengths are evaluated, the accuracy at the longest.
    """
    began = time.process_time()
    if is_measurement(run.overrides):
        status, values = "finished", dict(function(place.folder, run.overrides[0])(run.seed))
    else:
        from attnlab.training.config import read_config  # Lightning takes seconds to import
        from attnlab.training.run import run as train

        cfg, variant = compose([*run.overrides, f"seed={run.seed}"], place.folder.parent)
        metrics = train(read_config(cfg), folder, variant=variant, overrides=run.overrides).metrics
        status, numbers = metrics["status"], metrics.keys() - TIMES
        values = {k: x for k, x in metrics.items() if k in numbers and isinstance(x, int | float)}
        if curve := metrics["probes"].get("curve"):  # with probes=curve, as in the ranking
            values |= {"curve": curve, "costs": metrics["costs"]}
            longest = max(metrics.get("by_length", {}), key=int, default=None)
            if longest is not None:
                values["accuracy_at_length"] = metrics["by_length"][longest]["accuracy"]
        reads = place.reads.get(without_rate(run.overrides), ()) if status != "diverged" else ()
        for name in reads:
            values |= function(place.folder, name)(folder)
    return {
        "overrides": list(run.overrides),
        "seed": run.seed,
        "status": status,
        "values": values,
        "cpu_seconds": round(time.process_time() - began, 1),
        "commit": place.commit,
        "machine": machine(),
    }


def compose(overrides: Sequence[str], experiments: Path) -> tuple[Any, str]:
    """The configuration that `train.py` would compose from overrides, and the name of its variant;
    `conf` in the directory of the claims holds what only claims use. BadInput with Hydra's message
    if it cannot."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import open_dict

    GlobalHydra.instance().clear()
    own = experiments.resolve() / "conf"
    path = [f"hydra.searchpath=['{own}']"] if own.is_dir() else []
    with initialize_config_dir(str(lab_path("conf").resolve()), version_base="1.3"):
        try:
            words = [*path, "train_loss=false", *overrides]  # an arm may turn it on
            cfg = hydra_compose("train", words, return_hydra_config=True)
        except HydraException as error:
            raise BadInput(f"{' '.join(overrides)} cannot be composed: {error}") from error
    variant = str(cfg.hydra.runtime.choices["attn"]).replace("/", "-")
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg, variant


def without_rate(overrides: Sequence[str]) -> tuple[str, ...]:
    """Overrides but those that choose the learning rate."""
    return tuple(word for word in overrides if not word.startswith(("optim.lr=", "optim.min_lr=")))
