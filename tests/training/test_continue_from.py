"""A continued run equals one long run."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnlab.errors import BadInput
from attnlab.runs.reading import read_curves
from attnlab.training.callbacks import RunCheckpoints
from attnlab.training.checkpoints import read_checkpoint
from tests.command_line import train_py
from tests.conftest import SMALL
from tests.forked import same_weights
from tests.training.test_callbacks import STOPS_AT_4
from tests.training.test_resume import rewrite

Train = Callable[..., Any]
# With dropout and a constant learning rate, every step depends only on earlier steps.
CONSTANT = (
    *("optim.min_lr=1e-3", "optim.warmup_steps=0", "model.dropout=0.1", "checkpoint_every=2"),
    *("logger=tensorboard", "trainer.log_every_n_steps=1"),
)
TIMES = {"wall_seconds", "tokens_per_second", "continued_from"}


def figures(run: Any) -> dict[str, Any]:
    return {key: x for key, x in run.metrics.items() if key not in TIMES}


@pytest.mark.parametrize(
    "settings",
    [
        (),
        (
            "optim=muon",
            "optim.lr=1e-3",
            "optim.adamw_lr=1e-3",
            "optim.decay=attnlab.training.optimizers.cosine",
        ),
        ("callbacks=ema", "trainer.accumulate_grad_batches=2"),
    ],
    ids=["adamw", "muon", "ema"],
)
def test_a_continued_run_equals_one_long_run(settings: tuple[str, ...], train: Train) -> None:
    whole = train(*CONSTANT, *settings, "trainer.max_steps=8", folder="whole")
    short = train(*CONSTANT, *settings, "trainer.max_steps=4", folder="short")
    before = {f: f.read_bytes() for f in short.folder.rglob("*") if f.is_file()}
    more = ("trainer.max_steps=8", f"continue_from={short.folder}")
    run = train(*CONSTANT, *settings, *more)
    assert same_weights(run.folder, whole.folder)
    assert figures(run) == figures(whole)
    assert run.metrics["continued_from"]["step"] == 4
    losses = read_curves(whole.folder, "train/loss")["train/loss"]
    assert read_curves(run.folder, "train/loss")["train/loss"] == losses[4:]
    best = [x.folder / "checkpoints" / "best.ckpt" for x in (run, whole)]
    steps = [read_checkpoint(file)["global_step"] for file in best]
    assert steps[0] == steps[1]
    assert before == {f: f.read_bytes() for f in short.folder.rglob("*") if f.is_file()}
    again = train(*CONSTANT, *settings, *more)
    assert not again.fresh and again.metrics == run.metrics


@pytest.mark.parametrize(("short_steps", "killed_at"), [(4, 5), (4, 7), (5, 7)])
def test_an_interrupted_continued_run_resumes(
    short_steps: int, killed_at: int, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 5 is not validated, so its checkpoint is written after Lightning's epoch has ended."""
    whole = train(*CONSTANT, "trainer.max_steps=8", folder="whole")
    short = train(*CONSTANT, f"trainer.max_steps={short_steps}", folder="short")
    more = (*CONSTANT, "trainer.max_steps=8", f"continue_from={short.folder}")

    def killed(self: Any, trainer: Any, *_: Any) -> None:
        if trainer.global_step == killed_at:
            raise SystemExit(128 + signal.SIGKILL)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr("attnlab.training.callbacks.Scalars.on_train_batch_end", killed)
        train(*more)
    assert same_weights(train(*more).folder, whole.folder)


@pytest.mark.parametrize("start", ["continue_from=", "init_from="])
def test_a_run_cannot_replace_the_run_it_starts_from(
    start: str, train: Train, tmp_path: Path
) -> None:
    before = {f: f.read_bytes() for f in train().folder.rglob("*") if f.is_file()}
    with pytest.raises(BadInput, match="is the run to start from"):
        train(f"{start}{tmp_path}/run", "trainer.max_steps=8", "force=true")
    assert before == {f: f.read_bytes() for f in (tmp_path / "run").rglob("*") if f.is_file()}


def test_a_stopped_run_can_be_continued(train: Train) -> None:
    stopped = train(*STOPS_AT_4, folder="stopped")
    assert stopped.metrics["status"] == "stopped"
    run = train("trainer.max_steps=10", f"continue_from={stopped.folder}")
    assert (run.metrics["status"], run.metrics["steps"]) == ("finished", 10)


def test_a_continued_run_prints_its_schedule(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("optim.min_lr=0", "optim.warmup_steps=0")
    short = train(*settings, folder="short")
    train(*settings, "trainer.max_steps=8", f"continue_from={short.folder}")
    said = capsys.readouterr().out
    assert "from step 4 to 8, with the schedule of 8 steps" in said
    assert "the learning rate, last 0, is now 0.0005" in said  # half a cosine is half done


def test_the_identity_holds_the_weights_it_continued_from(train: Train) -> None:
    short = train(folder="short")
    more = ("trainer.max_steps=8", f"continue_from={short.folder}")
    run = train(*more)
    train("force=true", folder="short")  # the same weights
    assert not train(*more).fresh
    file = short.folder / "checkpoints" / "last.ckpt"
    rewrite(file, lambda checkpoint: checkpoint["state_dict"]["net.wte.weight"].mul_(2))
    with pytest.raises(BadInput, match="continues other weights"):
        train(*more)
    assert train(*more, "force=true").metrics["val_loss"] != run.metrics["val_loss"]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (["trainer.max_steps=4"], "max_steps = 4 must be more than the 4 steps"),
        (["trainer.max_steps=8", "seed=1"], r"another configuration \(seed\)"),
        (["trainer.max_steps=8", "optim.lr=0.1"], r"another configuration \(optim\.lr\)"),
        (["trainer.max_steps=8", "callbacks=ema"], "cannot add an average of the weights"),
    ],
)
def test_changed_settings_are_refused_when_continuing(
    changed: list[str], named: str, train: Train, tmp_path: Path
) -> None:
    short = train(folder="short")
    with pytest.raises(BadInput, match=named):
        train(*changed, f"continue_from={short.folder}")
    assert not (tmp_path / "run").exists()


def test_only_finished_and_stopped_runs_can_be_continued(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(RunCheckpoints, "on_validation_end", ended)
        train(folder="interrupted")
    for name, why in (("interrupted", "is interrupted"), ("none", "is not a run directory")):
        with pytest.raises(BadInput, match=why):
            train("trainer.max_steps=8", f"continue_from={tmp_path / name}")


def test_a_run_directory_needs_no_quotes(text_file: Path, tmp_path: Path) -> None:
    command = [*SMALL, f"data.path={text_file}", f"outputs={tmp_path}"]
    assert train_py(*command).code == 0
    (folder,) = tmp_path.glob("lab/*/seed=0")
    assert "=" in folder.name and "," in folder.parent.name
    ended = train_py(*command, "trainer.max_steps=6", f"continue_from={folder}")
    assert ended.code == 0, ended
    assert f"Continuing {folder} from step 4 to 6" in ended.out
    (metrics,) = tmp_path.glob("lab/*continue_from*/seed=0/metrics.json")
    assert metrics.exists()
