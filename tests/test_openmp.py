"""The variable of OpenMP that keeps a run fast on a busy machine."""

import os
import subprocess
import sys

import pytest

from attnlab.openmp import SPINS, wait_briefly
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("platform", "before", "after"),
    [
        ("linux", {}, SPINS),
        ("linux", {"GOMP_SPINCOUNT": "7"}, "7"),
        ("linux", {"OMP_WAIT_POLICY": "ACTIVE"}, None),
        ("darwin", {}, None),
        ("win32", {}, None),
    ],
)
def test_what_the_user_has_set_stays(
    platform: str, before: dict[str, str], after: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(os, "environ", dict(before))
    wait_briefly()
    assert os.environ.get("GOMP_SPINCOUNT") == after


@pytest.mark.parametrize("start", ["import train", "import attnlab.commands.cli"])
def test_nothing_imports_torch_before_the_variable_is_set(start: str) -> None:
    code = f"{start}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
