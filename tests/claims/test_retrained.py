"""Committed rows follow from today's code and configuration: one of each claim and each task."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from attnlab.claims.claims import is_measurement
from attnlab.claims.ranking import read_protocol
from attnlab.claims.reproduce import Place, train_run
from attnlab.claims.rows import machine, read_renamed, rename
from attnlab.claims.trials import Run
from tests.conftest import ROOT

pytestmark = pytest.mark.slow
EXPERIMENTS = ROOT / "experiments"
PROTOCOL = EXPERIMENTS / "ranking" / "ranking.yaml"
CLAIMS = sorted(file.parent.name for file in EXPERIMENTS.glob("*/claim.yaml"))
# Nats. Rounding differs between processors and grows during training; a changed default, an
# initial weight or a batch moves the loss of the shortest of these runs by more.
TOLERANCE = 0.02


def shortest(name: str, *words: str) -> dict[str, Any]:
    """The finished training with these words among its overrides that took the least time."""
    lines = (EXPERIMENTS / name / "rows.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if not is_measurement(row["overrides"])]
    found = [
        row
        for row in rows
        if {*words} <= {*row["overrides"]} and row["status"] == "finished" and row["seed"] < 1000
    ]
    return min(found, key=lambda row: row["cpu_seconds"])


def again(row: dict[str, Any], name: str, folder: Path) -> float:
    """The validation loss of the same run, trained now, minus the committed one."""
    overrides = rename(row["overrides"], read_renamed(EXPERIMENTS))
    place = Place(EXPERIMENTS / name, folder, "")
    values = train_run(Run(overrides, row["seed"]), folder / "run", place)["values"]
    return float(values["val_loss"]) - float(row["values"]["val_loss"])


@pytest.mark.parametrize("name", CLAIMS)
def test_a_row_of_a_claim_is_trained_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    row = shortest(name)
    apart = again(row, name, tmp_path)
    same = row["machine"] == machine()
    assert math.isclose(apart, 0, abs_tol=0 if same else TOLERANCE), row["overrides"]


@pytest.mark.parametrize("task", read_protocol(PROTOCOL).tasks)
def test_a_row_of_a_task_of_the_ranking_is_trained_again(task: str, tmp_path: Path) -> None:
    words = read_protocol(PROTOCOL).tasks[task].overrides
    row = shortest("ranking", "attn=sdpa", *words)
    same = row["machine"] == machine()
    assert math.isclose(again(row, "ranking", tmp_path), 0, abs_tol=0 if same else TOLERANCE)


def test_another_seed_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    row = shortest("more_heads")
    assert abs(again(row | {"seed": row["seed"] + 1}, "more_heads", tmp_path)) > 1e-3
