"""Accuracies without attention: the ranking and docs/tasks.md have those of the rows."""

import pytest
import yaml

from scripts.fill_pages import (
    FLOOR_SETTINGS,
    FLOORS,
    LONGER,
    SEED_OF_LONGER,
    floor_run,
    row_values,
)
from tests.conftest import ROOT

RANKING = yaml.safe_load((ROOT / "experiments/ranking/ranking.yaml").read_text(encoding="utf-8"))
TASKS = {name: task for name, task in RANKING["tasks"].items() if "floor" in task}
SIZES = ("preset=", "data.batch_size=")  # the rows have those of the preset


def measured_floor(task: dict) -> float:
    """The accuracy without attention that the rows have for a task of the ranking."""
    words = sorted(word for word in task["overrides"] if not word.startswith(SIZES))
    (setting,) = [one for one in (*FLOOR_SETTINGS, LONGER) if sorted(one.split()) == words]
    seed = SEED_OF_LONGER if setting == LONGER else 0
    values = row_values(floor_run(setting, seed))
    return values[f"accuracy_at_{task['length']}" if "length" in task else "val_accuracy"]


@pytest.mark.parametrize("name", TASKS)
def test_a_floor_of_the_ranking_is_that_of_its_row(name: str) -> None:
    assert TASKS[name]["floor"] == pytest.approx(measured_floor(TASKS[name]), abs=5e-4)


def test_the_ranking_has_a_floor_for_each_task_with_known_answers() -> None:
    without = {name for name, task in RANKING["tasks"].items() if "floor" not in task}
    assert without == {"text"}


@pytest.mark.parametrize("setting", FLOOR_SETTINGS)
def test_a_setting_of_tasks_md_has_a_row_that_finished(setting: str) -> None:
    assert FLOORS.exists() and 0 < row_values(floor_run(setting))["val_accuracy"] < 1
