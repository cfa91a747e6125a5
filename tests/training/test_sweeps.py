"""Sweeps: a failed run does not stop the others, and the end is told by the directories."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnlab.files import read_json
from tests.cli import small_run
from tests.conftest import ROOT, SMALL

FAULTY = """
from pathlib import Path
import lightning.pytorch as L

class Faulty(L.Callback):
    '''Fails in one run of a sweep, until it is repaired.'''
    def on_train_batch_start(self, trainer, lit, *_):
        this = (lit.settings.variant, lit.seed) == ("unscaled", 1)
        if this and not Path("repaired").exists():
            raise ZeroDivisionError("a fault of the user's own")
"""


def ended(root: Path) -> set[str]:
    """The runs with a result, as <attention>/<seed>."""
    return {f"{f.parts[-3].partition(',')[0]}/{f.parts[-2]}" for f in root.rglob("metrics.json")}


def test_a_refused_run_does_not_stop_the_others(text_file: Path, tmp_path: Path) -> None:
    done = small_run(
        tmp_path, text_file, "-m", "hydra/launcher=basic", "attn=sdpa,unscaled", "seed=0,1",
        "model.n_head=2,3", "name=a b",
    )  # fmt: skip
    assert done.code == 1
    assert ended(tmp_path) == {f"attn={a}/seed={s}" for a in ("sdpa", "unscaled") for s in (0, 1)}
    assert (tmp_path / "a b" / "comparison.png").exists()
    assert "unscaled" in done.out.partition("All runs in")[2]
    notes = [read_json(file) for file in sorted((tmp_path / ".sweep").rglob("failed_*.json"))]
    assert len(notes) == 4 and all("model.n_head=3" in note["command"] for note in notes)
    assert all(note["reason"] in done.err for note in notes)


def test_a_run_that_diverges_is_a_result(text_file: Path, tmp_path: Path) -> None:
    done = small_run(
        tmp_path, text_file, "-m", "hydra/launcher=basic", "attn=sdpa,unscaled",
        "optim.lr=1e38", "trainer.gradient_clip_val=null",
    )  # fmt: skip
    assert (done.code, done.err) == (0, "")
    assert "diverged" in done.out and len(ended(tmp_path)) == 2


@pytest.mark.slow
def test_a_sweep_in_processes_ends_and_is_completed(text_file: Path, tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    command = [
        *(sys.executable, str(ROOT / "train.py"), "-m", *SMALL, f"data.path={text_file}"),
        *("attn=sdpa,unscaled", "seed=0,1,2", "+callbacks.faulty._target_=faulty.Faulty"),
    ]

    def sweep() -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    first = sweep()
    assert first.returncode == 1
    assert len(ended(tmp_path)) == 5 and "attn=unscaled/seed=1" not in ended(tmp_path)
    assert "a fault of the user's own" in first.stderr
    (note,) = (read_json(f) for f in (tmp_path / "outputs/.sweep").rglob("failed_*.json"))
    assert f'File "{tmp_path / "faulty.py"}", line 10' in note["traceback"]
    picture = tmp_path / "outputs/lab/comparison.png"
    assert "unscaled" in first.stdout.partition("All runs in")[2] and picture.exists()
    before = {file: file.read_bytes() for file in tmp_path.rglob("metrics.json")}
    (tmp_path / "repaired").touch()
    second = sweep()
    assert second.returncode == 0, second.stderr
    assert len(ended(tmp_path)) == 6
    assert all(file.read_bytes() == content for file, content in before.items())
