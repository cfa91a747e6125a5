"""A headline says how many seeds it rests on, whatever it says."""

import re
from pathlib import Path

import pytest

from attnlab.runs.compare import compare
from attnlab.runs.frame import read_runs
from attnlab.runs.report import headline
from tests.invented import write_run

# What happens -> by how much a loss is above that of the baseline, and its weight on the future.
KINDS = {
    "worse": (0.1, 0.0),
    "better": (-0.1, 0.0),
    "equal": (0.0, 0.0),
    "nearly equal": (1e-7, 0.0),
    "leak": (-1.5, 0.9),
}


@pytest.mark.parametrize("n", [1, 2, 3, 12])
@pytest.mark.parametrize("kind", KINDS)
def test_a_headline_has_the_number_of_seeds(kind: str, n: int, tmp_path: Path) -> None:
    difference, future_mass = KINDS[kind]
    for seed in range(n):
        write_run(tmp_path, "sdpa", seed, 2.0 + seed / 7, future_mass=0.0)
        loss = 2.0 + seed / 7 + difference
        write_run(tmp_path, "flipped", seed, loss, future_mass=future_mass)
    (compared,) = (c for c in compare(read_runs(tmp_path)) if not c.is_baseline)
    said = re.findall(r"\b(one|\d+) seeds?\b", headline(compared))
    assert [1 if number == "one" else int(number) for number in said] == [n]
