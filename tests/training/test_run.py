"""Runs: bit-identical repetition, failures as results, and protection of run directories."""

import io
import json
import math
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch

from attnlab.data.batches import ValidationBatches
from attnlab.errors import BadInput
from attnlab.files import seal
from attnlab.runs.reading import read_curves
from attnlab.runs.run_directory import RunDirectory
from attnlab.training.callbacks import AtomicCheckpointIO
from attnlab.training.checkpoints import load_model, read_checkpoint
from tests.command_line import train_py
from tests.conftest import ROOT, SMALL, TRAINABLE, plain, weights_of
from tests.forked import RUN, at_call, begin, ended, folder_of
from tests.marks import sampled

Train = Callable[..., Any]
TIMES = {"tokens_per_second", "wall_seconds"}


def figures(folder: Path) -> dict[str, Any]:
    metrics = json.loads((folder / "metrics.json").read_text())
    return {key: value for key, value in metrics.items() if key not in TIMES}


def same_weights(a: Path, b: Path) -> bool:
    ours, theirs = weights_of(a), weights_of(b)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


@pytest.mark.parametrize("variant", TRAINABLE)
def test_every_variant_trains_and_is_recorded(variant: str, train: Train) -> None:
    result = train(f"attn={variant}")
    assert {f.name for f in result.folder.iterdir()} >= {".hydra", "metrics.json", "status.json"}
    status = json.loads((result.folder / "status.json").read_text())
    metrics = result.metrics
    assert metrics["variant"] == variant
    if variant == "strict_flip":
        assert (status["status"], status["step"]) == ("diverged", 1)
        assert math.isnan(metrics["val_loss"])
        assert metrics["diverged_at_step"] == 1
        return
    assert (status["status"], status["step"]) == ("finished", 4)
    assert metrics["steps"] == 4
    assert metrics["tokens"] == 4 * 4 * 16
    assert 0 < metrics["val_loss"] < math.log(29) + 0.5
    assert metrics["corpus"]["name"] == "text.txt"
    assert (metrics["precision"], metrics["device"]) == ("32-true", "cpu")


def test_the_same_command_twice_gives_the_same_bits(train: Train) -> None:
    a = train("model.dropout=0.2", folder="a").folder
    b = train("model.dropout=0.2", folder="b").folder
    assert same_weights(a, b)
    assert figures(a) == figures(b)


def test_another_seed_gives_another_run(train: Train) -> None:
    assert not same_weights(train(folder="a").folder, train("seed=1", folder="b").folder)


def test_val_loss_is_the_mean_over_the_whole_validation_text(train: Train) -> None:
    result = train()
    net, alphabet = load_model(result.folder)
    text = (Path(result.folder) / ".hydra" / "config.yaml").read_text()
    corpus = Path(next(line for line in text.splitlines() if "path:" in line).split()[-1])
    ids = torch.tensor([alphabet.index(c) for c in corpus.read_text()])[3600:]
    total = 0.0
    for x, y in ValidationBatches(ids, 16, batch_size=1):
        with torch.no_grad():
            log_p = net(x).double().log_softmax(-1)
        total -= float(log_p.gather(-1, y[..., None]).sum())
    assert result.metrics["val_loss"] == pytest.approx(total / 399, rel=1e-6)


KERNELS = [(variant, s) for variant in ("manual", "torch_mha") for s in ("null", "1.0", "0.3")]


@pytest.mark.parametrize(
    ("variant", "scale"),
    sampled(KERNELS, lambda pair: pair in (("manual", "null"), ("torch_mha", "0.3"))),
)
def test_50_steps_in_fp64_agree_to_1e_10(variant: str, scale: str, train: Train) -> None:
    overrides = ["trainer.max_steps=50", "trainer.val_check_interval=50", f"attn.scale={scale}"]
    overrides.append("trainer.precision=64-true")
    a = train("attn=sdpa", *overrides, folder="a")
    b = train(f"attn={variant}", *overrides, folder="b")
    ours, theirs = weights_of(a.folder), weights_of(b.folder)
    assert max(float((ours[k] - theirs[k]).abs().max()) for k in ours) < 1e-10
    assert ours["net.wte.weight"].dtype == torch.float64
    assert a.metrics["val_loss"] == pytest.approx(b.metrics["val_loss"], abs=1e-10)


