"""The first example of the README ends in the same sentences on each instruction set, and in
numbers that lie in the ranges which it names."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from attnlab.processor import SMALLER_SETS
from tests.conftest import ROOT

NUMBER = re.compile(r"-?\d+(\.\d+)?")


def command_of_readme() -> list[str]:
    """The sweep in the first section of the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^    python (train\.py -m .*)$", text, re.MULTILINE)
    assert found is not None
    return shlex.split(found[1])


def sentences_of_readme() -> str:
    """The sentences that the README shows below the table, without their numbers."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^    unscaled ends .*?(?=\n\n)", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return without_numbers(found[0].partition("3 seeds are too few")[0])


def numbers_in_range(text: str) -> bool:
    """Whether what `unscaled` lost and kept lies in the ranges of the README."""
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    ranges = re.search(
        r"it ended ([\d.]+) to ([\d.]+) nats worse and kept (\d+) to (\d+) %", readme
    )
    lost = re.search(r"unscaled ends ([\d.]+) nats worse", text)
    kept = re.search(r"unscaled keeps (\d+) %", text)
    assert ranges and lost and kept
    least, most, fewest, largest = map(float, ranges.groups())
    return least <= round(float(lost[1]), 2) <= most and fewest <= float(kept[1]) <= largest


def without_numbers(text: str) -> str:
    """A text in one line, with # for each number."""
    return NUMBER.sub("#", " ".join(text.split()))


@pytest.mark.slow
@pytest.mark.parametrize("instruction_set", [*SMALLER_SETS, "own"])
def test_the_first_example_says_what_the_readme_says(instruction_set: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, *command_of_readme(), f"outputs={tmp_path}"],
        cwd=ROOT,
        env=os.environ | SMALLER_SETS.get(instruction_set, {}) | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert sentences_of_readme() in without_numbers(done.stdout)
    assert numbers_in_range(done.stdout)


@pytest.mark.parametrize(
    ("lost", "kept", "is_in_range"),
    [
        ("0.303", "2", True),  # AVX2
        ("0.300", "3", True),  # AVX-512 of an AMD EPYC
        ("0.292", "4", True),  # AVX-512 of an Intel Xeon
        ("0.25", "3", False),
        ("0.30", "5", False),
    ],
)
def test_the_ranges_of_the_readme_hold_the_numbers_that_were_seen(
    lost: str, kept: str, is_in_range: bool
) -> None:
    said = f"unscaled ends {lost} nats worse than sdpa. unscaled keeps {kept} % of what"
    assert numbers_in_range(said) == is_in_range


def test_a_sentence_with_another_word_is_another_one() -> None:
    assert without_numbers("keeps 2 % of\nit") == without_numbers("keeps -1 % of it")
    assert without_numbers("keeps 2 %") != without_numbers("is worse: 2 %")
