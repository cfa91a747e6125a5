"""From Python: the runs of the command, with the same directories, bits, and sentences."""

import html
import importlib
import json
import linecache
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pandas as pd
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, GradientAccumulationScheduler

import attnlab
from attnlab.errors import BadInput
from attnlab.pages.explorer import explore
from tests.cli import train_py
from tests.conftest import ROOT, on_text
from tests.invented import write_run
from tests.training.test_sweeps import is_alive

CELL = """
from attnlab.attention import SelfAttention

class Louder(SelfAttention):
    factor = 2.0
    def modify(self, scores, x):
        return self.factor * super().modify(scores, x)

class Peeks(SelfAttention):
    def split(self, x):
        q, k, v = super().split(x)
        return q, k, v.roll(-1, dims=2)

def near(q, k):
    return (k <= q) & (q - k < 3)
"""


class Counts(L.Callback):
    """A callback of the user's, whose argument can be read, and which keeps what it sees."""

    def __init__(self, every: int = 1) -> None:
        self.every = every
        self.steps: list[int] = []

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self.steps.append(trainer.global_step)


class Hides(Counts):
    """Its argument cannot be read again."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.number = len(words)


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What a cell of a notebook defines: in `__main__`, with lines that Python finds by name."""
    main: dict[str, Any] = {"__name__": "__main__"}
    name = "<ipython-input-1>"
    linecache.cache[name] = (len(CELL), None, CELL.splitlines(keepends=True), name)
    exec(compile(CELL, name, "exec"), main)
    for key in ("Louder", "Peeks", "near"):
        monkeypatch.setattr(sys.modules["__main__"], key, main[key], raising=False)
    yield main
    del linecache.cache[name]


