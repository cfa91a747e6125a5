"""Bad input gives one sentence and exit code 2, and harms no files.

Most of it goes through the commands' entry functions in this process, some through real ones.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from omegaconf import OmegaConf

from attnlab.runs.settings import flat
from attnlab.training.main import missing_file
from tests.command_line import Ended, attnlab, train_py
from tests.conftest import ROOT, SMALL, settings
from tests.marks import sampled

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
    ("modl.n_hed=3", "modl.n_hed is not a setting; did you mean model.n_head?"),
    ("attn.width=8", "a setting of your own layer needs a plus: +attn.width=..."),
    ("presets=baby", "presets is not a setting; did you mean preset?"),
    ("+attn.breadth=8", "attn.breadth is not a setting"),
    ("attn=nope", "there is no attn=nope; there are additive, "),
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
    ("attn=sdpa,manual", "attn=sdpa,manual has several values: add -m for a sweep over them"),
    ("seed=0,1", "seed=0,1 has several values: add -m for a sweep over them"),
    ("model.n_head==3", "model.n_head==3 cannot be read; write KEY=VALUE"),
    ("n_head", "n_head cannot be read; write KEY=VALUE"),
    ("seed=range(x)", "while evaluating 'range(x)'"),
    ("-m attn=sdpa, manual", "attn=sdpa, cannot be read; write KEY=VALUE, or KEY=A,B without"),
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
        "kernels.nope cannot be imported: module 'attnlab.attention.kernels' has no attribute",
    ),
    ("attn._target_=no.such.Class", "no.such.Class cannot be imported"),
    ("attn.may_attend=attnlab.attention.masks.strict_flip", "a query without keys"),
    ("attn=flex trainer.accelerator=cpu", "flex trains only self-attention, on a CUDA GPU"),
    ("attn=flex model.dropout=0.1", "a CUDA GPU, without dropout; use another kernel"),
    ("attn=flex attn.softcap=5", "the kernel flex does not support softcap and score_mod"),
    ("attn=differential attn.rotary=1e4", "does not support rotary = 10000.0; remove it"),
    ("seed=abc", "seed = abc must be a whole number"),
    ("seed=???", "seed must be given"),
    ("-m seed=0,1,0", "seed=0,1,0 has 0 twice; name each value once"),
    ("trainer.max_time=5", "add it with a plus: +trainer.max_time=..."),
    ("seed=-1", "seed = -1 must be at least 0"),
    ("seed=1.5", "seed = 1.5 must be a whole number"),
    ("name=a/b", "name = 'a/b' must be a plain directory name"),
    ("name=..", "name = '..' must be a plain directory name"),
    ("force=maybe", "force = maybe must be true or false"),
    ("checkpoint_every=0", "checkpoint_every = 0 must be at least 1"),
    ("optim.lr=-1", "optim.lr = -1 must be a positive number"),
    ("model.n_embd=100000000", "out of memory; use a smaller data.batch_size, model.block_size"),
    ("optim.lr=nan", "optim.lr = nan must be a positive number"),
    ("optim.lr=fast", "optim.lr = fast must be a number"),
    ("optim.min_lr=inf", "optim.min_lr = inf must be finite and at least 0"),
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
    ("data=text data.path={tmp}", "cannot be read: Is a directory"),
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
    ("init_from=nowhere data=plays data.length=9000", "no run directory or checkpoint nowhere"),
    ("init_from=hf: data=plays data.length=9000", "hf: needs a local directory or a name on the"),
    ("init_from=a continue_from=b", "use either"),
    ("continue_from=~nobodyatall/x", "continue_from = ~nobodyatall/x begins with a user name"),
    ("outputs='~nobodyatall/x'", "outputs = ~nobodyatall/x begins with a user name that"),
    ("-m seed=0,1 hydra.sweep.subdir=x", "hydra.sweep.subdir is not for a sweep: its runs are"),
    ("-m seed=0,1 hydra.run.dir={tmp}/x", "hydra.run.dir is not for a sweep: its runs are named"),
    ("hydra.sweep.dir={tmp}/x", "hydra.sweep.dir is for a sweep (-m); use hydra.run.dir"),
    ("optim.lr=interval(1e-3,1e-1)", "interval(...) is for a search: add -m hydra/sweeper=optuna"),
    ("-m optim.lr=interval(1e-3,1e-1)", "interval(...) is for a search: add -m hydra/sweeper="),
    ("data.tokenizer={tmp}", "it holds no tokenizer.json, and no vocab.json with merges.txt"),
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
    ("attn=[sdpa,nope]", "there is no attn=nope; there are additive"),
    ("attn=[1,2]", "there is no attn=2; there are additive"),
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


# One of each kind; `make test-all` tries all of them.
SAMPLED = {
    *("+typo=1", "atn=sdpa", "model.n_hed=3", "lr=0.1", "~optim.lr"),
    *("attn=nope", "attn=cross/dot", "probes=nope", "attn=sdpa,manual"),
    *("model.n_head==3", "model.n_head=", "model.n_head=3"),
    *("model.block_size=1.5", "model.dropout=1", "model.bias=7"),
    *("model.init=xavier", "attn.scale=maybe", "attn._target_=no.such.Class"),
    *("attn.may_attend=attnlab.attention.masks.strict_flip", "seed=???", "name=a/b"),
    *("force=maybe", "optim.lr=nan", "optim.betas=[0.9,1.5]"),
    *("data=text data.path={tmp}/latin1.txt", "data=text data.path={tmp}/short.txt"),
    *("data=text data.path={tmp}/large.txt", "data=text data.path={tmp}/fifo"),
    *("trainer.max_steps=99999999999999999999", "trainer.max_steps=-1"),
    *("init_from=nowhere data=plays data.length=9000", "init_from=a continue_from=b"),
    *("-m seed=0,1 hydra.sweep.subdir=x", "hydra.sweep.dir={tmp}/x"),
    *("optim.lr=interval(1e-3,1e-1)", "-m optim.lr=interval(1e-3,1e-1)"),
    *("+trainer.limit_val_batches=1", "attn._target_=math.pi", "data._target_=builtins.dict"),
    *("attn.kernel=attnlab.attention.masks.causal", "probes=null", "trainer.precision=16-mixed"),
    *("trainer.devices=0 data=plays data.length=9000",),
    *("outputs={tmp}/short.txt data=plays data.length=9000",),
    *("outputs={tmp}/held data=plays data.length=9000",),
}
# Each takes another way through the code: Hydra's search for a file, its grammar, its plain
# ValueError, our checks, an error of the disk.
REAL = [
    "attn=unscald",
    "model.n_head==3",
    "probes=null",
    "model.n_hed=3",
    "data=text data.path={tmp}/fifo",
]


def real(command: list[str], **env: str) -> Ended:
    """Start a Python of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | env
    if "HYDRA_FULL_ERROR" not in env:
        environment.pop("HYDRA_FULL_ERROR", None)
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    return Ended(done.returncode, done.stdout, done.stderr)


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


