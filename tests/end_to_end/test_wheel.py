"""attnlab without a clone: a wheel in a separate environment, used from another directory."""

import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from docs.notebooks import GRADER
from tests.conftest import ROOT

pytestmark = pytest.mark.long
TINY = ["preset=micro", "trainer.max_steps=4", "trainer.val_check_interval=4", "probes=none"]
TINY += ["data=plays", "data.length=20000"]
CLAIM = """
says: Mine.
base: [experiment=mine]
first_seed: 0
arms:
  flipped: [attn=flipped]
  causal: [attn=sdpa]
predictions:
  better: {says: Flipped is no worse., arms: [flipped, causal], below: 5.0, seeds: 2}
"""
SWEEP = """\
# @package _global_
defaults:
  - override /preset: micro
  - override /data: plays
  - override /logger: none
data: {length: 20000}
trainer: {max_steps: 2, val_check_interval: 2}
name: mine
"""
Run = Callable[..., str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an environment that has the wheel, and an empty directory for work."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "-w", str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", wheel], check=True)
    # Everything else comes from this environment.
    (packages,) = (folder / "venv").glob("lib/*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    (folder / "work").mkdir()
    return folder


@pytest.fixture(scope="module")
def run(place: Path) -> Run:
    """Run a program of the environment, `attnlab` unless it is named, in the empty directory."""

    def command(*arguments: str, code: int = 0, program: str = "attnlab") -> str:
        done = subprocess.run(
            [place / "venv" / "bin" / program, *arguments],
            cwd=place / "work",
            capture_output=True,
            text=True,
            env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HOME": str(place)},
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return command


def test_it_trains_and_opens_the_run(run: Run) -> None:
    said = run("train", "attn=unscaled", *TINY)
    assert "attnlab train attn=sdpa" in said and "train.py" not in said
    folder = next(line.split()[-1] for line in said.splitlines() if "run directory" in line)
    assert folder.startswith("outputs/lab/attn=unscaled") and folder.endswith("seed=0")
    assert "already done" in run("train", "attn=unscaled", *TINY)
    assert len(run("sample", folder, "--chars", "20")) > 20
    assert "L0H0" in run("look", folder, "--text", "Enter")
    assert "scores are not scaled" in run("checkup", folder, code=1)
    assert "unscaled" in run("runs")


def test_it_sweeps(run: Run) -> None:
    said = run("train", "-m", "attn=sdpa,flipped", "name=masks", *TINY)
    assert "attnlab runs outputs/masks" in said
    assert "flipped" in run("runs", "outputs/masks")
    run("plot", "outputs/masks")


def test_it_grades_exercises(run: Run) -> None:
    answers = "\ndef causal_mask(T):\n    return T\nprint(grade(causal_mask), len(statements()))"
    setup = GRADER.format(names="grade, statements")
    said = run("-c", setup + answers, program="python")
    assert "causal_mask: not right yet" in said and int(said.split()[-1]) >= 30


def test_it_runs_a_chapter_that_trains_and_calls_a_claim(run: Run) -> None:
    run(str(ROOT / "docs" / "chapters" / "2_scale.py"), program="python")


def test_help_and_bad_input_name_the_installed_command(run: Run) -> None:
    assert "attn: additive" in run("train", "--help")
    said = run("train", "optim.lrr=1", code=2)
    assert "attnlab train --cfg job" in said and "Traceback" not in said


def test_it_reproduces_the_claims_of_the_package_and_of_the_user(run: Run, tmp_path: Path) -> None:
    assert "parity: 0" in run("reproduce", "parity", "--plan")
    own = tmp_path / "experiments" / "mine"
    own.mkdir(parents=True)
    conf = own.parent / "conf" / "experiment"
    conf.mkdir(parents=True)
    (own / "claim.yaml").write_text(CLAIM)
    (conf / "mine.yaml").write_text(SWEEP)
    said = run("reproduce", "mine", "--jobs", "1")
    assert "Mine" in said
