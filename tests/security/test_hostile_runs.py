"""Opening a malicious run executes none of its code: every run with every command."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attnlab.checkup import checkup
from attnlab.commands import cli
from attnlab.errors import BadInput
from attnlab.imports import make_named_importable
from attnlab.interop.transformers_loading import transformers
from attnlab.model import GPT
from attnlab.runs.pairing import pairs
from attnlab.runs.printing import print_comparisons
from attnlab.runs.reading import read_neighbors
from attnlab.runs.run_directory import RunDirectory
from attnlab.training.checkpoints import load_model
from attnlab.training.config import RunConfig, read_config
from attnlab.training.lightning_module import GPTModule
from attnlab.training.origin import read_earlier_run, read_initial_weights, read_resumable
from attnlab.training.run import make_module
from attnlab.training.run import run as train
from tests.conftest import SMALL, settings
from tests.marks import sampled
from tests.security import hostile

RUNS = hostile.every_run()
VERBS: dict[str, Callable[[Path, Path], list[str]]] = {
    "sample": lambda run, out: ["sample", str(run), "--chars", "3"],
    "look": lambda run, out: ["look", str(run), "--text", "to be"],
    "explore": lambda run, out: ["explore", str(run), "--text", "to be", "-o", f"{out}/page"],
    "explore its history": lambda run, out: ["explore", str(run)],
    "evaluate": lambda run, out: ["evaluate", str(run), "--json"],
    "patch": lambda run, out: ["patch", str(run), "--clean", "to be", "--corrupt", "be to"],
    "export": lambda run, out: ["export", str(run), "--out", str(out / "exported")],
    "checkup": lambda run, out: ["checkup", str(run), "--json", str(out / "report.json")],
    "runs": lambda run, out: ["runs", str(run.parent.parent)],
    "runs --each --json": lambda run, out: ["runs", str(run), "--each", "--json"],
    "plot": lambda run, out: ["plot", str(run)],
    "compare": lambda run, out: ["compare", str(run), "--html", f"{out}/page"],
}
BASELINE = "sdpa"


READERS: dict[str, Callable[[Path, RunConfig], object]] = {
    "load_model": lambda run, config: load_model(run),
    "load_from_checkpoint": lambda run, config: GPTModule.load_from_checkpoint(run),
    "train": lambda run, config: train(config, run, variant=BASELINE),
    "resume": lambda run, config: read_resumable(
        RunDirectory(run), config.settings, config.data()
    ),
    "continue_from": lambda run, config: read_earlier_run(
        config.settings | {"continue_from": str(run)}, config.data()
    ),
    "init_from": lambda run, config: read_initial_weights(str(run)).fill(
        make_module(config, config.data())
    ),
    "compare": lambda run, config: print_comparisons(pairs(read_neighbors(run))),
}
OPENING = ("sample", "look", "explore", "evaluate", "patch", "export", "checkup")
SLOWEST = 2.0  # seconds; a machine may be busy
HEARD: list[str] = []
RUNNING = {"os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen", "pty.spawn"}
LOADS = {"weights that are NaN"}  # a diverged run is a result


def hear(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook for processes, imports, and files; hooks cannot be removed, so it is short."""
    name = str(arguments[0]) if arguments else ""
    imported = event == "import" and name.endswith("evil")
    if event in RUNNING or imported or (event == "open" and name.endswith("canary")):
        HEARD.append(f"{event} {name}")


@pytest.fixture(scope="module", autouse=True)
def listening() -> None:
    transformers()  # imports are not what is timed
    sys.addaudithook(hear)


def contents(folder: Path) -> dict[str, Any]:
    return {
        str(file): (file.read_bytes() if file.is_file() else None, file.lstat().st_mtime_ns)
        for file in sorted(folder.rglob("*"))
    }


def called(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, float]:
    monkeypatch.setattr(sys, "argv", ["attnlab", *arguments])
    start = time.process_time()
    try:
        cli.main()
    except SystemExit as end:
        return end.code or 0, time.process_time() - start
    return 0, time.process_time() - start


