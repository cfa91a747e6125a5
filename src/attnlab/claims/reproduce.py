"""Run what is missing, keep its rows, and judge: what `attnlab reproduce` and `rank` do."""

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnlab.claims.claims import function, is_measurement
from attnlab.claims.rows import Rows, machine, said
from attnlab.claims.trials import Row, Run
from attnlab.errors import BadInput
from attnlab.files import write_json
from attnlab.installation import lab_path

RANKING = "ranking"  # reads the runs of the ranking
TIMES = ("wall_seconds", "tokens_per_second", "seed", "compiled", "devices", "threads")  # not kept


@dataclass(frozen=True)
class Place:
    """Where runs are made.

    Args:
        folder: of the claim; its modules can be imported.
        outputs: contains the run directories, `runs/<n>`, and rows that are not committed.
        commit: of the repository, with a + if files differ from it.
        reads: `measure.function`s that read finished runs for further values.
        config_dir: the user's own configuration, as Hydra's --config-dir.
    """

    folder: Path
    outputs: Path
    commit: str
    reads: tuple[str, ...] = ()
    config_dir: Path | None = None


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
    until = time.monotonic() + 60 * minutes if minutes else float("inf")
    if not needed():
        return True
    context = multiprocessing.get_context("spawn")  # threads of PyTorch do not survive a fork
    with ProcessPoolExecutor(jobs, context, start_worker, (sys.path,)) as pool:
        while todo := list(needed()):
            print(f"{len(todo)} runs come next", flush=True)
            waiting, running, ended = todo[::-1], dict[Future[Row], Run](), 0
            failed: BaseException | None = None
            while running or (waiting and time.monotonic() < until):
                while waiting and len(running) < jobs and time.monotonic() < until:
                    run = waiting.pop()
                    folder = run_directory(run, place)
                    running[pool.submit(train, run, folder, place)] = run
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    run, ended = running.pop(future), ended + 1
                    if error := future.exception():
                        failed, waiting = failed or error, []
                        continue
                    rows.add(future.result())
                    print(f"[{ended}/{len(todo)}] {said(run)}", flush=True)
            if failed:
                raise failed
            if waiting:
                return False
    return True


def start_worker(path: list[str]) -> None:
    """Prepare a worker: imports as its parent, one thread, Ctrl-C ignored, ends with its parent.

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
    runs = place.outputs / "runs"
    files = sorted(runs.glob("*.json"))
    for file in files:
        if json.loads(file.read_bytes()) == key:
            return file.with_suffix("")
    file = runs / f"{int(files[-1].stem) + 1 if files else 1:05}.json"
    write_json(file, key)
    return file.with_suffix("")


def train_run(run: Run, folder: Path, place: Place) -> Row:
    """Train one run as `train.py` does, or call a measurement; the row of what it gave."""
    row = {"overrides": list(run.overrides), "seed": run.seed}
    began = time.process_time()
    if is_measurement(run.overrides):
        row |= {"status": "finished", "values": dict(measured(run.overrides[0], place)(run.seed))}
    else:
        from attnlab.training.config import read_config  # Lightning takes seconds to import
        from attnlab.training.run import run as train

        words = [*run.overrides, f"seed={run.seed}"]
        cfg, variant = compose(words, place.folder.parent, place.config_dir)
        metrics = train(read_config(cfg), folder, variant=variant, overrides=run.overrides).metrics
        values = {key: x for key, x in metrics.items() if isinstance(x, int | float)}
        for key in TIMES:
            values.pop(key, None)
        if metrics["status"] != "diverged":
            for name in place.reads:
                values |= measured(name, place)(folder)
        row |= {"status": metrics["status"], "values": values}
    row |= {"cpu_seconds": round(time.process_time() - began, 1)}
    return row | {"commit": place.commit, "machine": machine()}


def compose(
    overrides: Sequence[str], claims: Path, config_dir: Path | None = None
) -> tuple[Any, str]:
    """The configuration that `train.py` would compose, and the name of its variant; BadInput with
    Hydra's message if it cannot.

    Args:
        overrides: as typed after `train.py`.
        claims: the directory of the claims, whose `conf` holds what only claims use.
        config_dir: the user's own configuration.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import open_dict

    GlobalHydra.instance().clear()
    places = [folder.resolve() for folder in (claims / "conf", config_dir) if folder is not None]
    found = ",".join(f"'{folder}'" for folder in places if folder.is_dir())
    added = [f"hydra.searchpath=[{found}]"] if found else []
    with initialize_config_dir(str(lab_path("conf").resolve()), version_base="1.3"):
        try:
            words = [*added, "train_loss=false", *overrides]  # an arm may turn it on
            cfg = hydra_compose("train", words, return_hydra_config=True)
        except HydraException as error:
            raise BadInput(f"{' '.join(overrides)} cannot be composed: {error}") from error
    variant = str(cfg.hydra.runtime.choices["attn"]).replace("/", "-")
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg, variant


def measured(name: str, place: Place) -> Callable[..., dict[str, Any]]:
    """`module.function` beside claim.yaml, or the one of the ranking."""
    return ranking_values if name == RANKING else function(place.folder, name)


def ranking_values(folder: Path) -> dict[str, Any]:
    """What a row of the ranking holds beside the numbers of metrics.json."""
    metrics = json.loads((folder / "metrics.json").read_bytes())
    values = {"curve": metrics["probes"]["curve"], "costs": metrics["costs"]}
    longest = max(metrics.get("by_length", {}), key=int, default=None)
    if longest is not None:
        values["accuracy_at_length"] = metrics["by_length"][longest]["accuracy"]
    return values
