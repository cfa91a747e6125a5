"""Published runs repeat in a new process with another number of threads."""

import random
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
    do = partial(execute_task, paths=paths)
    for task, rows, log in run_tasks(do, chosen, 1, tmp_path / "logs", threads=2):
        assert rows is not None, log
        row, then = rows[0], published[task.id]
        same = all(then[key] == here[key] for key in here)
        distance = abs(row["values"]["val_loss"] - then["values"]["val_loss"])
        assert distance <= (EQUAL if same else CHAOTIC) * max(1, then["values"]["val_loss"]), task