# One of each way in; `make test-all` tries all runs.
SAMPLED = {
    *("os.system as model", "eval", "hydra call", "nested node", "list of nodes", "kernel"),
    *("activation", "package of tests", "lab's own by path", "through torch", "no class"),
    *("positional", "env", "reference", "escapes", "wide", "deep", "beyond 64 bits"),
    *("alphabet of half a pair", "config is a list", "weights of another size"),
    *("a terabyte that is stretched", "weights that are NaN", "pickle: os.system"),
    *("pickle: without an archive", "archive: compressed", "archive: climbing"),
    *("archive: declared_larger", "file: checkpoint is a pipe", "file: checkpoint is endless"),
    *("file: status is nested", "file: metrics is a device", "file: metrics with markup"),
    *("file: settings with tags", "file: settings that multiply", "file: events are a pipe"),
    *("file: events that declare much", "link: lock", "link: checkpoints", "link: status"),
}


def test_the_sample_is_of_the_runs() -> None:
    assert RUNS.keys() >= SAMPLED


@pytest.fixture(scope="module")
def config(text_file: Path) -> RunConfig:
    """What a user would type to train in the directory."""
    return read_config(settings(*SMALL, f"data.path={text_file}"))


@pytest.mark.parametrize("name", sampled(RUNS, lambda name: name in SAMPLED))
def test_a_hostile_run_runs_no_code_and_changes_nothing_outside(
    name: str,
    config: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    here, outside = tmp_path / "here", tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text('{"password": "hunter2"}')
    folder = here / "lab" / "attn=sdpa" / "seed=0"
    folder.mkdir(parents=True)
    RUNS[name](folder, outside)
    (here / "evil.py").write_text(f"open({str(outside / 'canary')!r}, 'w')\ndef run(x): return x")
    monkeypatch.chdir(here)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    before, path = contents(outside), list(sys.path)
    HEARD.clear()
    for verb, command in VERBS.items():
        if _reads_nothing_of_it(verb, name):
            continue
        out = tmp_path / verb.replace(" ", "")
        out.mkdir()
        code, seconds = called(command(folder, out), monkeypatch)
        said = capsys.readouterr()
        told = f"{verb}: code {code}, {seconds:.1f} s\n{said.out[-2000:]}\n{said.err[-2000:]}"
        assert code in ((0, 1, 2) if verb == "checkup" else (0, 2)), told
        errors = [line for line in said.err.splitlines() if line.startswith("error: ")]
        assert len(errors) == (code == 2) and "Traceback" not in said.err, told
        assert max(map(len, errors), default=0) < 1000, told
        assert not {"\x1b", "\x07", "\r"} & set(said.out + said.err), told
        assert "hunter2" not in said.out + said.err, told
        assert not HEARD, f"{verb}: {HEARD}"
        assert contents(outside) == before, told
        assert sys.path == path and "evil" not in sys.modules, told
        assert seconds < SLOWEST, told
        if verb in OPENING and not name.startswith(("file: ", "link: ")):
            assert code == 2 or (name in LOADS and verb != "export"), told
    for verb, read in READERS.items():
        start, refused = time.process_time(), False
        try:
            read(folder, config)
        except BadInput as error:
            refused = True
            assert len(str(error)) < 1000, f"{verb}: {error}"
        except OSError as error:  # train.py and attnlab turn these into one sentence, too
            assert error.filename is not None, f"{verb}: {error}"
        capsys.readouterr()
        assert not HEARD, f"{verb}: {HEARD}"
        assert contents(outside) == before, verb
        assert sys.path == path and "evil" not in sys.modules, verb
        assert time.process_time() - start < SLOWEST, verb
        if verb in ("train", "resume", "continue_from", "init_from") and not name.startswith(
            ("file: ", "link: ")
        ):
            assert refused, f"{verb} takes it for its own"


def _reads_nothing_of_it(verb: str, name: str) -> bool:
    """Whether a slow command ignores the malicious part; one such run in 16 is tested."""
    number = list(RUNS).index(name)
    beside = name.startswith(("file: settings", "file: metrics", "file: events", "file: over"))
    if number % 16 == 0:
        return False
    if verb in ("plot", "compare"):
        return name in hostile.RECIPES
    return verb in ("checkup", "export") and beside


def test_a_run_that_is_not_hostile_loads(tmp_path: Path) -> None:
    net, alphabet = load_model(hostile.run(tmp_path / "run", hostile.saved(hostile.checkpoint())))
    assert (net.vocab_size, alphabet) == (len(hostile.ALPHABET), hostile.ALPHABET)


def test_weights_that_are_not_finite_load_with_a_warning(tmp_path: Path) -> None:
    RUNS["weights that are NaN"](tmp_path / "run", tmp_path)
    with pytest.warns(UserWarning, match=r"not finite, in ln_f\.weight"):
        load_model(tmp_path / "run")


@pytest.mark.parametrize("name", sorted(hostile.FUNCTIONS))
def test_activations_of_pytorch_need_no_trust(name: str, tmp_path: Path) -> None:
    content = hostile.saved(hostile.checkpoint(**{"model.activation": name}))
    net, _ = load_model(hostile.run(tmp_path / "run", content))
    assert "torch" in str(net.blocks[0].mlp.activation.__module__ or "torch")
    assert net(torch.zeros(1, 2, dtype=torch.long)).isfinite().all()


def test_the_users_own_classes_are_named_and_need_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The class is in the current directory, where it is found only with trust."""
    (tmp_path / "own_attention.py").write_text(
        "from attnlab.attention import SelfAttention\nclass Mine(SelfAttention): pass\n"
    )
    changes = {"attn._target_": "own_attention.Mine"}
    folder = hostile.run(tmp_path / "run", hostile.saved(hostile.checkpoint(**changes)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(BadInput, match=r"attn\._target_ = own_attention\.Mine.*--trust"):
        load_model(folder)
    assert "own_attention" not in sys.modules
    net, _ = load_model(folder, trust=True)
    assert type(net.blocks[0].attn).__name__ == "Mine"
    for verb in OPENING:
        arguments = VERBS[verb](folder, tmp_path / verb)
        (tmp_path / verb).mkdir()
        code, _ = called([*arguments, "--trust"], monkeypatch)
        # No GPT-2 has such a layer, and the model lacks most of TinyShakespeare's characters.
        assert code in ((2,) if verb in ("export", "evaluate") else (0, 1)), verb
    lit = GPTModule.load_from_checkpoint(folder, trust=True)
    assert isinstance(lit.net, GPT)
    with pytest.raises(BadInput, match="--trust"):
        GPTModule.load_from_checkpoint(folder)


def test_the_current_directory_is_importable_only_if_an_override_names_a_module_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").touch()
    (tmp_path / "package").mkdir()
    monkeypatch.chdir(tmp_path)
    for override in ("optim.lr=0.1", "name=mine", "data.path=a/mine.py", "attn=sdpa", "x=other.X"):
        monkeypatch.setattr(sys, "path", ["/lib"])
        make_named_importable([override])
        assert sys.path == ["/lib"], override
    for override in ("attn._target_=mine.X", "+callbacks.x._target_='package.part.X'"):
        monkeypatch.setattr(sys, "path", ["/lib"])
        make_named_importable([override, override])
        assert sys.path == ["/lib", str(tmp_path)], override


def test_a_page_escapes_what_it_shows(tmp_path: Path) -> None:
    net, _ = load_model(hostile.run(tmp_path / "run", hostile.saved(hostile.checkpoint())))
    report = checkup(net, name="<script>alert(1)</script>")
    assert "<script>alert" not in report.to_html()
    assert "&lt;script&gt;alert" in report.to_html()
