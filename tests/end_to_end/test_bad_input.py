"""Bad input over the real command lines: one sentence, exit code 2, nothing on the disk harmed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attnlab.training.error_messages import missing_file
from tests.conftest import ROOT

pytestmark = pytest.mark.slow

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
SETTINGS = [
    ("+typo=1", "typo is not a setting"),
    ("++typo=1", "typo is not a setting"),
    ("typo=1", "typo is not a setting"),
    ("atn=sdpa", "atn is not a setting; did you mean attn?"),
    ("model.n_hed=3", "model.n_hed is not a setting; did you mean model.n_head?"),
    ("modl.n_head=3", "modl.n_head is not a setting; did you mean model.n_head?"),
    ("lr=0.1", "lr is not a setting; did you mean optim.lr?"),
    ("attn=SDPA", "there is no attn=SDPA; did you mean attn=sdpa?"),
    ("~optim.lr", "optim.lr must be given"),
    ("modl.n_hed=3", "modl.n_hed is not a setting; did you mean model?"),
    ("presets=baby", "presets is not a setting; did you mean preset?"),
    ("+attn.window=8", "attn.window is not a setting"),
    ("attn=nope", "there is no attn=nope; there are additive, bidirectional"),
    ("attn=unscald", "there is no attn=unscald; did you mean attn=unscaled?"),
    ("attn=cross/scald", "there is no attn=cross/scald; "),
    ("attn=cross/dot", "there is no attn=cross/dot"),
    ("model=nope", "there is no model=nope; there are "),
    ("data=nope", "there is no data=nope; there are "),
    ("preset=nope", "there is no preset=nope; there are "),
    ("experiment=nope", "there is no experiment=nope; there are "),
    ("optim=nope", "there is no optim=nope; there are "),
    ("trainer=nope", "there is no trainer=nope; there are "),
    ("probes=nope", "there is no probes=nope; did you mean probes=none? (there are "),
    ("logger=nope", "there is no logger=nope; did you mean logger=none? (there are "),
    ("attn=sdpa,manual", "attn=sdpa,manual"),
    ("model.n_head==3", "=3"),
    ("n_head", "n_head"),
    ("model.n_head=", "model.n_head"),
    ("model.n_head=3", "n_head = 3 does not divide n_embd = 128"),
    ("model.n_head=0", "n_head = 0 must be at least 1"),
    ("model.n_head=-4", "n_head = -4 must be at least 1"),
    ("model.n_embd=0", "n_embd = 0 must be at least 1"),
    ("model.n_embd=wide", "model.n_embd = wide must be a whole number"),
    ("model.n_layer=0", "n_layer = 0 must be at least 1"),
    ("model.block_size=0", "block_size = 0 must be at least 1"),
    ("model.block_size=1.5", "model.block_size = 1.5 must be a whole number"),
    ("model.dropout=1", "dropout = 1 must be at least 0 and less than 1"),
    ("model.dropout=-0.1", "dropout = -0.1 must be at least 0"),
    ("model.dropout=high", "model.dropout = high must be a number"),
    ("model.bias=7", "model.bias = 7 must be true or false"),
    ("model.init=xavier", "init = xavier is unknown; it must be one of unit, gpt2"),
    ("model.qk_std=-1", "qk_std = -1"),
    ("attn.scale=maybe", "attn.scale = maybe must be a number"),
    ("attn.scale=nan", "scale = nan must be a finite number"),
    ("attn.scale=inf", "scale = inf must be a finite number"),
    ("attn.heads=3", "n_head = 3 does not divide"),
    (
        "attn.kernel=attnlab.attention.kernels.nope",
        "kernels.nope cannot be imported: No module",
    ),
    ("attn._target_=no.such.Class", "no.such.Class cannot be imported"),
    ("attn.may_attend=attnlab.attention.masks.strict_flip", "a query without keys"),
    ("seed=abc", "seed = abc must be a whole number"),
    ("seed=???", "seed must be given"),
    ("seed=-1", "seed = -1 must be at least 0"),
    ("seed=1.5", "seed = 1.5 must be a whole number"),
    ("name=a/b", "name = 'a/b' must be the plain name of a folder"),
    ("name=..", "name = '..' must be the plain name of a folder"),
    ("force=maybe", "force = maybe must be true or false"),
    ("checkpoint_every=0", "checkpoint_every = 0 must be at least 1"),
    ("optim.lr=-1", "optim.lr = -1 must be a positive number"),
    ("optim.lr=nan", "optim.lr = nan must be a positive number"),
    ("optim.lr=fast", "optim.lr = fast must be a number"),
    ("optim.betas=[0.9]", "optim.betas = [0.9] must be two numbers in [0, 1)"),
    ("optim.betas=[0.9,1.5]", "optim.betas = [0.9, 1.5] must be two numbers"),
    ("optim.weight_decay=-1", "optim.weight_decay = -1 must be at least 0"),
    ("optim.warmup_steps=-1", "optim.warmup_steps = -1 must be at least 0"),
    ("data.batch_size=0", "data.batch_size = 0 must be at least 1"),
    ("data.batch_size=many", "data.batch_size = many must be a whole number"),
    ("data=text", "data.path must be given"),
    ("data=text data.path=none.txt", "data.path = none.txt cannot be read"),
    ("data=text data.path={tmp}/latin1.txt", "is not UTF-8"),
    ("data=text data.path={tmp}/empty.txt", "is empty"),
    ("data=text data.path={tmp}/short.txt", "too few for windows of block_size = 64"),
    ("data=text data.path={tmp}/large.txt", "an alphabet of more than 1,000 symbols"),
    ("data=text data.path={tmp}", "is not a regular file"),
    ("data=text data.path={tmp}/fifo", "is not a regular file"),
    ("data=text data.path=/dev/zero", "is not a regular file"),
    ("data.path={tmp}/short.txt", "data.path"),
    ("trainer.max_steps=99999999999999999999", "99999999999999999999 must fit in 64 bits"),
    ("data.batch_size=99999999999999999999", "99999999999999999999 must fit in 64 bits"),
    ("data=plays data.length=0", "data.length = 0 must be at least 1"),
    ("trainer.max_steps=0", "trainer.max_steps = 0 must be at least 1"),
    ("trainer.max_steps=-1", "trainer.max_steps = -1 must be at least 1"),
    ("trainer.val_check_interval=0", "trainer.val_check_interval = 0 must be at least 1"),
    ("+trainer.max_step=3", "did you mean trainer.max_steps"),
    ("trainer.precision=foo", "trainer.precision = foo must be one of auto, fastest, 32-true"),
    ("trainer.max_steps=abc", "trainer.max_steps = abc must be a whole number"),
    ("trainer.gradient_clip_val=-1", "trainer.gradient_clip_val = -1 must be at least 0"),
    ("+trainer.limit_val_batches=1", "trainer.limit_val_batches = 1 is not supported"),
    ("trainer.num_sanity_val_steps=1", "trainer.num_sanity_val_steps = 1 is not supported"),
    ("attn._target_=math.pi", "math.pi is not a class or function"),
    ("attn.kernel=attnlab.attention.kernels", "is not a class or function"),
    ("attn.kernel=attnlab.attention.masks.causal", "error"),
    ("data=plays data.seed=-1", "data.seed = -1 must be at least 0"),
    ("data._target_=builtins.dict", "error"),
    ("probes=null", "Config group override must be a string"),
    ("logger=null", "Config group override must be a string"),
    ("attn=null", "Config group override must be a string"),
    (
        "trainer.precision=16-mixed",
        "trainer.precision = 16-mixed must be one of",
    ),
    ("trainer.accelerator=abacus data=plays data.length=9000", "abacus"),
    ("trainer.devices=0 data=plays data.length=9000", "the trainer cannot be made"),
    ("trainer.strategy=nope data=plays data.length=9000", "nope"),
    ("outputs={tmp}/short.txt data=plays data.length=9000", "cannot be written"),
    ("outputs={tmp}/held data=plays data.length=9000", "is not empty and holds no run"),
]


def say(command: list[str], folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "XDG_CACHE_HOME": str(folder.parent / "cache"),
        **env,
    }
    environment.pop("HYDRA_FULL_ERROR", None) if "HYDRA_FULL_ERROR" not in env else None
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def tmp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    (folder / "latin1.txt").write_bytes("Größe".encode("latin-1") * 1000)
    (folder / "empty.txt").write_text("")
    (folder / "short.txt").write_text("to be or not to be\n" * 20)
    (folder / "large.txt").write_text("".join(map(chr, range(0x4E00, 0x4E00 + 1100))) * 3)
    os.mkfifo(folder / "fifo")
    held = folder / "held" / "lab" / "attn=sdpa,data.length=9000,data=plays" / "seed=0"
    held.mkdir(parents=True)
    (held / "thesis.tex").write_text("years of work")
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    return {str(f): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


@pytest.mark.parametrize(("arguments", "sentence"), SETTINGS, ids=[a for a, _ in SETTINGS])
def test_bad_settings(arguments: str, sentence: str, tmp: Path) -> None:
    given = arguments.format(tmp=tmp).split()
    if not any(a.startswith("outputs=") for a in given):
        given.append(f"outputs={tmp}/outputs")
    before = tree(tmp)
    done = say(["train.py", *given], tmp)
    assert sentence in done.stderr
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()
    assert last[-1].startswith("error: ")
    assert len([line for line in last if line.startswith("error")]) == 1
    assert tree(tmp) == before


@NO_GPU
def test_a_gpu_that_is_not_there(tmp: Path) -> None:
    done = say(["train.py", "trainer.accelerator=gpu", "data=plays", f"outputs={tmp}/o"], tmp)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "gpu" in done.stderr


def test_who_wants_the_traceback_gets_it(tmp: Path) -> None:
    done = say(["train.py", "seed=-1"], tmp, HYDRA_FULL_ERROR="1")
    assert "Traceback" in done.stderr
    assert "seed = -1 must be at least 0" in done.stderr


def test_a_sweep_goes_on_past_a_bad_run(tmp: Path) -> None:
    small = "model.n_layer=1 model.n_embd=12 model.block_size=8 trainer.max_steps=2 probes=none"
    small += f" trainer.val_check_interval=2 data=plays data.length=3000 outputs={tmp}/sweep"
    done = say(["train.py", "-m", "model.n_head=5,3", *small.split()], tmp)
    assert done.returncode == 2
    assert "n_head = 5 does not divide n_embd = 12" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(list((tmp / "sweep").rglob("metrics.json"))) == 1


def test_several_devices_are_not_swept(tmp: Path) -> None:
    done = say(["train.py", "-m", "trainer.devices=2", "seed=0,1", f"outputs={tmp}/d"], tmp)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "several devices cannot be swept in one process" in done.stderr


VERBS = [
    ("sample {tmp}/none", "there is no run folder or checkpoint"),
    ("sample {tmp}", "is not a run folder: it has no status.json"),
    ("sample {tmp}/short.txt", "is not a checkpoint of attnlab"),
    ("sample", "Missing argument"),
    ("sampel", "No such command"),
    ("sample {tmp} --chars many", "--chars"),
]


@pytest.mark.parametrize(("arguments", "sentence"), VERBS, ids=[a for a, _ in VERBS])
def test_bad_verbs(arguments: str, sentence: str, tmp: Path) -> None:
    done = say(["-m", "attnlab", *arguments.format(tmp=tmp).split()], tmp)
    assert sentence in " ".join(done.stderr.replace("│", " ").split())
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def test_a_launcher_that_is_an_extra_says_how_to_install_it() -> None:
    said = missing_file("hydra/launcher/ray", ["basic", "joblib"])
    assert said == "hydra/launcher=ray is not installed; pip install -e '.[ray]' brings it"
