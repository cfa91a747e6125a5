"""Published runs repeat in a new process, with one thread and with two."""

import random
from dataclasses import replace
from functools import partial

import pytest

from attnlab.claims.claim import Trained
from attnlab.claims.configs import hydra_conf
from attnlab.claims.execute import execute_task
from attnlab.claims.loading import load_claims
from attnlab.claims.paths import Paths
from attnlab.claims.plan import ClaimSet, tasks_of
from attnlab.claims.provenance import machine
from attnlab.claims.reference import CHAOTIC, EQUAL
from attnlab.claims.rows import read_rows
from attnlab.workers import run_tasks
from tests.conftest import CONF, ROOT

CELLS = 10
LONG = 25.0  # CPU seconds; longer runs are not repeated


@pytest.mark.long
def test_ten_random_runs_repeat_as_closely_as_the_documentation_says(tmp_path):
    paths = Paths(ROOT / "experiments", CONF, tmp_path, "full")
    here, published, tasks = machine(), {}, {}
    claims = load_claims(paths.experiments)
    with hydra_conf(CONF):
        known = ClaimSet(paths, claims)
        for claim, each in known.predictions:
            rows = {
                row["id"]: row
                for row in read_rows(paths.experiments / claim.name / "rows.jsonl")
                if row["status"] == "finished" and row["cpu_seconds"] < LONG
            }
            for seed in claim.declared_seeds(each) if isinstance(each, Trained) else ():
                for task in tasks_of(known, claim, each, seed).values():
                    if task.id in rows:
                        task.metrics, task.claims = {}, {claim.name: True}
                        published[task.id], tasks[task.id] = rows[task.id], task
    chosen = [tasks[id_] for id_ in random.Random(0).sample(sorted(tasks), CELLS)]
    # Rounding errors grow in training, also those of another number of threads.
    known_here = [task for task in chosen if all(published[task.id][k] == here[k] for k in here)]
    repeat(chosen, published, paths, threads=2, tolerance=CHAOTIC)
    repeat(known_here[:3], published, replace(paths, outputs=tmp_path / "one"), 1, EQUAL)


def repeat(tasks, published, paths, threads, tolerance):
    do = partial(execute_task, paths=paths)
    for task in tasks:
        task.directory = str(paths.outputs / task.id)
    for task, rows, log in run_tasks(do, tasks, 1, paths.outputs / "logs", threads=threads):
        assert rows is not None, log
        assert rows[0]["status"] != "failed", rows[0]["reason"]
        loss, then = rows[0]["values"]["val_loss"], published[task.id]["values"]["val_loss"]
        print(f"{task.label}, {threads} threads: {loss} here, {then} published")
        assert abs(loss - then) <= tolerance * max(1, then), task
