"""The final output of a run on the terminal."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra import compose
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

from attnlab.commands.composing import hydra_conf
from attnlab.errors import BadInput
from attnlab.training.checkpoints import load_model
from attnlab.training.lightning_module import GPTModule
from attnlab.training.main import arrange_arguments, one_sentence, train, without_defaults
from attnlab.training.run import Result
from attnlab.training.summary import _trust, show
from tests.conftest import ROOT

FINISHED = {
    "status": "finished",
    "val_loss": 1.9,
    "unit": "character",
    "corpus": {"name": "plays"},
    "tokens_per_second": 9.0,
    "device": "cpu",
    "precision": "32-true",
    "probes": {},
}


def ending(result: Result, capsys: pytest.CaptureFixture[str], *overrides: str) -> list[str]:
    capsys.readouterr()
    show(result, overrides)
    return capsys.readouterr().out.splitlines()


def test_the_run_directory_is_printed_on_one_line(
    train: Callable[..., Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    result = train(folder="a_folder_with_a_name_that_is_longer_than_forty_columns_are")
    lines = ending(result, capsys)
    assert f" run directory     {result.folder}" in lines
    assert any(line.startswith("  ") and f"sample {result.folder}" in line for line in lines)


@pytest.mark.parametrize(
    ("typed", "next_"),
    [
        ([], "train.py attn=unscaled"),
        (["attn=sdpa"], "train.py attn=unscaled"),
        (["attn=rotary", "seed=3", "force=true"], "train.py attn=sdpa seed=3"),
        (["attn=unscaled", "optim.lr=0.1"], "train.py attn=sdpa optim.lr=0.1"),
        (["seed=1", "optim.lr=0.1", "seed=2"], "train.py attn=unscaled seed=2 optim.lr=0.1"),
        (["attn.scale=0.5", "+attn.heads=2"], "train.py attn=sdpa"),
        (["preset=fast", "name=a b"], "train.py attn=unscaled preset=fast 'name=a b'"),
        (["preset=fast", "--config-dir=c"], "train.py --config-dir=c attn=unscaled preset=fast"),
        (["continue_from='a/seed=0'", "seed=1"], "train.py attn=unscaled seed=1"),
    ],
)
def test_the_next_run_changes_one_thing(
    typed: list[str], next_: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ending(Result(Path("o/lab/run/seed=0"), FINISHED, GPTModule, {}), capsys, *typed)
    assert lines[-1].endswith(next_)


def test_the_next_commands_are_those_that_work(
    train: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    own = ending(train("attn.kernel=attnlab.attention.kernels.manual", "logger=none"), capsys)
    assert any(line.endswith(" --trust") for line in own if " sample " in line), own
    assert not any("--logdir" in line for line in own)  # without a logger
    lab = ending(train("logger=tensorboard", folder="lab"), capsys)
    assert any("tensorboard --logdir" in line for line in lab)
    assert not any("--trust" in line for line in lab)


def test_a_finished_run_is_reported_without_its_saved_settings(
    train: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ending(train(), capsys)
    saved = train().folder / ".hydra" / "config.yaml"
    for damage in (lambda: saved.write_text(""), saved.unlink):
        damage()
        again = ending(train(), capsys)
        assert again[-3:] == lines[-3:] and any("already done" in line for line in again)


def test_a_divergence_reports_the_reason(
    train: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    result = train("optim.lr=1e30", "optim.warmup_steps=0")
    text = " ".join(" ".join(ending(result, capsys)).split())
    assert "reason the loss or its gradient is not finite: first " in text
    with pytest.raises(BadInput, match="has no checkpoint: the run diverged at step 2"):
        load_model(result.folder)


@pytest.mark.parametrize("folder", ["/out", "/seed=0", "out"])
def test_a_run_directory_may_be_anywhere(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ending(Result(Path(folder), FINISHED, GPTModule, {}), capsys)
    assert f" run directory     {folder}" in lines


@pytest.mark.parametrize("flag", ["-m", "--multirun"])
def test_the_flag_of_a_sweep_may_stand_anywhere(
    flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for typed in (["attn=sdpa", flag, "seed=0,1"], [flag, "attn=sdpa", "seed=0,1"]):
        monkeypatch.setattr(sys, "argv", ["train.py", *typed])
        arrange_arguments()
        assert sys.argv == ["train.py", flag, "attn=sdpa", "seed=0,1"]


def test_the_next_command_works_where_this_one_was_typed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # without train.py
    lines = ending(Result(Path("o/lab/run/seed=0"), FINISHED, GPTModule, {}), capsys)
    assert lines[-1].endswith("attnlab train attn=unscaled")


@pytest.mark.parametrize(
    ("spelled_out", "left"),
    [
        (["optim.lr=1e-3", "preset=tiny", "optim=adamw", "attn.scale=0.5"], ["attn.scale=0.5"]),
        (["attn=unscaled", "attn.scale=1.0"], ["attn=unscaled"]),
        (["preset=fast", "optim=muon"], ["preset=fast"]),
        (["preset=fast", "optim=adamw"], ["preset=fast", "optim=adamw"]),
        (["hydra.run.dir=x", "model.n_head=2", "model.n_head=4"], []),
        (["+trainer.profiler=simple"], ["+trainer.profiler=simple"]),
        (["optim.lr=1e-2", "optim.min_lr=1e-7"], ["optim.lr=0.01", "optim.min_lr=1e-07"]),
        (["model.bias=True", "model.qk_std=1.0"], ["model.bias=true", "model.qk_std=1"]),
        (["data=plays", "data.seed=1234567890123456789"],) * 2,
    ],
)
def test_an_explicit_default_changes_nothing(spelled_out: list[str], left: list[str]) -> None:
    with hydra_conf(ROOT / "conf"):
        cfg = compose("train", spelled_out, return_hydra_config=True)
        cfg.hydra.job.config_name = "train"
        assert without_defaults(cfg, cfg.hydra) == left


@pytest.mark.parametrize(("error", "shown"), [(OSError(28, "full"), False), (KeyError(), True)])
def test_only_a_full_disk_in_a_thread_is_left_to_the_main_thread(
    error: Exception, shown: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    with one_sentence():
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
    assert ("Traceback" in capfd.readouterr().err) == shown


def test_letters_other_than_ascii_need_no_quotes(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["name=größe", "name=a,ö", "seed=0", "continue_from=o/attn=x,y/seed=0"]
    monkeypatch.setattr("sys.argv", ["train.py", *words])
    arrange_arguments()
    assert sys.argv[1:] == ["name='größe'", *words[1:3], "continue_from='o/attn=x,y/seed=0'"]


def test_the_home_directory_needs_no_quotes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["train.py", "outputs=~/runs", "data.path=~/x"])
    arrange_arguments()
    assert sys.argv[1:] == [f"outputs={Path.home()}/runs", "data.path=~/x"]


def test_only_the_first_process_of_all_nodes_shows_the_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first process of another node has LOCAL_RANK 0, and one that `srun` starts has none."""
    hydra = SimpleNamespace(mode=RunMode.RUN, overrides=SimpleNamespace(task=[]))
    hydra.runtime = SimpleNamespace(config_sources=[])
    monkeypatch.setattr(HydraConfig, "get", lambda: hydra)
    others = Result(tmp_path, {"val_loss": 1.5}, GPTModule, {})
    monkeypatch.setattr("attnlab.training.main._train", lambda *_: others)
    monkeypatch.setattr("lightning.pytorch.utilities.rank_zero_only.rank", 8)
    assert train(OmegaConf.create()) == 1.5


def test_a_list_with_a_layer_of_ones_own_is_proposed_with_trust(tmp_path: Path) -> None:
    layers = {"0": {"_target_": "SelfAttention"}, "1": {"_target_": "mine.Layer"}}
    result = Result(tmp_path, {}, GPTModule, {"model": {}, "attn": {"layers": layers}})
    assert _trust(result) == " --trust"