class StopAt(L.Callback):
    """Fails after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            raise RuntimeError("the machine stopped")


STOPS = [(stop, accumulate) for accumulate in (1, 2) for stop in (1, 3, 4, 5, 8, 11)]


@pytest.mark.parametrize(
    ("stop", "accumulate"),  # before the first checkpoint, at one, after one, after a validation
    sampled(STOPS, lambda pair: pair in ((1, 1), (3, 2), (4, 1), (5, 2), (11, 1))),
)
def test_an_interrupted_run_resumes_to_the_same_bits(
    stop: int, accumulate: int, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = ["trainer.max_steps=12", "trainer.val_check_interval=4", "checkpoint_every=3"]
    overrides += ["model.dropout=0.1", f"trainer.accumulate_grad_batches={accumulate}"]
    whole = train(*overrides, folder="whole")
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="machine stopped"):
        patch.setattr("attnlab.training.callbacks.Lines", lambda: StopAt(stop))
        train(*overrides, folder="broken")
    broken = whole.folder.parent / "broken"
    status = json.loads((broken / "status.json").read_text())
    assert (status["status"], status["step"]) == ("failed", stop)
    assert "the machine stopped" in status["reason"]
    train(*overrides, folder="broken")
    assert same_weights(whole.folder, broken)
    assert figures(whole.folder) == figures(broken)
    best = [
        torch.load(folder / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
        for folder in (whole.folder, broken)
    ]
    assert all(torch.equal(best[0][k], best[1][k]) for k in best[0])
    assert read_checkpoint(broken / "checkpoints" / "last.ckpt")["global_step"] == 12


def test_a_run_killed_at_any_checkpoint_ends_with_the_same_checkpoints(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also best.ckpt, after a kill before or after either of the two files of a validation."""
    whole = train(folder="whole").folder
    save = AtomicCheckpointIO.save_checkpoint
    for number in range(1, 5):  # best and last of step 2, best and last of step 4
        left = iter(range(number - 1))

        def killed(io: Any, content: Any, file: Any, left: Any = left, **options: Any) -> None:
            if next(left, None) is None:
                raise SystemExit(143)
            save(io, content, file, **options)

        with monkeypatch.context() as patch, pytest.raises(SystemExit):
            patch.setattr(AtomicCheckpointIO, "save_checkpoint", killed)
            train(folder=str(number))
        folder = train(folder=str(number)).folder
        for name in ("best", "last"):
            ours, theirs = (
                read_checkpoint(f / "checkpoints" / f"{name}.ckpt") for f in (folder, whole)
            )
            assert ours["global_step"] == theirs["global_step"]
            weights = theirs["state_dict"]
            assert all(torch.equal(x, weights[k]) for k, x in ours["state_dict"].items())


@pytest.mark.parametrize("interval", [2, 500])
def test_the_last_step_is_validated_and_saved_at_any_interval(interval: int, train: Train) -> None:
    overrides = ["trainer.max_steps=5", f"trainer.val_check_interval={interval}"]
    result = train(*overrides, "checkpoint_every=50")
    checkpoint = read_checkpoint(result.folder / "checkpoints" / "last.ckpt")
    assert checkpoint["global_step"] == 5
    assert math.isfinite(result.metrics["val_loss"])
    net, _ = load_model(result.folder)
    trained = weights_of(result.folder)
    assert torch.equal(net.state_dict()["wte.weight"], trained["net.wte.weight"])


def test_a_finished_run_is_returned_unchanged(train: Train) -> None:
    first = train()
    before = {f: f.stat().st_mtime_ns for f in first.folder.rglob("*") if f.is_file()}
    again = train()
    assert not again.fresh
    assert again.metrics == first.metrics
    assert before == {f: f.stat().st_mtime_ns for f in first.folder.rglob("*") if f.is_file()}


def test_a_folder_of_another_configuration_is_refused_and_not_touched(train: Train) -> None:
    first = train()
    before = {f: f.read_bytes() for f in first.folder.rglob("*") if f.is_file()}
    with pytest.raises(BadInput, match=r"another configuration \(optim\.lr\)"):
        train("optim.lr=0.5")
    assert before == {f: f.read_bytes() for f in first.folder.rglob("*") if f.is_file()}


