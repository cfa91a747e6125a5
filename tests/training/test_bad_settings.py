"""Bad input is one sentence or Hydra's own message, and harms no files."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnlab.errors import BadInput
from tests.cli import small_run, train_py
from tests.conftest import ROOT, on_text

# What beginners type, and what the first line of the answer names: the right word, or the form.
MISTAKES = [
    ("typo=1", "typo"),
    ("lr=0.1", "optim.lr=0.1"),
    ("batch_size=8", "data.batch_size=8"),
    ("max_steps=10", "trainer.max_steps=10"),
    ("block_size=32", "model.block_size=32"),
    ("n_head=2", "model.n_head=2"),
    ("dropout=0.1", "model.dropout=0.1"),
    ("modl.n_head=2", "model.n_head=2"),
    ("model.n_hed=2", "model.n_head=2"),
    ("model.heads=2", "model.n_head=2"),
    ("layers=2", "model.n_layer=2"),
    ("learning_rate=0.1", "optim.lr=0.1"),
    ("epochs=3", "trainer.max_steps=3"),
    ("steps=3", "trainer.max_steps=3"),
    ("device=cpu", "trainer.accelerator=cpu"),
    ("sed=1", "seed=1"),
    ("atn=unscaled", "attn=unscaled"),
    ("attention=unscaled", "attn=unscaled"),
    ("Attn=unscaled", "attn=unscaled"),
    ("optimizer=muon", "optim=muon"),
    ("dataset=plays", "data=plays"),
    ("attn=unscald", "attn=unscaled"),
    ("attn=Unscaled", "attn=unscaled"),
    ("attn=", "attn"),
    ("preset=mikro", "preset=micro"),
    ("preset=mini", "preset=micro"),
    ("preset=nope", "micro"),
    ("experiment=nope", "unscaled"),
    ("optim=adam", "optim=adamw"),
    ("data=my.txt", "data.path=my.txt"),
    ("data=shakespeare", "data=tinyshakespeare"),
    ("attn=sdpa,manual", "-m"),
    ("seed=0,1", "-m"),
    ("preset micro", "preset=micro"),
    ("attn = unscaled", "attn=unscaled"),
    ("attn:unscaled", "attn=unscaled"),
    ("attn==unscaled", "attn=unscaled"),
    ("+attn=unscaled", "attn="),
    ("unscaled", "attn=unscaled"),
    ("n_head", "model.n_head"),
    ("optim=lr=0.1", "optim.lr=0.1"),
    ("model=4", "model=4"),
    ("seed=range(x)", "range(x)"),
    ("trainer.max_time={minutes:5}", "+trainer.max_time={minutes:5}"),
    ("trainer.max_epochs=5", "trainer.max_steps"),
    ("hydra.run.dir=elsewhere", "outputs="),
    ("hydra.job.chdir=true", "outputs="),
]
# Hydra reads these by argparse, which prints its usage and ends the process.
OF_ARGPARSE = [
    ("--attn unscaled", "attn=unscaled"),
    ("-attn=unscaled", "attn=unscaled"),
    ("--seed=1", "seed=1"),
    ("--lr 0.1", "optim.lr=0.1"),
    ("--batch-size=8", "data.batch_size=8"),
    ("--max_iters 5", "trainer.max_steps=5"),
]
OF_ATTNLAB = [
    ("+typo=1", "typo"),
    ("+lr=3e-3", "optim.lr"),
    ("data.path=???", "data.path"),
    ("+attn.breadth=8", "attn.breadth"),
    ("+trainer.max_step=3", "trainer.max_steps"),
    ("+trainer.max_time={second:1}", "second"),
    ("~optim.lr", "lr"),
    ("seed=???", "seed"),
    ("seed=abc", "seed"),
    ("seed=-1", "seed"),
    ("seed=1.5", "seed"),
    ("force=maybe", "force"),
    ("checkpoint_every=0", "checkpoint_every"),
    ("model.n_head=3", "n_head"),
    ("model.n_head=0", "n_head"),
    ("model.n_embd=wide", "n_embd"),
    ("model.n_layer=0", "n_layer"),
    ("model.block_size=0", "block_size"),
    ("model.block_size=100000", "block_size"),
    ("model.dropout=1", "dropout"),
    ("model.bias=7", "bias"),
    ("model.init=xavier", "xavier"),
    ("model.qk_std=-1", "qk_std"),
    ("model.positions=rotary", "positions"),
    ("model.positions=sinusoidal model.n_embd=15 model.n_head=1", "n_embd"),
    ("model.positions=sinusoidal model.learned_positions=true", "learned_positions"),
    ("attn=relative_bias attn.buckets=7", "buckets"),
    ("attn=hybrid model.n_layer=1", "attn.layers"),
    ("attn=relative_bias attn.farthest=16", "farthest"),
    ("seed=99999999999999999999", "seed"),
    ("name=${oc.env:NOT_SET}", "NOT_SET"),
    (
        "+logger.csv._target_=lightning.pytorch.loggers.CSVLogger +logger.csv.save_dir=x",
        "save_dir",
    ),
    ("attn.scale=nan", "scale"),
    ("attn.heads=3", "n_head"),
    ("attn.kernel=attnlab.attention.weights.nope", "attnlab.attention.weights.nope"),
    ("attn.kernel=sparsmax", "sparsemax"),
    ("attn._target_=no.such.Class", "no.such.Class"),
    ("attn=strict_flip attn.kernel=nope", "nope"),
    ("optim.lr=-1", "lr"),
    ("optim.lr=fast", "lr"),
    ("optim.min_lr=inf", "min_lr"),
    ("optim.betas=[0.9]", "betas"),
    ("optim.weight_decay=-1", "weight_decay"),
    ("optim.warmup_steps=-1", "warmup_steps"),
    ("optim=muon optim.min_lr=0 optim.momentum=1", "momentum"),
    ("data.batch_size=0", "batch_size"),
    ("data.path=none.txt", "none.txt"),
    ("data.path=TEXTS/latin1.txt", "iconv"),
    ("data.path=TEXTS/short.txt", "block_size"),
    ("data.path=TEXTS/large.txt", "data.tokenizer"),
    ("data.tokenizer=TEXTS", "data.tokenizer"),
    ("data.eval_lengths=[32]", "length"),
    ("data.eval_lengths=[0]", "eval_lengths"),
    ("trainer.max_steps=0", "max_steps"),
    ("trainer.max_steps=abc", "max_steps"),
    ("trainer.val_check_interval=0", "val_check_interval"),
    ("trainer.precision=16-mixed", "precision"),
    ("trainer.strategy=ddp_spawn", "strategy"),
    ("trainer.strategy=ddp_fork", "strategy"),
    ("trainer.accelerator=tpu", "xla"),
    ("init_from=nowhere", "nowhere"),
    ("init_from=TEXTS/latin1.txt", "latin1.txt"),
    ("callbacks=ema callbacks.ema.decay=often", "decay"),
    ("callbacks=ema +callbacks.ema.update_starting_at_step=100", "EMAWeightAveraging"),
    ("callbacks=solved callbacks.solved.accuracy=high", "accuracy"),
    ("+callbacks.mine._target_=no_such_module.Callback", "no_such_module"),
    ("+probes.patterns.every=0 probes=light", "every"),
]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    (folder / "latin1.txt").write_bytes("déjà vu ".encode("latin1") * 100)
    (folder / "short.txt").write_text("a short text")
    (folder / "large.txt").write_text("".join(map(chr, range(0x4E00, 0x5300))))
    return folder


@pytest.mark.parametrize(("typed", "named"), MISTAKES)
def test_the_first_line_has_the_right_word(
    typed: str, named: str, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*on_text(text_file, []), f"outputs={tmp_path / 'out'}", *typed.split(" ")]
    done = train_py(*words)
    assert (done.code, done.out) == (2, "")
    assert named in done.err.partition("\n")[0]
    assert done.err.count("\n") <= 4
    assert not (tmp_path / "out").exists()


def test_a_text_with_brackets_is_to_be_quoted(text_file: Path, tmp_path: Path) -> None:
    done = small_run(tmp_path / "out", text_file, "data.path=my texts/a [draft].txt")
    assert done.code == 2 and "quote" in done.err and done.err.count("\n") == 1


@pytest.mark.parametrize(("typed", "right"), OF_ARGPARSE)
def test_options_are_named_by_argparse(typed: str, right: str, tmp_path: Path) -> None:
    done = train_py(*typed.split(" "))
    assert done.code == 2 and typed.partition(" ")[0] in done.err
    assert done.err.strip().rpartition(" ")[2] == right


def test_m_among_settings_is_explained() -> None:
    done = train_py("preset=micro", "-m", "seed=0,1")
    assert done.code == 2 and "-m preset=micro seed=0,1" in done.err


def test_a_compilation_needs_a_compiler(
    train: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BadInput, match="no-such-compiler"):
        train("compile=true")
    assert not (tmp_path / "run").exists()


def test_a_logger_that_is_not_installed_is_named_with_its_extra(
    train: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(**_: Any) -> None:
        raise ModuleNotFoundError("pip install -U 'wandb>=0.12.10'")

    monkeypatch.setattr("lightning.pytorch.loggers.WandbLogger", missing)
    with pytest.raises(BadInput, match=r"\.\[wandb\]"):
        train("logger=wandb", "~logger.wandb.project", "~logger.wandb.offline")
    assert not (tmp_path / "run").exists()


def test_without_the_environment_it_is_said_how_to_enter_it(tmp_path: Path) -> None:
    command = [sys.executable, "-S", str(ROOT / "train.py")]  # without installed packages
    clean = {name: x for name, x in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "activate" in done.stderr


@pytest.mark.parametrize(("overrides", "named"), OF_ATTNLAB)
def test_a_bad_setting_is_refused(
    overrides: str, named: str, train: Callable[..., Any], texts: Path, tmp_path: Path
) -> None:
    words = [word.replace("TEXTS", str(texts)) for word in overrides.split(" ")]
    with pytest.raises(BadInput) as error:
        train(*words)
    assert named in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_what_is_refused_is_one_sentence_on_the_terminal(text_file: Path, tmp_path: Path) -> None:
    done = small_run(tmp_path / "out", text_file, "model.n_head=3")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ") and done.err.count("\n") == 1
    assert not (tmp_path / "out").exists()
