"""A checkpoint is checked as a whole before resuming, and only files of a run are deleted."""

import hashlib
import io
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch

from attnlab.errors import BadInput
from attnlab.files import seal
from attnlab.runs.reading import read_run
from attnlab.runs.run_directory import RunDirectory
from attnlab.training.callbacks import RunCheckpoints, Scalars
from attnlab.training.checkpoints import read_checkpoint
from tests.conftest import weights_of
from tests.marks import sampled

Train = Callable[..., Any]
Change = Callable[[dict[str, Any]], Any]
SETTINGS = ("trainer.max_steps=6", "checkpoint_every=1", "trainer.val_check_interval=2")


def interrupted(train: Train, monkeypatch: pytest.MonkeyPatch, step: int, *extra: str) -> None:
    """Train until a signal arrives after the checkpoint of `step` was written."""

    def ended(self: Any, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == step + 1:
            raise SystemExit(143)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(Scalars, "on_train_batch_end", ended)
        train(*SETTINGS, *extra)


def rewrite(file: Path, change: Change) -> None:
    """Change a checkpoint and seal it again."""
    checkpoint = read_checkpoint(file)
    change(checkpoint)
    content = io.BytesIO()
    torch.save(checkpoint, content)
    file.write_bytes(seal(content.getvalue()))


CHANGES: dict[str, Change] = {
    **{
        f"no {part}": lambda c, part=part: c.pop(part)  # type: ignore[misc]
        for part in (
            *("global_step", "state_dict", "loops", "callbacks"),
            *("optimizer_states", "lr_schedulers"),
        )
    },
    "step of another type": lambda c: c.update(global_step="3"),
    "step beyond the end": lambda c: c.update(global_step=99),
    "weight missing": lambda c: c["state_dict"].popitem(),
    "weight of another shape": lambda c: c["state_dict"].update(
        {"net.tok_emb.weight": torch.zeros(1)}
    ),
    "weights as a list": lambda c: c.update(state_dict=[1]),
    "loops empty": lambda c: c.update(loops={}),
    "no optimizer": lambda c: c.update(optimizer_states=[]),
    "callbacks empty": lambda c: c["callbacks"].clear(),
    "no state of a callback": lambda c: c["callbacks"].pop("Divergence"),
    "of an older attnlab": lambda c: c["attnlab"].pop("versions"),
    "of another torch": lambda c: c["attnlab"]["versions"].update(torch="1.0"),
    "no recipe": lambda c: c["attnlab"].update(recipe=7),
    "no configuration": lambda c: c["attnlab"]["recipe"].update(config=None),
}


@pytest.mark.parametrize("optim", ["adamw", "muon"])
def test_a_checkpoint_that_lacks_a_part_or_belongs_to_another_run_is_refused(
    optim: str, train: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    interrupted(train, monkeypatch, 3, f"optim={optim}")
    file = tmp_path / "run" / "checkpoints" / "last.ckpt"
    whole = file.read_bytes()
    rewrite(file, lambda c: None)
    for name, change in CHANGES.items():
        file.write_bytes(whole)
        rewrite(file, change)
        before = {f: f.read_bytes() for f in (tmp_path / "run").rglob("*") if f.is_file()}
        with pytest.raises(BadInput) as refused:
            train(*SETTINGS, f"optim={optim}")
        assert "force=true" in str(refused.value), name
        assert before == {f: f.read_bytes() for f in (tmp_path / "run").rglob("*") if f.is_file()}
    file.write_bytes(whole)
    assert train(*SETTINGS, f"optim={optim}").metrics["steps"] == 6


OWN = """
from torch.nn.functional import scaled_dot_product_attention

def kernel(q, k, v, *, mask, scale, dropout):
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
"""


@pytest.fixture
def own_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a kernel of the user."""
    monkeypatch.syspath_prepend(tmp_path)
    (file := tmp_path / "kernel_of_user.py").write_text(OWN)
    yield file
    sys.modules.pop("kernel_of_user", None)


def test_a_changed_kernel_is_named(
    own_kernel: Path, train: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = ("attn.kernel=kernel_of_user.kernel", "model.dropout=0")
    interrupted(train, monkeypatch, 3, *settings)
    first = hashlib.sha256(own_kernel.read_bytes()).hexdigest()
    own_kernel.write_text(OWN + "# changed\n")
    kept = read_checkpoint(tmp_path / "run" / "checkpoints" / "last.ckpt")["attnlab"]
    assert kept["conditions"]["own_code"]["kernel_of_user"]["sha256"] == first
    # This process still has the kernel as it was imported.
    run = train(*SETTINGS, *settings, folder="in the same process")
    assert run.metrics["own_code"]["kernel_of_user"]["sha256"] == first
    del sys.modules["kernel_of_user"]
    with pytest.warns(UserWarning, match=r"with own_code\.kernel_of_user\.sha256 = .* \(was "):
        run = train(*SETTINGS, *settings)
    assert run.metrics["own_code"]["kernel_of_user"]["sha256"] != first
    train(*SETTINGS, *settings)  # finished, and unchanged since
    own_kernel.write_text(OWN + "# changed again\n")
    del sys.modules["kernel_of_user"]
    with pytest.warns(UserWarning, match=r"kernel_of_user changed since .*force=true"):
        train(*SETTINGS, *settings)


def test_a_run_that_goes_on_elsewhere_says_so(
    train: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    interrupted(train, monkeypatch, 3)
    file = tmp_path / "run" / "checkpoints" / "last.ckpt"
    elsewhere = {"precision": "bf16-mixed", "device": "cuda", "device_name": "NVIDIA\x1b[2J"}
    rewrite(file, lambda c: c["attnlab"]["conditions"].update(elsewhere))
    with pytest.warns(UserWarning) as told:
        run = train(*SETTINGS)
    (sentence,) = [x for x in (str(each.message) for each in told) if "this run resumes" in x]
    name = run.metrics["device_name"]  # of the last part alone
    changed = [x for x in run.metrics["resumed"] if "device_name" in x]
    assert changed == [f"from step 3 with device_name = {name[:50]} (was NVIDIA\\x1b[2J)"]
    assert sentence.startswith("this run resumes from step 3 with precision = 32-true (was bf16")
    assert "device = cpu (was cuda)" in sentence and "\x1b" not in sentence
    assert "threads" not in sentence


def test_a_commit_between_the_parts_of_a_run_is_recorded(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnlab.training.run.git_state", lambda: {"commit": "a", "dirty": False})
    interrupted(train, monkeypatch, 3)
    monkeypatch.setattr("attnlab.training.run.git_state", lambda: {"commit": "b", "dirty": False})
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        run = train(*SETTINGS)
    assert run.metrics["resumed"] == ["from step 3 with git.commit = b (was a)"]


def test_a_run_killed_before_its_metrics_is_measured_with_its_average(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        raise SystemExit(143)

    whole = train("callbacks=ema", "data.eval_lengths=[8]", folder="whole").metrics
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr("attnlab.training.run.measured", killed)
        train("callbacks=ema", "data.eval_lengths=[8]")
    resumed = train("callbacks=ema", "data.eval_lengths=[8]").metrics
    assert resumed["train_loss"] == whole["train_loss"]
    assert resumed["by_length"] == whole["by_length"]


def test_the_commit_of_a_run_is_that_of_its_start(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = iter(["at the start", "at the end"])
    monkeypatch.setattr("attnlab.training.run.git_state", lambda: next(commits))
    assert train().metrics["git"] == "at the start"


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("name", ["last.ckpt", "best.ckpt"])
def test_a_finished_run_with_a_damaged_checkpoint_is_refused(name: str, train: Train) -> None:
    first = train()
    file = first.folder / "checkpoints" / name
    flip_a_bit(file)
    before = {f: f.read_bytes() for f in first.folder.rglob("*") if f.is_file()}
    with pytest.raises(BadInput, match=rf"checkpoints/{name} .* is damaged.*force=true"):
        train()
    assert before == {f: f.read_bytes() for f in first.folder.rglob("*") if f.is_file()}
    file.unlink()  # which is not damage
    assert not train().fresh
    flip_a_bit(train("force=true").folder / "checkpoints" / name)
    again = train("force=true")
    assert again.metrics["val_loss"] == first.metrics["val_loss"]
    assert not train().fresh


def test_a_damaged_best_checkpoint_is_refused(
    train: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    interrupted(train, monkeypatch, 4)
    best = tmp_path / "run" / "checkpoints" / "best.ckpt"
    whole = best.read_bytes()
    flip_a_bit(best)
    with pytest.raises(BadInput, match=r"best\.ckpt .* is damaged"):
        train(*SETTINGS)
    best.write_bytes(whole)
    flip_a_bit(train(*SETTINGS).folder / "checkpoints" / "best.ckpt")
    with pytest.raises(BadInput, match=r"run/checkpoints/best\.ckpt .* is damaged"):
        train(f"continue_from={tmp_path}/run", *SETTINGS, "trainer.max_steps=8", folder="longer")
    assert not (tmp_path / "longer").exists()


RESUMED = [
    (step, extra)
    for step in (1, 2, 5)
    for extra in (
        ("trainer.accumulate_grad_batches=3",),
        ("trainer.precision=64-true",),
        ("trainer.precision=bf16-true",),
        ("callbacks=[ema,early_stopping,checkpoints]",),
        ("optim=muon", "trainer.gradient_clip_val=0"),
    )
]


@pytest.mark.parametrize(
    ("step", "extra"), sampled(RESUMED, lambda pair: RESUMED.index(pair) in (0, 3, 6, 7, 9, 13))
)
def test_a_checkpoint_of_ours_is_always_accepted(
    step: int, extra: tuple[str, ...], train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(*SETTINGS, *extra, folder="whole")
    if step < 5:
        interrupted(train, monkeypatch, step, *extra)
    run = train(*SETTINGS, *extra)
    assert run.metrics["val_loss"] == whole.metrics["val_loss"]
    ours, theirs = weights_of(run.folder), weights_of(whole.folder)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


USERS = (
    *("notes.md", ".notes.1", ".hidden.2024", "status.json.bak", "metrics.json~", "metrics.txt"),
    *("events.out.tfevents", "events.out.tfevents.mine", "last.ckpt", "config.yaml", "a.tmp"),
    *(
        ".status.json.attnlab-x.tmp",
        ".thesis.tex.attnlab-12.tmp",
        "run.py",
        ".lock2",
        "hparams.yml",
    ),
    *("checkpoints/mine.ckpt", "checkpoints/last.ckpt.bak", "checkpoints/step_1.ckpt"),
    *("checkpoints/best (copy).ckpt", "checkpoints/.mine.3", "checkpoints/step_000100.pt"),
    *(".hydra/mine.yaml", ".hydra/config.yaml.orig", ".hydra/.x.4", "figures/loss.png"),
    *("figures/.cache.5", ".git.6/HEAD", ".venv.3/lib/.x.7", "figures/last.ckpt"),
    *("a b.txt", "-rf"),
)


def test_force_and_resume_keep_files_of_the_user(
    train: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert len(USERS) >= 30
    settings = ("logger=[tensorboard,csv]", "callbacks=checkpoints")
    interrupted(train, monkeypatch, 3, *settings)
    folder = tmp_path / "run"
    for name in USERS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    leftover = folder / "checkpoints" / ".last.ckpt.attnlab-4711.tmp"
    leftover.write_text("of a killed write")
    link = folder / ".metrics.json.attnlab-1.tmp"
    link.symlink_to(folder / "notes.md")

    def all_there() -> None:
        assert [name for name in USERS if (folder / name).read_text() != name] == []
        assert link.is_symlink()

    train(*SETTINGS, *settings)
    all_there()
    assert not leftover.exists()
    train(*SETTINGS, *settings, "force=true")
    all_there()

    def broken(*_: Any) -> None:
        raise RuntimeError("a failure")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(RunCheckpoints, "on_validation_end", broken)
        train(*SETTINGS, *settings, "force=true")
    all_there()
    train(*SETTINGS, *settings)
    all_there()


@contextmanager
def within_a_second() -> Any:
    def too_long(*_: Any) -> None:
        raise AssertionError("it takes longer than a second")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def damage(file: Path, how: str) -> None:
    file.unlink()
    if how == "directory":
        file.mkdir()
    elif how == "fifo":
        os.mkfifo(file)
    elif how == "device":
        file.symlink_to("/dev/zero")
    elif how == "endless":
        with file.open("wb") as stream:
            stream.truncate(2**42)
    elif how == "dangling":
        file.symlink_to(file.parent / "nothing")
    elif how == "bytes":
        file.write_bytes(b"\xff\xfe\0\x80")
    else:
        file.write_text(how)


FORMS = (
    *("{}", "[]", '"text"', "3", "NaN", "null", "", "{", '{"status": 3}', "[" * 100_000),
    *('{"status": "finished", "step": "x"}', "1" * 10_000),
    *("directory", "fifo", "device", "endless", "dangling", "bytes"),
)


@pytest.mark.parametrize("name", ["status.json", "metrics.json"])
@pytest.mark.parametrize("how", FORMS, ids=lambda how: how[:12])
def test_a_damaged_file_is_one_sentence(name: str, how: str, tmp_path: Path) -> None:
    folder = RunDirectory(tmp_path)
    folder.set_status("finished", "print", {"step": 2})
    folder.metrics_file.write_text("{}")
    damage(tmp_path / name, how)
    with within_a_second(), pytest.raises(BadInput, match=name):
        folder.status()
        folder.metrics()
    with within_a_second():
        assert read_run(tmp_path).status in {"damaged", "finished"}


@pytest.mark.parametrize("how", ["fifo", "device", "endless", "directory", ""])
def test_a_checkpoint_that_is_not_a_file(how: str, train: Train) -> None:
    run = train()
    file = run.folder / "checkpoints" / "last.ckpt"
    damage(file, how)
    with within_a_second(), pytest.raises(BadInput, match=r"last\.ckpt"):
        read_checkpoint(file)


def test_the_status_names_the_last_step(
    train: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    interrupted(train, monkeypatch, 3)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["status"], status["step"]) == ("interrupted", 4)