def typed(arguments: str, tmp: Path) -> list[str]:
    given = arguments.format(tmp=tmp).split()
    return given if "outputs=" in arguments else [*given, f"outputs={tmp}/outputs"]


def refused(ended: Ended, sentence: str) -> bool:
    """Whether a command gave this sentence and no other, and exit code 2."""
    lines = ended.error.strip().splitlines()
    errors = [line for line in lines if line.startswith("error")]
    assert (ended.code, "Traceback" in ended.error) == (2, False), ended
    assert lines[-1].startswith("error: ") and len(errors) == 1, ended
    return sentence in ended.error


def test_the_sample_is_of_the_list() -> None:
    assert {arguments for arguments, _ in SETTINGS} >= SAMPLED


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    sampled(SETTINGS, lambda pair: pair[0] in SAMPLED),
    ids=[a for a, _ in SETTINGS],
)
def test_bad_settings(arguments: str, sentence: str, tmp: Path) -> None:
    before = tree(tmp)
    ended = train_py(*typed(arguments, tmp))
    assert refused(ended, sentence), ended
    assert tree(tmp) == before


@pytest.mark.parametrize("arguments", sampled(REAL, lambda arguments: arguments == REAL[0]))
def test_bad_settings_of_a_real_command(arguments: str, tmp: Path) -> None:
    before = tree(tmp)
    ended = real(["train.py", *typed(arguments, tmp)])
    assert refused(ended, dict(SETTINGS)[arguments]), ended
    assert tree(tmp) == before


# Settings with paths outside the test's directory, or that start other processes.
UNTRIED = {"outputs", "continue_from", "trainer.devices", "trainer.strategy"}
LOGGED = ["logger=[tensorboard,csv]", "callbacks=[early_stopping,checkpoints]"]
QUICK = [*SMALL, "probes=light", *LOGGED, "trainer.max_steps=1", "trainer.val_check_interval=1"]
KEYS = [
    key
    for key in flat(OmegaConf.to_container(settings(*QUICK)))  # type: ignore[arg-type]
    if key not in UNTRIED
]
VALUES = st.one_of(
    st.sampled_from([-1, 0, 1, 3, 2**63, -(10**30), 0.5, -0.0, 1e308, "nan", "-inf"]),
    st.sampled_from(["null", "true", "[]", "[1,2]", "{}", "{a: 1}", "''", "???", "[[[]]]"]),
    st.sampled_from(["${seed}", "${nothing}", "'${'", "${oc.env:HOME}", "a b", "'a=b'", "~x"]),
    st.sampled_from(["torch.nn.Linear", "builtins.dict", "math.pi", "a.b", ".", "causal", "x:y"]),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9),
    st.text("'\"\\\\=,[]{}()$", max_size=6),
)
OVERRIDES = st.builds(
    lambda sign, key, value: f"{sign}{key}={value}",
    st.sampled_from(["", "", "", "+", "++"]),
    st.one_of(st.sampled_from(KEYS), st.sampled_from(["attn", "optim", "preset", "trainer"])),
    VALUES,
)