@pytest.fixture
def small(text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    return on_text(text_file, [])


def content(folder: Path) -> dict[str, Any]:
    """What a run has left, without its times and where it ran."""
    metrics = json.loads((folder / "metrics.json").read_text())
    for key in ("wall_seconds", "tokens_per_second", "git"):
        metrics.pop(key, None)
    weights = torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    return {
        "metrics": metrics,
        "weights": {name: x.tolist() for name, x in weights.items()},
        "config": (folder / ".hydra/config.yaml").read_text(),
        "overrides": (folder / ".hydra/overrides.yaml").read_text(),
        "files": sorted(str(file.relative_to(folder)) for file in folder.rglob("*.*")),
    }


@pytest.mark.parametrize(
    "own", [["attn=unscaled"], ["attn=none", "optim.lr=1e-2", "model.n_head=1"], ["logger=csv"]]
)
def test_a_run_is_that_of_the_command(small: list[str], tmp_path: Path, own: list[str]) -> None:
    done = train_py(*small, *own, "seed=3", "name=a b", "outputs=here")
    assert done.code == 0, done.err
    (by_command,) = (tmp_path / "here").rglob("seed=3")
    shutil.move(tmp_path / "here", tmp_path / "before")
    run = attnlab.train(*small, *own, seed=3, name="a b", outputs=Path("here"))
    assert run.folder.resolve() == by_command and run.fresh
    before = content(tmp_path / "before" / by_command.relative_to(tmp_path / "here"))
    now = content(by_command)
    before["overrides"] = before["overrides"].replace("name=a b", "name='a b'")  # quoted
    now["overrides"] = now["overrides"].replace("name=''a b''", "name='a b'")
    assert {k: now[k] for k in ("metrics", "weights", "config", "files")} == {
        k: before[k] for k in ("metrics", "weights", "config", "files")
    }
    again = attnlab.train(*small, *own, seed=3, name="a b", outputs="here")
    assert not again.fresh and again.loss == run.loss == now["metrics"]["val_loss"]
    assert "before" in repr(again)


@pytest.mark.parametrize(
    "own",
    [
        "attn=unscale", "attn.scal=1", "optim.rate=1", "seed=-1", "model.n_head=3", "attn=[",
        "data=text data.path=nowhere.txt", "trainer.max_steps=0", "attn.scale=a",
        "attn._target_=nowhere.Layer", "init_from=nowhere", "trainer.strategy=ddp_spawn",
    ],
)  # fmt: skip
def test_bad_input_has_the_words_of_the_command(small: list[str], own: str) -> None:
    done = train_py(*small, *own.split(), "outputs=here")
    assert done.code in (1, 2) and "Traceback" not in done.err, done
    with pytest.raises(BadInput) as caught:
        attnlab.train(*small, *own.split(), outputs="here")
    said = " ".join(str(caught.value).split())
    words = " ".join(done.err.split()).removeprefix("error: ")
    assert said[:60] in words and len(said) < 2000
    assert not [*Path("here").rglob("metrics.json")]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"attn": torch.nn.Linear(2, 2)}, "no setting|give the class"),
        ({"attn": lambda config: config}, "define it by name"),
        ({"seed": {1, 2}}, "no setting"),
        ({"seed": [1, 2]}, "sweep takes a list"),
        ({"attn": ["sdpa", Counts]}, "sweep takes a list"),
        ({"attn.may_attend": [torch.ge]}, "sweep takes a list"),
        ({"+callbacks.mine": Counts()}, "no setting|give the class"),
        ({"+callbacks.mine": "builtins.dict"}, "callbacks.mine"),
        ({"callbacks": [print]}, "no Lightning callback"),
        ({"callbacks": [GradientAccumulationScheduler({0: 2})]}, "not possible"),
        ({"callbacks": [Counts(), Counts()]}, "two of Counts"),
        ({"config_dir": "nowhere"}, "nowhere"),
    ],
)
def test_what_is_no_setting(small: list[str], given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        attnlab.train(*small, **given)


@pytest.fixture
def answers_ctrl_c() -> Iterator[None]:
    """As in a terminal and a notebook; a shell starts processes in the background without it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("answers_ctrl_c")
def test_ctrl_c_leaves_a_run_that_resumes_and_a_process_that_works(
    small: list[str], tmp_path: Path
) -> None:
    undisturbed = attnlab.train(*small, name="whole", checkpoint_every=1)
    handler = signal.getsignal(signal.SIGINT)
    random = torch.get_rng_state()
    with ctrl_c_at(3):
        attnlab.train(*small, name="part", checkpoint_every=1)
    assert signal.getsignal(signal.SIGINT) is handler
    assert torch.equal(torch.get_rng_state(), random)
    assert not torch.are_deterministic_algorithms_enabled()
    frame = attnlab.read_runs(tmp_path / "outputs/part")
    assert frame.status.tolist() == ["interrupted"]
    run = attnlab.train(*small, name="part", checkpoint_every=1)
    assert run.fresh and content(run.folder)["weights"] == content(undisturbed.folder)["weights"]


@contextmanager
def ctrl_c_at(step: int, *, run: int = 1) -> Iterator[None]:
    """Ctrl-C is pressed after a step of a run, by its number in this process."""
    from attnlab.training.callbacks import Watch

    class Presses(Watch):
        begun = 0

        def on_train_start(self, trainer: L.Trainer, *args: Any) -> None:
            super().on_train_start(trainer, *args)
            Presses.begun += 1

        def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
            super().on_train_batch_end(trainer, *args)
            if (Presses.begun, trainer.global_step) == (run, step):
                signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnlab.training.run.Watch", Presses)
        with pytest.raises(KeyboardInterrupt):
            yield
        assert Presses.begun == run


def test_a_class_of_a_cell(
    small: list[str], cell: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = attnlab.train(*small, attn=cell["Louder"])
    assert "__main__.Louder" in str(run.folder)
    assert len(attnlab.read_runs(run.folder)["attn.source"][0]) == 64
    same = attnlab.train(*small, "attn.scale=0.7071067811865476")  # 2 / sqrt(8)
    assert run.loss == pytest.approx(same.loss, rel=1e-5) and run.model().training is False
    assert repr(run).startswith("Louder with seed 0") and "attn=sdpa" in str(run.folder)
    other = attnlab.train(*small, **{"attn.may_attend": cell["near"]})
    assert other.loss != run.loss
    with pytest.raises(BadInput, match="position 1"):
        attnlab.train(*small, attn=cell["Peeks"])

    edited = CELL.replace("2.0", "3.0")
    linecache.cache["<edited>"] = (len(edited), None, edited.splitlines(keepends=True), "<edited>")
    again: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(edited, "<edited>", "exec"), again)
    monkeypatch.setattr(sys.modules["__main__"], "Louder", again["Louder"])
    assert attnlab.train(*small, attn=again["Louder"]).folder != run.folder

    table = attnlab.compare(tmp_path / "outputs").table
    assert {"Louder"} <= {label.split(" ")[0] for label in table.run}
    monkeypatch.delattr(sys.modules["__main__"], "Louder")
    with pytest.raises(BadInput, match="defined in a notebook"):
        attnlab.load_model(run.folder, trust=True)
    net, _ = attnlab.load_model(run.folder, attn=cell["Louder"])
    assert sum(p.numel() for p in net.parameters()) == run.metrics["parameters"]


USES = """
from attnlab.attention import SelfAttention
from helper import twice

def scaled(x):
    return x * FACTOR

class Uses(SelfAttention):
    def modify(self, scores, x):
        return twice(scaled(super().modify(scores, x)))
"""


def cell_of(text: str, name: str, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run a cell of a notebook, whose classes are then those of `__main__`."""
    patch.setitem(linecache.cache, name, (len(text), None, text.splitlines(keepends=True), name))
    main: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, name, "exec"), main)
    for key in main.keys() - {"__name__", "__builtins__"}:
        patch.setattr(sys.modules["__main__"], key, main[key], raising=False)
    return main


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Writes helper.py of the user's folder, which the next import reads."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(factor: int) -> None:
        for name in ("helper", "lay", "calls"):
            sys.modules.pop(name, None)
        (tmp_path / "helper.py").write_text(f"def twice(x): return {factor} * x\n")
        importlib.invalidate_caches()

    yield write
    for name in ("helper", "lay", "calls"):
        sys.modules.pop(name, None)


