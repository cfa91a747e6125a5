"""The accuracy of a task during training, and the end of a run that solves it."""

import pytest

from attnlab.errors import BadInput
from attnlab.training.config import read_config
from attnlab.training.run import run
from tests.conftest import settings, weights_of

TINY = (
    *("preset=tasks", "data=parity", "logger=none", "model.block_size=8", "model.n_layer=1"),
    *("model.n_embd=8", "data.batch_size=2", "trainer.val_check_interval=4"),
    *("optim.min_lr=2e-3", "train_loss=false"),
)

CURVE = ("probes=curve", "probes.curve.every=2")


@pytest.fixture
def train(tmp_path):
    """Train in a folder of its own."""

    def go(*overrides, folder="run"):
        return run(read_config(settings(*overrides)), tmp_path / folder, variant="sdpa")

    return go


def test_the_curve_is_measured_without_changing_the_weights(train):
    result = train(*TINY, *CURVE, "trainer.max_steps=8", folder="with")
    train(*TINY, "probes=none", "trainer.max_steps=8", folder="without")
    curve = result.metrics["probes"]["curve"]
    assert curve["every"] == 2 and len(curve["accuracy"]) == 4
    assert list(curve["losses"]) == ["4", "8"]
    assert curve["losses"]["8"] == result.metrics["val_loss"]
    first, second = (weights_of(result.folder.with_name(x)) for x in ("with", "without"))
    assert all(first[name].equal(second[name]) for name in first)


def test_a_longer_run_at_a_constant_rate_begins_like_a_shorter_one(train):
    short, long = (
        train(*TINY, *CURVE, f"trainer.max_steps={n}", folder=f"{n}").metrics["probes"]
        for n in (4, 8)
    )
    assert long["curve"]["accuracy"][:2] == short["curve"]["accuracy"]
    assert long["curve"]["losses"]["4"] == short["curve"]["losses"]["4"]


def test_a_run_ends_after_two_accuracies_in_a_row(train):
    solved = (*CURVE, "callbacks=solved", "trainer.max_steps=8")
    result = train(*TINY, *solved, "callbacks.solved.accuracy=0.0")
    assert result.metrics["status"] == "stopped" and result.metrics["steps"] == 4
    result = train(*TINY, *solved, folder="other")
    assert result.metrics["status"] == "finished"


def test_the_end_needs_the_curve(train):
    with pytest.raises(BadInput, match="needs probes=curve"):
        train(*TINY, "callbacks=solved", "trainer.max_steps=8")