def never_a_traceback(override: str, folder: Path, text: Path) -> None:
    ended = train_py(*QUICK, f"data.path={text}", override, f"outputs={folder}", "force=true")
    assert ended.code in (0, 2) and "Traceback" not in ended.error + ended.out, ended
    errors = [line for line in ended.error.splitlines() if line.startswith("error: ")]
    assert len(errors) == (ended.code == 2), ended


@pytest.mark.slow
@given(override=OVERRIDES)
@examples(max_examples=6)
def test_generated_settings(
    override: str, tmp_path_factory: pytest.TempPathFactory, text_file: Path
) -> None:
    never_a_traceback(override, tmp_path_factory.mktemp("generated"), text_file)


@pytest.mark.long
@given(override=OVERRIDES)
@examples(max_examples=150)
def test_many_generated_settings(
    override: str, tmp_path_factory: pytest.TempPathFactory, text_file: Path
) -> None:
    never_a_traceback(override, tmp_path_factory.mktemp("generated"), text_file)


@NO_GPU
def test_a_missing_gpu(tmp: Path) -> None:
    ended = train_py(
        "trainer.accelerator=gpu", "data=plays", "data.length=9000", f"outputs={tmp}/o"
    )
    assert refused(ended, "gpu"), ended


def test_hydra_full_error_shows_the_traceback() -> None:
    ended = real(["train.py", "seed=-1"], HYDRA_FULL_ERROR="1")
    assert "Traceback" in ended.error
    assert "seed = -1 must be at least 0" in ended.error


def test_a_refused_run_does_not_stop_the_sweep(tmp: Path) -> None:
    small = "model.n_layer=1 model.n_embd=12 model.block_size=8 trainer.max_steps=2 probes=none"
    small += f" trainer.val_check_interval=2 data=plays data.length=3000 outputs={tmp}/sweep"
    ended = train_py("-m", "model.n_head=5,3", "hydra/launcher=basic", *small.split())
    assert (ended.code, "Traceback" in ended.error) == (2, False), ended
    assert "n_head = 5 does not divide n_embd = 12" in ended.error
    assert len(list((tmp / "sweep").rglob("metrics.json"))) == 1


def test_sweeps_refuse_several_devices(tmp: Path) -> None:
    basic = ["hydra/launcher=basic", f"outputs={tmp}/d"]
    ended = train_py("-m", "trainer.devices=2", "seed=0,1", *basic)
    assert (ended.code, "Traceback" in ended.error) == (2, False), ended
    assert "trainer.devices = 2" in ended.error


VERBS = [
    ("sample {tmp}/none", "there is no run directory or checkpoint {tmp}/none"),
    ("sample {tmp}", "{tmp} is not a run directory"),
    ("sample {tmp}/short.txt", "is not a checkpoint of attnlab"),
    ("sample", "Missing argument"),
    ("sampel", "No such command"),
    ("sample {tmp} --chars many", "--chars"),
]


@pytest.mark.parametrize(("arguments", "sentence"), VERBS, ids=[a for a, _ in VERBS])
def test_bad_verbs(arguments: str, sentence: str, tmp: Path) -> None:
    ended = attnlab(*arguments.format(tmp=tmp).split())
    assert sentence.format(tmp=tmp) in " ".join(ended.error.replace("│", " ").split())
    assert (ended.code, "Traceback" in ended.error) == (2, False)


@pytest.mark.parametrize(("arguments", "sentence"), [VERBS[0]])
def test_bad_verbs_of_a_real_command(arguments: str, sentence: str, tmp: Path) -> None:
    ended = real(["-m", "attnlab", *arguments.format(tmp=tmp).split()])
    assert sentence.format(tmp=tmp) in " ".join(ended.error.replace("│", " ").split())
    assert (ended.code, "Traceback" in ended.error) == (2, False)


def test_a_missing_launcher_says_how_to_install_it() -> None:
    said = missing_file("hydra/launcher/ray", ["basic", "joblib"])
    assert (
        said
        == "hydra/launcher=ray is not installed; install it with: pip install hydra-ray-launcher"
    )
