"""Every task stands in every list that CONTRIBUTING.md, "Add a task", names."""

import inspect
import re

import pytest
import yaml

from attnlab.data import sequences
from tests.conftest import CONF, ROOT
from tests.data.test_batches import DIGESTS
from tests.data.test_sequences import TASKS

TARGETS = {
    file.stem: yaml.safe_load(file.read_text(encoding="utf-8"))["_target_"]
    for file in CONF.glob("data/*.yaml")
}
MODULE = sequences.__name__
# The functions that make a task, and the tasks that can be chosen by data=NAME.
MADE = {
    name
    for name, function in inspect.getmembers(sequences, inspect.isfunction)
    if function.__module__ == MODULE and not name.startswith("_")
}
CHOSEN = {name for name, target in TARGETS.items() if target == f"{MODULE}.{name}"}
PAGE = (ROOT / "docs/tasks.md").read_text(encoding="utf-8")
LISTS = {
    "settings in conf/data/NAME.yaml, with the name of its function": CHOSEN,
    "a row in the first table of docs/tasks.md": set(re.findall(r"^\| `(\w+)` \|", PAGE, re.M)),
    "a reader and a wrong reader in TASKS of tests/data/test_sequences.py": {*TASKS},
    "a digest of its batches in DIGESTS of tests/data/test_batches.py": {*DIGESTS},
}


@pytest.mark.parametrize("task", sorted(MADE | CHOSEN))
@pytest.mark.parametrize("wanted", LISTS)
def test_a_task_is_in_every_list(task: str, wanted: str) -> None:
    assert task in LISTS[wanted], (
        f'the task {task} lacks {wanted}: see "Add a task" in CONTRIBUTING.md'
    )


def test_no_list_has_a_task_that_is_gone() -> None:
    texts = {name for name, target in TARGETS.items() if not target.startswith(MODULE)}
    for wanted, names in LISTS.items():
        assert names - texts <= MADE, wanted


def test_the_tasks_are_found() -> None:
    assert {"copy", "induction", "parity"} <= MADE == CHOSEN
