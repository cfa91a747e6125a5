"""Results of the last release that an error has changed are marked, and compared with nothing."""

import json
from pathlib import Path

import pytest

from attnlab.errors import BadInput
from attnlab.files import read_yaml
from attnlab.runs.compare import compare
from attnlab.runs.frame import read_run, read_runs
from attnlab.runs.run_directory import RunDirectory
from tests.invented import write_run

LIGHTNING = "lightning.pytorch.callbacks"
# Overrides, and whether the last release gave another result than today's code.
ROWS = [
    (["trainer.limit_val_batches=0.5"], True),
    (["trainer.limit_val_batches=1"], True),
    (["trainer.limit_val_batches=1.0"], False),
    (["trainer.limit_val_batches=null"], False),
    (["trainer.gradient_clip_algorithm=value", "trainer.gradient_clip_val=1"], True),
    (["trainer.gradient_clip_algorithm=value", "trainer.gradient_clip_val=null"], False),
    (["trainer.gradient_clip_algorithm=norm"], False),
    (["trainer.fast_dev_run=3"], True),
    (["trainer.fast_dev_run=false"], False),
    (["trainer.limit_train_batches=5"], True),
    (["trainer.overfit_batches=1"], True),
    (["trainer.gradient_clip_val=0.1"], False),
    ([f"callbacks.c={{_target_: {LIGHTNING}.LearningRateFinder}}"], True),
    ([f"callbacks.c={{_target_: {LIGHTNING}.GradientAccumulationScheduler}}"], True),
    ([f"callbacks.c={{_target_: {LIGHTNING}.EMAWeightAveraging}}"], False),
    ([], False),
]


def make_new(folder: Path) -> None:
    """Give a result what today's code writes in addition."""
    file = folder / "metrics.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"instruction_set": "AVX2"}))


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize(("overrides", "was_wrong"), ROWS)
def test_a_result_of_the_last_release_counts_unless_an_error_changed_it(
    overrides: list[str], was_wrong: bool, is_new: bool, tmp_path: Path
) -> None:
    old = write_run(tmp_path, "sdpa", 0, 1.6, *overrides)
    new = write_run(tmp_path, "unscaled", 0, 3.2, *overrides)
    make_new(new)
    if is_new:
        make_new(old)
    marked = was_wrong and not is_new
    assert read_run(old)["status"] == ("damaged" if marked else "finished")
    assert read_run(new)["status"] == "finished"
    compared = compare(read_runs(tmp_path))
    assert any(len(each.differences) for each in compared) == (not marked)
    directory = RunDirectory(old)
    settings = read_yaml(directory.config)
    if not marked:
        assert directory.begin(settings, [], force=False) is not None
        return
    with pytest.raises(BadInput, match="force=true"):
        directory.begin(settings, [], force=False)
    assert directory.begin(settings, [], force=True) is None
