"""Train the models without attention whose accuracies docs/tasks.md has, and keep their rows.

    python -m scripts.task_floors

A run that has a row in experiments/ranking/rows-floors.jsonl is not repeated; one without takes
less than a CPU minute. Rows are added to that file only in a tree without changes; otherwise they
go to outputs/rows-floors.jsonl. `python scripts/fill_pages.py` fills the page.
"""

import time
from collections.abc import Callable

import torch

import attnlab
from attnlab.api import TrainedRun
from attnlab.claims.rows import machine, open_rows
from attnlab.claims.trials import Row, Run
from attnlab.claims.work import instruction_set_used
from scripts.fill_pages import FLOORS, ROOT, floor_runs

Values = dict[str, float]


def trained_row(
    run: Run, name: str, commit: str, values_of: Callable[[TrainedRun], Values]
) -> Row:
    """Train a run, below outputs/NAME, and make its row."""
    began = time.process_time()
    where = {"outputs": str(ROOT / "outputs"), "name": name, "seed": run.seed}
    trained = attnlab.train(*run.overrides, "logger=none", **where)
    return {
        "overrides": list(run.overrides),
        "seed": run.seed,
        "status": trained.metrics["status"],
        "values": values_of(trained),
        "cpu_seconds": round(time.process_time() - began, 1),
        "instruction_set": instruction_set_used(
            trained.metrics["device"], trained.metrics["instruction_set"]
        ),
        "commit": commit,
        "machine": machine(),
    }


def accuracies(trained: TrainedRun) -> Values:
    """What docs/tasks.md prints of a run."""
    metrics = trained.metrics
    values = {"val_accuracy": metrics["val_accuracy"], "val_loss": metrics["val_loss"]}
    for length, measured in metrics.get("by_length", {}).items():
        values[f"accuracy_at_{length}"] = measured["accuracy"]
    return values


if __name__ == "__main__":
    torch.set_num_threads(1)  # as the runs of claims, so that rounding has one order
    rows, at_commit = open_rows(FLOORS, ROOT / "outputs" / "rows-floors.jsonl")
    for missing in [run for run in floor_runs() if run not in rows]:
        rows.add(trained_row(missing, "floors", at_commit, accuracies))
        print(missing, rows[missing]["values"])