def test_a_run_that_another_process_has_written_meanwhile_is_not_touched(
    train: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    train("optim.lr=0.1", folder="other")
    locked = RunDirectory.locked

    def after_another(self: RunDirectory) -> AbstractContextManager[None]:
        shutil.copytree(tmp_path / "other", self.path)
        return locked(self)

    monkeypatch.setattr(RunDirectory, "locked", after_another)
    with pytest.raises(BadInput, match="holds a run of another configuration"):
        train()
    assert RunDirectory(tmp_path / "run").status()["status"] == "finished"


def test_resuming_with_another_text_is_refused(
    train: Train, small: Callable[..., Any], text_file: Path, tmp_path: Path
) -> None:
    from attnlab.runs.run_directory import RunDirectory
    from attnlab.training.config import read_config
    from attnlab.training.origin import read_resumable

    folder, cfg = RunDirectory(train().folder), small()
    assert read_resumable(folder, plain(cfg), read_config(cfg).data()) is not None
    changed = tmp_path / "text.txt"
    changed.write_text(text_file.read_text()[::-1])
    corpus = read_config(small(f"data.path={changed}")).data()
    with pytest.raises(BadInput, match=r"trained on data other than the current text\.txt"):
        read_resumable(folder, plain(cfg), corpus)


def test_force_redoes_a_run(train: Train) -> None:
    before = set(train().folder.glob("events.*"))
    result = train("force=true", "optim.lr=0.5")
    assert result.fresh
    assert before
    assert not before & set(result.folder.glob("events.*"))


def test_a_loss_that_explodes_is_a_result(train: Train) -> None:
    """A learning rate of 1e30 makes weights, then loss, non-finite; the run says when."""
    result = train("optim.lr=1e30", "optim.warmup_steps=0", "trainer.max_steps=20")
    metrics = result.metrics
    assert metrics["status"] == "diverged"
    assert metrics["diverged_at_step"] < 20
    assert metrics["steps"] == metrics["diverged_at_step"]
    assert math.isfinite(metrics["last_finite_loss"])
    again = train("optim.lr=1e30", "optim.warmup_steps=0", "trainer.max_steps=20")
    assert not again.fresh


def test_a_nan_loss_is_never_the_best(train: Train) -> None:
    result = train("attn=strict_flip")
    assert not (result.folder / "checkpoints" / "best.ckpt").exists()


def test_checkpoints_hold_plain_types(train: Train) -> None:
    checkpoint = read_checkpoint(train().folder / "checkpoints" / "last.ckpt")
    seen: set[type] = set()

    def walk(value: Any) -> None:
        seen.add(type(value))
        for item in (
            value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
        ):
            walk(item)

    walk(dict(checkpoint))
    plain = {dict, list, tuple, str, int, float, bool, type(None), torch.Tensor}
    assert {t.__name__ for t in seen - plain} <= {"OrderedDict"}


def test_a_damaged_checkpoint_is_refused(train: Train, tmp_path: Path) -> None:
    """A flipped byte anywhere, or any truncation, is detected."""
    content = (train().folder / "checkpoints" / "last.ckpt").read_bytes()
    copy = tmp_path / "copy.ckpt"
    copy.write_bytes(content)
    load_model(copy)
    for place in range(0, len(content), len(content) // 200):
        flipped = bytearray(content)
        flipped[place] ^= 0xFF
        for damaged in (bytes(flipped), content[:place]):
            copy.write_bytes(damaged)
            with pytest.raises(BadInput, match="is damaged"):
                load_model(copy)


def test_a_checkpoint_is_a_torch_file(train: Train) -> None:
    file = train().folder / "checkpoints" / "last.ckpt"
    plainly = torch.load(file, weights_only=True)
    assert plainly["global_step"] == read_checkpoint(file)["global_step"] == 4


def test_a_foreign_checkpoint_is_refused(tmp_path: Path) -> None:
    for name, content in (("foreign", {"state_dict": {}}), ("empty", {"attnlab": {}})):
        saved = io.BytesIO()
        torch.save(content, saved)
        for file in (saved.getvalue(), seal(saved.getvalue())):
            (tmp_path / f"{name}.ckpt").write_bytes(file)
            with pytest.raises(BadInput, match="is not a checkpoint of attnlab"):
                load_model(tmp_path / f"{name}.ckpt")


class Malice:
    def __reduce__(self) -> Any:
        return (open, (str(Path(__file__).parent / "malice"), "w"))


def test_code_in_a_checkpoint_is_never_run(tmp_path: Path) -> None:
    saved = io.BytesIO()
    torch.save({"attnlab": Malice()}, saved)
    (tmp_path / "bad.ckpt").write_bytes(seal(saved.getvalue()))
    with pytest.raises(BadInput, match="cannot be read"):
        load_model(tmp_path / "bad.ckpt")
    assert not (Path(__file__).parent / "malice").exists()


def test_bf16_is_recorded_and_close_to_fp32(train: Train) -> None:
    result = train("trainer.precision=bf16-mixed")
    assert result.metrics["precision"] == "bf16-mixed"
    assert result.metrics["val_loss"] == pytest.approx(
        train(folder="b").metrics["val_loss"], abs=0.02
    )


def test_the_speed_is_tokens_per_training_time(train: Train) -> None:
    metrics = train("trainer.max_steps=40", "trainer.accumulate_grad_batches=4").metrics
    whole = metrics["tokens"] / metrics["wall_seconds"]
    assert metrics["tokens"] == 40 * 4 * 4 * 16
    assert whole < metrics["tokens_per_second"] < 4 * whole  # the rest is validation


def test_a_clip_of_0_turns_clipping_off(train: Train) -> None:
    off = train("trainer.gradient_clip_val=0", folder="a").folder
    assert same_weights(off, train("trainer.gradient_clip_val=null", folder="b").folder)
    assert not same_weights(off, train("trainer.gradient_clip_val=0.01", folder="c").folder)


def test_weights_that_explode_in_the_last_step_are_a_divergence(train: Train) -> None:
    overrides = ["trainer.max_steps=1", "optim.lr=1e38", "optim.warmup_steps=0"]
    result = train(*overrides)
    assert result.metrics["status"] == "diverged"
    assert not (result.folder / "checkpoints" / "best.ckpt").exists()


@pytest.mark.parametrize("steps", [4, 5])
def test_the_best_checkpoint_has_the_best_loss(steps: int, train: Train) -> None:
    result = train(f"trainer.max_steps={steps}")
    best = read_checkpoint(result.folder / "checkpoints" / "best.ckpt")
    losses = best["attnlab"]["val_losses"]
    assert losses[best["global_step"]] == result.metrics["best_val_loss"] == min(losses.values())


def test_force_deletes_only_files_of_a_run(train: Train, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("years of work")
    with pytest.raises(BadInput, match="holds no run"):
        train("force=true")
    (tmp_path / "run" / "thesis.tex").rename(tmp_path / "thesis.tex")
    train()
    (tmp_path / "thesis.tex").rename(tmp_path / "run" / "thesis.tex")
    train("force=true")
    assert (tmp_path / "run" / "thesis.tex").read_text() == "years of work"


def test_force_reruns_a_run_whose_status_is_damaged(train: Train) -> None:
    status = train().folder / "status.json"
    status.write_text(status.read_text()[:20])
    with pytest.raises(BadInput, match=r"is damaged .*force=true"):
        train()
    train("force=true")
    assert '"finished"' in status.read_text()


def test_a_resumed_run_writes_no_step_twice(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    overrides = ["trainer.max_steps=12", "checkpoint_every=5", "trainer.val_check_interval=12"]
    overrides += ["trainer.log_every_n_steps=1", "logger=tensorboard"]
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr("attnlab.training.callbacks.Lines", lambda: StopAt(9))
        train(*overrides)
    events = EventAccumulator(str(train(*overrides).folder)).Reload()
    steps = [event.step for event in events.Scalars("train/loss")]
    assert steps == list(range(1, 13))


@pytest.mark.long
def test_tensorboard_shows_no_point_twice_after_kills(text_file: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    command = [*RUN, f"data.path={text_file}", f"outputs={tmp_path}", "logger=tensorboard"]
    command += [
        "checkpoint_every=5",
        "trainer.val_check_interval=6",
        "trainer.log_every_n_steps=1",
    ]
    # The second is killed with the points of three steps that no checkpoint has.
    for step in (4, 10):  # before the first checkpoint, and between two of them
        code, said = ended(command, tmp_path, at_call(step, "training_step", signal.SIGKILL))
        assert code == -9, said
    folder = folder_of(tmp_path)
    assert max(read_curves(folder, "train/loss")["train/loss"])[0] == 9
    code, said = ended(command, tmp_path)
    assert code == 0 and "Resuming from step 6" in said
    events = EventAccumulator(str(folder)).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == list(range(1, 13))
    assert [event.step for event in events.Scalars("val/loss")] == [6, 12]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_losses_are_logged_once_a_step_under_the_steps_done(accumulate: int, train: Train) -> None:
    overrides = ["trainer.max_steps=6", "trainer.val_check_interval=3", "logger=tensorboard"]
    overrides += [f"trainer.accumulate_grad_batches={accumulate}", "trainer.log_every_n_steps=2"]
    result = train(*overrides)
    curves = read_curves(result.folder, "train/.*|val/loss")
    logged = {tag: [step for step, _ in curve] for tag, curve in curves.items()}
    every_other = [2, 4, 6]
    assert logged["train/loss"] == logged["train/lr"] == logged["train/grad_norm"] == every_other
    assert logged["val/loss"] == [3, 6]
    assert curves["val/loss"][-1][1] == pytest.approx(result.metrics["val_loss"])


def test_fp16_is_refused(train: Train) -> None:
    with pytest.raises(BadInput, match="precision = 16-mixed must be one of"):
        train("trainer.precision=16-mixed")


def forked_ranks(command: list[str], scratch: Path) -> None:
    """Both processes of a distributed run, started like Lightning does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])

    def as_rank(rank: int) -> Callable[[], None]:
        told = {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "WORLD_SIZE": "2"}
        told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        return lambda: os.environ.update(told)

    for process in [begin(command, scratch, as_rank(rank)) for rank in range(2)]:
        code, said = process.end()
        assert code == 0, said


def started_by_lightning(command: list[str], scratch: Path) -> None:
    subprocess.run([sys.executable, "train.py", *command], cwd=ROOT, check=True, timeout=300)


@pytest.mark.parametrize(
    "started", [forked_ranks, pytest.param(started_by_lightning, marks=pytest.mark.long)]
)
def test_two_processes_train_on_the_same_global_batches(
    started: Callable[[list[str], Path], None], tmp_path: Path, text_file: Path
) -> None:
    losses = {}
    for devices in (1, 2):
        command = [*SMALL, f"data.path={text_file}", "trainer.max_steps=8"]
        command += [f"outputs={tmp_path}", f"name=d{devices}", f"trainer.devices={devices}"]
        command += ["trainer.accelerator=cpu", "trainer.val_check_interval=4"]
        command += ["logger=tensorboard"]
        if devices == 1:
            ended = train_py(*command)
            assert ended.code == 0, ended
        else:
            started([*command, "trainer.strategy=ddp"], tmp_path)
        (folder,) = (tmp_path / f"d{devices}").glob("*/seed=0")
        checkpoint = read_checkpoint(folder / "checkpoints" / "last.ckpt")
        losses[devices] = checkpoint["attnlab"]["val_losses"]
        (logged,) = read_curves(folder, "val/loss").values()
        assert dict(logged) == pytest.approx(losses[devices])
        assert json.loads((folder / "metrics.json").read_text())["devices"] == devices
    assert losses[1].keys() == losses[2].keys() == {4, 8}
    for step, loss in losses[1].items():
        assert losses[2][step] == pytest.approx(loss, abs=1e-5)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ([], "sdpa"),
        (["trainer.precision=bf16-mixed"], "sdpa in float32"),
        (["attn=manual", "trainer.precision=bf16-mixed"], "manual"),
        (["attn=torch_mha"], "TorchMHA"),
    ],
)
def test_a_run_records_its_attention_backend(
    train: Callable[..., Any], overrides: list[str], told: str
) -> None:
    metrics = train("trainer.accelerator=cpu", *overrides).metrics
    assert metrics["attention"] == told


def test_an_empty_current_directory_may_be_the_run_directory(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    assert train().metrics["status"] == "finished"


def test_a_batch_that_the_devices_cannot_share_is_refused(train: Train, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"data.batch_size = 4 must be a positive multiple .*, 3"):
        train("trainer.accelerator=cpu", "trainer.devices=3")
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_a_step_gets_its_memory_from_the_step_before():
    code = """
import resource, torch
from attnlab.training.run import reuse_freed_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        blocks = [torch.ones(2**23) for _ in range(3)]  # of 32 MiB
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
default = faults()
reuse_freed_memory()
print(faults() / default)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.2  # the first of 20 rounds takes new pages
