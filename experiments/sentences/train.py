"""Train the sides of sentences.yaml that have no row yet, and keep their rows.

    python -m experiments.sentences.train

Rows are added to rows.jsonl only in a tree without changes; otherwise they go to
outputs/rows-sentences.jsonl. `python scripts/fill_pages.py` fills the page.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import yaml

import attnlab
from attnlab.claims.rows import machine, open_rows
from attnlab.claims.trials import Row, Run
from attnlab.claims.work import used_set
from experiments.sentences import measure

HERE = Path(__file__).parent
OUTPUTS = HERE.parents[1] / "outputs"


def content() -> dict[str, Any]:
    """What sentences.yaml says."""
    return yaml.safe_load((HERE / "sentences.yaml").read_text(encoding="utf-8"))


def run_of(side: str, seed: int) -> Run:
    """The training of a side with a seed."""
    said = content()
    return Run((*said["base"], *said["sides"][side].get("overrides", [])), seed)


def sides() -> Iterator[tuple[Run, tuple[str, ...]]]:
    """Each run, and the functions of measure.py that read it."""
    said = content()
    for name, side in said["sides"].items():
        for seed in said["seeds"]:
            yield run_of(name, seed), tuple(side.get("measure", ()))


def train(run: Run, measures: tuple[str, ...], commit: str) -> Row:
    """The row of a run."""
    began = time.process_time()
    where = {"outputs": str(OUTPUTS), "name": "sentences", "seed": run.seed}
    trained = attnlab.train(*run.overrides, "logger=none", **where)
    metrics = trained.metrics
    values = {"val_loss": metrics["val_loss"]}
    for name in measures:
        values |= vars(measure)[name](trained.folder)
    return {
        "overrides": list(run.overrides),
        "seed": run.seed,
        "status": metrics["status"],
        "values": values,
        "cpu_seconds": round(time.process_time() - began, 1),
        "instruction_set": used_set(metrics["device"], metrics["instruction_set"]),
        "commit": commit,
        "machine": machine(),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)  # as the runs of claims, so that rounding has one order
    rows, at_commit = open_rows(HERE / "rows.jsonl", OUTPUTS / "rows-sentences.jsonl")
    for missing, measures in sides():
        if missing not in rows:
            print(
                rows.add(train(missing, measures, at_commit)), rows[missing]["values"], flush=True
            )
