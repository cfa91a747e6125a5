"""The pytest plugin in the test suite of another project."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    vocab_size, block_size = 11, 13
    def __init__(self, diagonal):
        super().__init__()
        self.diagonal = diagonal
        self.emb, self.out, self.qkv = nn.Embedding(11, 8), nn.Linear(8, 11), nn.Linear(8, 24)
    def forward(self, ids):
        x = self.emb(ids)
        q, k, v = self.qkv(x).chunk(3, -1)
        mask = torch.ones(ids.shape[1], ids.shape[1]).tril(self.diagonal).bool()
        scores = (q @ k.mT / 8 ** 0.5).masked_fill(~mask, float("-inf"))
        return self.out(x + scores.softmax(-1) @ v)
"""
TESTS = """
import pytest
from their_model import Model

def test_causal(assert_causal):
    assert_causal(Model({diagonal}))

@pytest.mark.attnlab(20)  # or seconds=20
def test_healthy(attnlab_checkup):
    assert attnlab_checkup(Model({diagonal})).healthy
"""


def run_pytest(folder: Path, *arguments: str) -> tuple[int, str]:
    """pytest in a folder with this plugin and no other."""
    command = [sys.executable, "-m", "pytest", "-p", "attnlab.pytest_plugin", *arguments]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1"}
    for name in ("CI", "BUILD_NUMBER"):  # with these, pytest repeats whole messages in its summary
        environment.pop(name, None)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "their_model.py").write_text(MODEL)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    return tmp_path


def test_a_test_without_a_leak_passes(project: Path) -> None:
    (project / "test_theirs.py").write_text(TESTS.format(diagonal=0))
    code, output = run_pytest(project)
    assert code == 0, output
    assert "2 passed" in output
    assert "checkup of" not in output


def test_a_test_with_a_leak_fails_with_the_report(project: Path) -> None:
    (project / "test_theirs.py").write_text(TESTS.format(diagonal=1))
    code, output = run_pytest(project)
    assert code == 1
    assert "2 failed" in output
    assert output.count("checkup of Model") == 1  # of the fixture; the assertion's is its message
    assert output.count("mask diagonal off by one [fault]") == 2
    assert "fix:" in output


def test_a_failed_assertion_takes_at_most_25_lines(project: Path) -> None:
    body = "from their_model import Model\n\ndef test_it(assert_causal):\n"
    (project / "test_theirs.py").write_text(f"{body}    assert_causal(Model(1))\n")
    code, output = run_pytest(project, "-q")
    assert code == 1
    assert len(output.splitlines()) <= 25, output
    for fact in ("off by one", "fix:", "the first module whose output"):
        assert output.count(fact) <= 2, output  # with the advice, or pytest's own summary


@pytest.mark.long
def test_a_report_in_a_variable_is_attached_too(project: Path) -> None:
    (project / "test_theirs.py").write_text(
        "from attnlab.checkup import checkup\nfrom their_model import Model\n\n"
        "def test_theirs():\n    report = checkup(Model(1))\n    assert report.healthy\n"
    )
    code, output = run_pytest(project)
    assert code == 1
    assert output.count("checkup of Model") == 1


def test_the_plugin_imports_nothing_before_it_is_used(project: Path) -> None:
    (project / "test_theirs.py").write_text(
        "import sys\n\ndef test_theirs():\n"
        "    assert not {'torch', 'attnlab.checkup', 'numpy'} & set(sys.modules)\n"
    )
    code, output = run_pytest(project)
    assert code == 0, output


def test_the_plugin_is_declared() -> None:
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\nattnlab = "attnlab.pytest_plugin"\n' in text
