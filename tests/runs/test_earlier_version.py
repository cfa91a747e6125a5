"""Run directories that commit 1ca6207 wrote are read and compared; resuming one is refused."""

import shutil
from pathlib import Path

import pytest

from attnlab.runs.pairing import pairs
from attnlab.runs.reading import read_runs
from attnlab.runs.sentences import sentence
from tests.forked import ended

OLD = Path(__file__).with_name("written_by_1ca6207")


def test_they_are_read_and_compared() -> None:
    runs = read_runs(OLD)
    assert [(run.variant, run.seed, run.status) for run in runs] == [
        *(("sdpa", 0, "finished"), ("unscaled", 0, "finished"), ("unscaled", 1, "interrupted"))
    ]
    _, unscaled = pairs(runs)
    assert unscaled.seeds == [0] and len(unscaled.setting.runs) == 2
    assert sentence(unscaled).startswith("unscaled ends with the loss of sdpa, to within 4e-05")


@pytest.mark.slow
def test_resuming_an_interrupted_one_is_refused_in_a_sentence(tmp_path: Path) -> None:
    shutil.copytree(OLD, tmp_path / "old")
    (folder,) = tmp_path.glob("old/attn=unscaled*/seed=1")
    before = (folder / "checkpoints" / "last.ckpt").read_bytes()
    typed = ["preset=micro", "model.n_layer=1", "model.n_head=2", "model.n_embd=8"]
    typed += ["model.block_size=16", "data.batch_size=4", "trainer.max_steps=6"]
    typed += ["trainer.val_check_interval=6", "checkpoint_every=3", "logger=none", "probes=light"]
    place = [f"outputs={tmp_path}", "name=old"]
    code, said = ended(["attn=unscaled", "seed=1", *typed, *place], tmp_path)
    assert code == 2 and "was written by other versions" in said and "Traceback" not in said
    assert (folder / "checkpoints" / "last.ckpt").read_bytes() == before
