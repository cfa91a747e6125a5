"""A process that does one task after another: Lightning is imported once, one thread computes.

Speaks JSON lines on its standard input and output. It ends with its input, and also when the
process that started it is gone, so that a killed `attnlab reproduce` leaves nothing behind.
"""

import json
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from attnlab.claims.claim import Claim, Measured, Reading, Trained
from attnlab.claims.discover import load
from attnlab.claims.paths import Places
from attnlab.claims.resolve import config_of, hydra_conf
from attnlab.errors import BadInput
from attnlab.files import write_json

TIMES = ("wall_seconds", "tokens_per_second")  # of metrics.json; never twice the same


def main() -> None:
    """Serve until the input ends."""
    # Libraries print; what they print goes to the log that stderr is, not into the protocol.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _end_with(int(sys.argv[1]))  # not getppid(): the parent may be gone by now
    import torch

    torch.set_num_threads(1)
    settings = json.loads(sys.stdin.readline())
    budget = settings.pop("budget")
    places = Places(**{name: Path(path) for name, path in settings.items()}, budget=budget)
    with hydra_conf(places.conf):
        for line in sys.stdin:
            _serve(json.loads(line), places, replies)


def _serve(task: dict[str, Any], places: Places, replies: TextIO) -> None:
    status = _run(task, places) if task["kind"] == "run" else _measure(task, places)
    replies.write(json.dumps({"id": task["id"], "status": status}) + "\n")
    replies.flush()


def _run(task: dict[str, Any], places: Places) -> str:
    row = places.read_row(task["id"])
    if row is None or row["status"] == "failed":
        row = _train(task, places)
    status = str(row["status"])
    if status == "failed":
        return status
    for id_, reader in task["readings"].items():
        status = "failed" if _read(id_, reader, task, places, row) == "failed" else status
    return status


def _train(task: dict[str, Any], places: Places) -> dict[str, Any]:
    from attnlab.training.config import read_config
    from attnlab.training.run import run

    overrides = task["overrides"]
    with _row(task, places) as row:
        cfg, variant = config_of(overrides, task["seed"], places.experiments)
        config = read_config(cfg)
        result = run(config, Path(task["folder"]), variant=variant, overrides=overrides)
        metrics = result.metrics
        row["status"] = metrics["status"]
        row["variant"] = metrics["variant"]
        row["values"] = {
            name: value
            for name, value in metrics.items()
            if isinstance(value, int | float) and name not in TIMES
        }
        row["loss_at_start"] = math.log(len(config.data().alphabet))
        row["folder"] = str(Path(task["folder"]).relative_to(places.root))
        row["provenance"] = {
            name: metrics[name] for name in ("corpus", "git", "versions", "precision", "device")
        }
        row["times"] |= {name: metrics[name] for name in TIMES}
    return row


def _read(
    id_: str, reader: dict[str, str], task: dict[str, Any], places: Places, run: dict[str, Any]
) -> str:
    about = {"id": id_, "label": task["label"], "seed": task["seed"], "kind": "reading"}
    with _row(about, places) as row:
        row["values"] = {}
        if run["status"] == "finished":
            part = _load(places, reader["claim"]).part(reader["part"])
            assert isinstance(part, Trained) and isinstance(part.metric, Reading)
            row["values"] = dict(part.metric.read(Path(task["folder"])))
        row["status"] = run["status"]
    return str(row["status"])


def _measure(task: dict[str, Any], places: Places) -> str:
    with _row(task, places) as row:
        part = _load(places, task["claim"]).part(task["part"])
        assert isinstance(part, Measured)
        row["values"] = dict(part.measure(task["seed"], task["budget"]))
        row["status"] = "finished"
    return str(row["status"])


@contextmanager
def _row(task: dict[str, Any], places: Places) -> Iterator[dict[str, Any]]:
    """A row that is stored at the end, whatever the end."""
    began, cpu = time.perf_counter(), time.process_time()
    row: dict[str, Any] = {name: task[name] for name in ("id", "label", "seed", "kind")}
    row |= {"status": "failed", "reason": None, "times": {}}
    try:
        yield row
    except BadInput as error:
        row |= {"status": "failed", "reason": str(error)}
    except Exception:
        row |= {"status": "failed", "reason": traceback.format_exc()}
    row["times"]["seconds"] = time.perf_counter() - began
    row["times"]["cpu_seconds"] = time.process_time() - cpu
    write_json(places.row(task["id"]), row)


_claims: dict[str, Claim] = {}


def _load(places: Places, name: str) -> Claim:
    if name not in _claims:
        _claims[name] = load(places.claim_file(name))
    return _claims[name]


def _end_with(parent: int) -> None:
    """End this process as soon as its parent is gone, in the middle of whatever it does.

    Otherwise it would hold the lock of a run folder that the next call wants.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main()
