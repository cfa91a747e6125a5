"""Train the sides of sentences.yaml that have no row yet, and keep their rows.

    python -m experiments.sentences.train

Rows are added to rows.jsonl only in a tree without changes; otherwise they go to
outputs/rows-sentences.jsonl. `python scripts/fill_pages.py` fills the page.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from attnlab.api import TrainedRun
from attnlab.claims.rows import open_rows
from attnlab.claims.trials import Run
from experiments.sentences import measure
from scripts.fill_pages import ROOT, SENTENCES, sentences, side_run
from scripts.task_floors import Values, trained_row


def sides() -> Iterator[tuple[Run, Sequence[str]]]:
    """Each run, and the functions of measure.py that read it."""
    for name, side in sentences()["sides"].items():
        for seed in sentences()["seeds"]:
            yield side_run(name, seed), side.get("measure", ())


def measured(trained: TrainedRun, measures: Sequence[str]) -> Values:
    """The loss of a run, also at other lengths, and what the named functions measure of it."""
    values = {"val_loss": trained.loss}
    for length, found in trained.metrics.get("by_length", {}).items():
        values[f"loss at {length}"] = found["loss"]
    for name in measures:
        values |= vars(measure)[name](trained.folder)
    return values


if __name__ == "__main__":
    torch.set_num_threads(1)  # as the runs of claims, so that rounding has one order
    rows, at_commit = open_rows(SENTENCES / "rows.jsonl", ROOT / "outputs/rows-sentences.jsonl")
    for missing, measures in sides():
        if missing not in rows:
            read = partial(measured, measures=measures)
            rows.add(trained_row(missing, "sentences", at_commit, read))
            print(missing, rows[missing]["values"], flush=True)