def test_a_run_is_another_with_what_its_code_computes_with(
    small: list[str], helper: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = {}
    for number, (factor, of_helper) in enumerate([(1.0, 2), (3.0, 2), (1.0, 5), (1.0, 2)]):
        helper(of_helper)
        main = cell_of(f"{USES}\nFACTOR = {factor}\n", f"<cell {number}>", monkeypatch)
        run = attnlab.train(*small, attn=main["Uses"])
        assert run.fresh == ((factor, of_helper) not in losses)
        assert losses.setdefault((factor, of_helper), run.loss) == run.loss
        main["FACTOR"] = torch.tensor(factor)
        with pytest.warns(UserWarning, match="FACTOR"):
            assert attnlab.train(*small, attn=main["Uses"]).fresh == (number in (0, 2))
    assert len({*losses.values()}) == 3


def test_a_class_that_was_replaced_is_not_trained_as_its_successor(
    small: list[str], helper: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    helper(2)
    old = cell_of(f"{USES}\nFACTOR = 1.0\n", "<cell old>", monkeypatch)
    cell_of(f"{USES}\nFACTOR = 3.0\n", "<cell new>", monkeypatch)
    with pytest.raises(BadInput, match="Uses was defined again"):
        attnlab.train(*small, attn=old["Uses"])


NOTEBOOK = """
from attnlab.attention import SelfAttention

def scaled(x):
    return FACTOR * x

class Scaled(SelfAttention):
    def modify(self, scores, x):
        return scaled(super().modify(scores, x))

class Halved(SelfAttention):
    def merge(self, mixed, x, v):
        return super().merge(mixed / 2, x, v)
"""


@pytest.mark.usefixtures("answers_ctrl_c")
def test_a_notebook_with_two_designs_beside_the_baseline(
    small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call, again after an interrupt, in a new kernel, and after a global has changed."""

    def sweep(factor: float, kernel: int, name: str) -> pd.DataFrame:
        cell = f"FACTOR = {factor}{NOTEBOOK}"
        main = cell_of(cell, f"<kernel {kernel}>", monkeypatch)
        attn = [main["Scaled"], main["Halved"], "sdpa"]
        return attnlab.sweep(*small, attn=attn, seed=[0, 1], name=name, jobs=1)

    def ended(frame: pd.DataFrame) -> dict[str, int]:
        return {x: (Path(x) / "metrics.json").stat().st_mtime_ns for x in frame.folder}

    undisturbed = sweep(1.0, 0, "whole")
    with ctrl_c_at(2, run=3):
        sweep(1.0, 1, "notebook")
    before = attnlab.read_runs("outputs/notebook")
    assert {*zip(before.attn, before.status, strict=True)} == {
        ("Scaled", "finished"), ("Halved", "interrupted")
    }  # fmt: skip
    before = before[before.status == "finished"]
    whole = sweep(1.0, 2, "notebook")
    assert [*zip(whole.attn, whole.seed, whole.loss, strict=True)] == [
        *zip(undisturbed.attn, undisturbed.seed, undisturbed.loss, strict=True)
    ]
    assert ended(before).items() <= ended(whole).items()  # not trained again
    changed = sweep(3.0, 3, "notebook")
    same = whole.attn != "Scaled"
    assert changed.attn.tolist() == whole.attn.tolist()
    assert ended(whole[same]) == ended(changed[same])
    assert not {*whole[~same].folder} & {*changed[~same].folder}
    assert not {*whole[~same].loss} & {*changed[~same].loss}
    assert attnlab.compare(changed).table.run[0].startswith("sdpa")


LAY = f"FACTOR = 1.0\n{USES}"
CALLS = """
import lightning.pytorch as L
import helper

class Moves(L.Callback):
    def on_train_start(self, trainer, lit):
        trainer.optimizers[0].param_groups[0]["weight_decay"] = helper.twice(1)
"""


@pytest.mark.parametrize(
    "named", ["attn._target_=lay.Uses", "+callbacks.moves._target_=calls.Moves"]
)
def test_what_a_module_of_the_command_imports_is_part_of_the_run(
    small: list[str], tmp_path: Path, helper: Callable[[int], None], named: str
) -> None:
    (tmp_path / "lay.py").write_text(LAY)
    (tmp_path / "calls.py").write_text(CALLS)
    for factor, folders in ((2, 1), (2, 1), (3, 2), (2, 2)):
        helper(factor)
        done = train_py(*small, named, "outputs=here")
        assert done.code == 0, done.err
        assert len([*Path("here").rglob("metrics.json")]) == folders
    frame = attnlab.read_runs("here")
    assert frame.settings.nunique() == 2 and frame.loss.nunique() == 2


@pytest.mark.slow
def test_a_worker_trains_what_the_notebook_defines_now(
    small: list[str], helper: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that has trained an earlier class of this name, and a run is the same in both."""
    helper(2)
    for number, factor in enumerate((1.0, 3.0)):
        main = cell_of(f"{USES}\nFACTOR = {factor}\n", f"<cell in workers {number}>", monkeypatch)
        frame = attnlab.sweep(*small, attn=main["Uses"], seed="0,1", jobs=2)
        assert len(frame) == 2
        run = attnlab.train(*small, attn=main["Uses"], seed=1)
        assert not run.fresh and str(run.folder.resolve()) in {*frame.folder}
    assert attnlab.read_runs("outputs").settings.nunique() == 2


def test_a_class_where_a_name_would_stand(small: list[str], cell: dict[str, Any]) -> None:
    named = {
        "+callbacks.counts": Counts,
        "attn._target_": [cell["Louder"], "GatedAttention"],
        "model.activation": torch.nn.functional.relu,
    }
    run = attnlab.train(*small, **named)
    typed = [
        f"+callbacks.counts._target_={__name__}.Counts",
        "attn._target_=[__main__.Louder,GatedAttention]",
        "model.activation=torch.nn.functional.relu",
    ]
    assert not attnlab.train(*small, *typed).fresh
    assert repr(run).startswith("Louder+GatedAttention with seed 0")


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_lists_of_a_sweep(small: list[str], cell: dict[str, Any], jobs: int) -> None:
    louder, near = cell["Louder"], cell["near"]
    given: dict[str, Any] = {"attn": [louder, "sdpa"], "seed": range(2)}
    frame = attnlab.sweep(*small, **given, jobs=jobs)
    assert [*zip(frame.attn, frame.seed, strict=True)] == [
        (name, seed) for name in ("Louder", "sdpa") for seed in range(2)
    ]
    alone = [attnlab.train(*small, attn=attn, seed=1) for attn in (louder, "sdpa")]
    assert {str(run.folder.resolve()) for run in alone} == {*frame.folder[frame.seed == 1]}
    assert not any(run.fresh for run in alone)
    assert attnlab.compare(frame).table.run.tolist()[0].startswith("sdpa")  # the baseline
    masks = attnlab.sweep(*small, **{"attn.may_attend": [near, "causal"]}, jobs=jobs)
    assert masks["attn.may_attend"].tolist() == ["__main__.near", "causal"]
    assert masks.loss.nunique() == 2


def test_callbacks_count_by_class_and_arguments(small: list[str]) -> None:
    counts = Counts(every=2)
    run = attnlab.train(*small, callbacks=[counts])
    assert counts.steps == [1, 2, 3, 4]
    (typed,) = attnlab.read_runs(run.folder).overrides
    assert "+callbacks.Counts.every=2" in typed
    assert not attnlab.train(*small, callbacks=[Counts(2)]).fresh
    assert attnlab.train(*small, callbacks=[Counts(3)]).folder != run.folder
    assert attnlab.train(*small).folder != run.folder
    stops = attnlab.train(*small, callbacks=[EarlyStopping("val/loss", patience=1)])
    assert "repeatable" not in str(stops.folder)
    attnlab.train(*small, callbacks=[Hides("abc")])
    with pytest.raises(BadInput, match="neither repeated nor resumed"):
        attnlab.train(*small, callbacks=[Hides("abc")])
    assert attnlab.train(*small, callbacks=[Hides("abc")], force=True).fresh


def test_own_settings_of_a_directory(small: list[str], tmp_path: Path) -> None:
    own = tmp_path / "my conf" / "attn"
    own.mkdir(parents=True)
    (own / "softer.yaml").write_text("defaults: [sdpa]\nscale: 0.1\n")
    run = attnlab.train(*small, attn="softer", config_dir="my conf")
    assert run.folder.parent.name.startswith("attn=softer")
    frame = attnlab.read_runs(run.folder)
    assert frame["attn.scale"].tolist() == [0.1] and frame.config_dirs.tolist() == ["'my conf'"]


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_sweep_is_that_of_the_command(
    small: list[str], tmp_path: Path, jobs: int, cell: dict[str, Any]
) -> None:
    frame = attnlab.sweep(
        *small, "attn=sdpa,unscaled", "optim.lr=1e-2,1e-3", seed="range(2)", jobs=jobs
    )
    assert len(frame) == 8 and {*frame.status} == {"finished"}
    done = train_py("-m", *small, "attn=sdpa,unscaled", "optim.lr=1e-2,1e-3", "seed=0,1",
                    "hydra/launcher=basic", "outputs=other")  # fmt: skip
    assert done.code == 0, done.err
    other = attnlab.read_runs("other")
    names = [
        [*(Path(x).relative_to(Path(x).parents[2]) for x in f.folder)] for f in (frame, other)
    ]
    assert names[0] == names[1]
    if jobs == 1:
        assert frame.val_loss.tolist() == other.val_loss.tolist()
    own = attnlab.sweep(*small, attn=cell["Louder"], seed="0,1", jobs=jobs)
    assert len(own) == 2 and own.folder.str.contains("Louder").all()
    with pytest.raises(BadInput, match="1 of 2 runs failed"):
        attnlab.sweep(*small, "model.n_head=2,3", jobs=jobs)


def test_a_comparison_in_python(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / "lab", "sdpa", seed, 2.0, curves={"val/loss": [3.0, 2.0]})
        write_run(tmp_path / "lab", "unscaled", seed, 2.1 + seed / 100)
    found = attnlab.compare(tmp_path / "lab", within=0.5)
    frame = attnlab.read_runs(tmp_path / "lab")
    assert found.sentences == attnlab.compare(frame, within=0.5).sentences
    pd.testing.assert_frame_equal(found.table, attnlab.compare(frame, within=0.5).table)
    assert found.table.set_index("run").difference["unscaled"] == pytest.approx(0.11)
    assert found.to_dict()["settings"][1]["difference"]["median"] == pytest.approx(0.11)
    shown = found._repr_html_()
    assert "<svg" in shown and "0.1100" in shown and "unscaled ends" in shown
    assert "unscaled ends" in repr(found) and len(found.figure().axes) >= 1
    (only,) = attnlab.compare(tmp_path / "lab", where="attn=sdpa").table.run
    assert only == "sdpa"
    with pytest.raises(BadInput):
        attnlab.compare()


def test_the_maps_of_a_run_in_a_cell(small: list[str], tmp_path: Path) -> None:
    run = attnlab.train(*small, outputs=tmp_path, seed=0)
    found = attnlab.look(run, run.folder)
    (content,) = re.findall(r'srcdoc="([^"]*)"', found._repr_html_())
    assert html.unescape(content) == found.page == explore(run.folder, run.folder)
    on_text = attnlab.look(run, text="to be or not")
    assert on_text.page == explore(run.folder, text="to be or not") != found.page
    for bad in ([tmp_path / "nowhere"], []):
        with pytest.raises(BadInput):
            attnlab.look(*bad)


INTERRUPTED = """
import importlib.abc, signal, sys
import attnlab

class Presses(importlib.abc.MetaPathFinder):
    left = {names}
    def find_spec(self, name, path, target=None):
        if name in self.left:
            self.left.remove(name)
            signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Presses())
interrupted = 0
for attempt in range(20):
    try:
        run = attnlab.train({words}, probes="default", logger="tensorboard")
        attnlab.compare("outputs")._repr_html_()
        break
    except KeyboardInterrupt:
        interrupted += 1
assert interrupted and not Presses.left, (interrupted, Presses.left)
print("loss", run.loss)
"""
# Each is imported when others of its package wait for it.
INSIDE_IMPORTS = ["matplotlib.rcsetup", "pandas.core.frame", "lightning.fabric.accelerators"]
INSIDE_IMPORTS += ["hydra.core.config_store", "torch.utils.tensorboard.writer", "torch.optim"]


@pytest.mark.slow
@pytest.mark.parametrize("name", INSIDE_IMPORTS)
def test_an_interrupt_during_the_first_imports_leaves_a_notebook_usable(
    small: list[str], tmp_path: Path, name: str
) -> None:
    words = ", ".join(repr(x) for x in small if x not in ("logger=none", "probes=none"))
    program = INTERRUPTED.format(names={name}, words=words)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "loss" in done.stdout


SWEEP = """
import attnlab
attnlab.sweep({words}, seed="0,1", jobs=2)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("moment", ["training", "importing"])
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_of_a_sweep_end_with_their_parent(
    small: list[str], tmp_path: Path, end: signal.Signals, moment: str
) -> None:
    words = ", ".join(repr(x) for x in [*small, "trainer.max_steps=1000000"])
    words += ", 'trainer.val_check_interval=1000000', 'checkpoint_every=10'"
    with subprocess.Popen(
        [sys.executable, "-c", SWEEP.format(words=words)], cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    ) as sweep:  # fmt: skip
        listed = Path(f"/proc/{sweep.pid}/task/{sweep.pid}/children")
        for _ in range(600):
            children = [int(pid) for pid in listed.read_text().split()]
            wanted = len([*tmp_path.rglob("last.ckpt")]) if moment == "training" else len(children)
            if wanted >= 2:
                break
            time.sleep(0.1)
        if end is signal.SIGINT:
            os.killpg(sweep.pid, end)  # as a terminal does
        else:
            sweep.send_signal(end)
        assert sweep.wait(60) != 0
    for _ in range(150):
        if not [pid for pid in children if is_alive(pid)]:
            break
        time.sleep(0.1)
    left = [pid for pid in children if is_alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)  # otherwise they would train on
    assert wanted >= 2 and not left
    if moment == "training":
        assert {*attnlab.read_runs(tmp_path / "outputs").status} == {"interrupted"}
