"""Sweeps: a failed run does not stop the others, and a killed sweep resumes, in every launcher."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from attnlab import workers
from attnlab.errors import BadInput
from attnlab.runs.reading import read_run
from attnlab.runs.run_directory import Busy
from attnlab.training.slurm import USER_SIGNALS
from attnlab.training.sweeps import (
    Forecast,
    SweepSummary,
    attempt,
    seed_by_seed,
    share_threads,
)
from hydra_plugins import attnlab_submitit
from hydra_plugins.attnlab_optuna import OptunaSweeper
from tests.conftest import ROOT, SMALL
from tests.forked import begin, ended, forked_worker, is_one_sentence, same_weights
from tests.runs.invented import write_run

FAULTY = '''
from attnlab.attention.self_attention import SelfAttention

class Faulty(SelfAttention):
    """Breaks in the third call in training, where it is told to."""

    def __init__(self, config, *, faulty=0):
        super().__init__(config)
        self.faulty, self.calls = faulty, 0

    def forward(self, x):
        self.calls += self.training
        if self.faulty and self.calls == 3:
            raise ZeroDivisionError("a fault of the user's own")
        return super().forward(x)
'''
NEEDS = {"joblib": "joblib", "submitit_local": "submitit", "ray": "ray"}


def hydra_of(folder: Path, number: int) -> DictConfig:
    """What Hydra tells a job of itself, as far as it is asked."""
    return OmegaConf.create(
        {
            "runtime": {"output_dir": str(folder)},
            "job": {"num": number},
        }
    )


def sweep_of(root: Path, notes: Path, *typed: str) -> DictConfig:
    """The configuration with which Hydra ends a sweep."""
    return OmegaConf.create(
        {
            "outputs": str(root.parent),
            "name": root.name,
            "module": "attnlab.training.lightning_module.GPTModule",
            "hydra": {"sweep": {"dir": str(notes)}, "overrides": {"hydra": [], "task": [*typed]}},
        }
    )


def summary(folder: Path) -> None:
    SweepSummary().on_multirun_end(sweep_of(folder / "lab", notes=folder))


def test_a_sweep_without_failures_prints_no_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attempt(lambda: 1.5, hydra_of(tmp_path, 0), []) == 1.5
    summary(tmp_path)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "code", "heading"),
    [
        (BadInput("n_head = 5 must be 4"), 2, "error: refused"),
        (ZeroDivisionError("by zero"), 1, "error: failed"),
        (
            Busy("another process is training in it"),
            0,
            "already being trained by another process",
        ),
    ],
)
def test_failed_runs_are_listed_with_the_command_that_repeats_them(
    error: Exception, code: int, heading: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def train() -> float:
        raise error

    hydra, arguments = hydra_of(tmp_path / "sweep", 7), ["seed=1", "data.path='my text.txt'"]
    loss = attempt(train, hydra, arguments)
    assert loss != loss
    capsys.readouterr()
    if code:
        with pytest.raises(SystemExit) as end:
            summary(tmp_path / "sweep")
        assert end.value.code == code
    else:
        summary(tmp_path / "sweep")
    said = capsys.readouterr().err
    assert said.startswith(f"{heading}, 1 of this sweep's runs")
    assert """python train.py seed=1 'data.path='"'"'my text.txt'"'"''""" in said
    assert str(error) in said and "Traceback" not in said
    note = json.loads((tmp_path / "sweep" / "failed_run_000007.json").read_text())
    assert ("by zero" in note["traceback"]) == isinstance(error, ZeroDivisionError)
    assert ("run_000007.json" in said) == isinstance(error, ZeroDivisionError)


def test_failures_of_an_earlier_sweep_in_the_same_directory_are_forgotten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def train() -> float:
        raise BadInput("n_head = 5 must be 4")

    attempt(train, hydra_of(tmp_path, 0), [])
    (tmp_path / "failed_run_mine.json").write_text("{}")
    capsys.readouterr()
    SweepSummary().on_multirun_start(sweep_of(tmp_path / "lab", notes=tmp_path))
    summary(tmp_path)
    assert capsys.readouterr() == ("", "")
    assert [file.name for file in tmp_path.iterdir()] == ["failed_run_mine.json"]


def statuses(outputs: Path) -> dict[str, str]:
    return {
        f.parent.name: json.loads(f.read_text())["status"] for f in outputs.rglob("status.json")
    }


def test_a_sweep_runs_seed_by_seed() -> None:
    typed = [[f"attn={a}", f"seed={s}"] for a in ("sdpa", "unscaled") for s in (3, 1)]
    order = seed_by_seed(list(enumerate(typed, 7)))
    assert [number for number, _ in order] == [7, 9, 8, 10]
    assert [words[1] for _, words in order] == ["seed=3", "seed=3", "seed=1", "seed=1"]


@pytest.mark.parametrize("jobs", [1, 2, 3])
@pytest.mark.parametrize("durations", [[8.0], [6.0, 9.0], [10.0, 8.0, 9.0]])
def test_the_forecast_is_right_after_the_second_run(jobs: int, durations: list[float]) -> None:
    """Processes start for 5 s, and settings of different durations follow each other."""
    runs = [durations[i % len(durations)] for i in range(12)]
    free, ends = [5.0] * jobs, []
    for seconds in runs:
        i = free.index(min(free))
        free[i] += seconds
        ends.append((free[i], seconds))
    forecast, total = Forecast(len(runs), jobs), max(free)
    for number, (now, seconds) in enumerate(sorted(ends), 1):
        left = forecast.after(now, seconds)
        if 2 <= number <= 9:
            assert (total - now) / 1.5 <= left <= 1.5 * (total - now), (number, left)
    assert left == 0


def test_runs_that_were_done_before_are_not_taken_for_fast_ones() -> None:
    forecast = Forecast(6, 1)
    assert [forecast.after(now, None) for now in (0.2, 0.4)] == [0.0, 0.0]
    assert forecast.after(10.4, 10.0) == 30.0


SWEEP = ["hydra/launcher=basic", *SMALL, "logger=none", "seed=0,1", "checkpoint_every=2"]


def test_a_killed_sweep_resumes(text_file: Path, tmp_path: Path) -> None:
    def slowly() -> None:
        from attnlab.training.lightning_module import GPTModule

        step = GPTModule.on_train_batch_start

        def slow(self: GPTModule, *arguments: Any) -> None:
            time.sleep(0.2)
            step(self, *arguments)

        GPTModule.on_train_batch_start = slow  # type: ignore[method-assign]

    command = ["-m", *SWEEP, f"data.path={text_file}", f"outputs={tmp_path}/o"]
    running = begin(command, tmp_path, slowly)
    while "seed=1" not in statuses(tmp_path / "o"):
        assert running.process.is_alive()
        time.sleep(0.05)
    assert running.process.pid is not None
    os.kill(running.process.pid, signal.SIGKILL)
    assert running.end()[0] == -9
    assert statuses(tmp_path / "o") == {"seed=0": "finished", "seed=1": "running"}
    (first,) = (tmp_path / "o").rglob("seed=0/metrics.json")
    before = first.stat().st_mtime_ns
    code, said = ended(command, tmp_path)
    assert code == 0, said
    assert "seed=0: finished; already done" in said
    assert set(statuses(tmp_path / "o").values()) == {"finished"}
    assert first.stat().st_mtime_ns == before
    (damaged,) = (tmp_path / "o").rglob("seed=1/checkpoints/last.ckpt")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    code, said = ended(command, tmp_path)
    assert code == 2 and f"{damaged} is not a checkpoint of attnlab, or it is damaged" in said
    assert "seed=0: finished; already done" in said and "Traceback" not in said


@pytest.mark.long
def test_two_sweeps_at_once_share_the_runs(text_file: Path, tmp_path: Path) -> None:
    command = ["-m", *SWEEP, f"data.path={text_file}", f"outputs={tmp_path}/o"]
    both = [begin(command, tmp_path)]
    time.sleep(0.1)
    both.append(begin(command, tmp_path))
    for sweep in both:
        code, said = sweep.end()
        assert code == 0, said
    assert statuses(tmp_path / "o") == dict.fromkeys(("seed=0", "seed=1"), "finished")
    alone = [word for word in command[1:-1] if word != "seed=0,1"]
    code, said = ended([*alone, "seed=1", f"outputs={tmp_path}/alone"], tmp_path)
    assert code == 0, said
    (ours,) = (tmp_path / "o").rglob("seed=1/metrics.json")
    (theirs,) = (tmp_path / "alone").rglob("metrics.json")
    losses = [json.loads(f.read_text())["val_loss"] for f in (ours, theirs)]
    assert losses[0] == losses[1]


def pooled(before: Callable[[], object] = int) -> Callable[[], None]:
    """Let the launcher `pool` fork its workers, and prepare what goes wrong in them."""

    def prepare() -> None:
        workers.make_worker = forked_worker
        before()

    return prepare


def pool_of(tmp_path: Path, text_file: Path, *changed: str) -> list[str]:
    chosen = ["hydra/launcher=pool", "hydra.launcher.n_jobs=2", *changed]
    return ["-m", *SWEEP, *chosen, f"data.path={text_file}", f"outputs={tmp_path}/o"]


def test_a_pool_of_processes_gives_the_same_bits(text_file: Path, tmp_path: Path) -> None:
    code, said = ended(pool_of(tmp_path, text_file, "seed=0,1,2"), tmp_path, pooled())
    assert code == 0, said
    assert "3 runs in 2 processes" in said and "(3 of 3)" in said and " s left)" in said
    assert "step 2: val loss" not in said  # it is in the logs
    logs = list((tmp_path / "o" / ".sweep").glob("*/logs/worker-*.log"))
    assert len(logs) == 2 and all("val loss" in log.read_text() for log in logs)
    alone = [word for word in pool_of(tmp_path / "alone", text_file)[1:] if "seed=" not in word]
    alone = [word for word in alone if "launcher" not in word]
    code, said = ended([*alone, "seed=2"], tmp_path)
    assert code == 0, said
    (ours,) = (tmp_path / "o").rglob("seed=2")
    (theirs,) = (tmp_path / "alone").rglob("seed=2")
    assert same_weights(ours, theirs)


@pytest.mark.long
def test_a_run_whose_process_dies_is_listed(text_file: Path, tmp_path: Path) -> None:
    def killed() -> None:
        from attnlab.training.lightning_module import GPTModule

        step = GPTModule.training_step

        def deadly(self: GPTModule, *arguments: Any) -> Any:
            if self.seed == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(self, *arguments)

        GPTModule.training_step = deadly  # type: ignore[method-assign]

    command = pool_of(tmp_path, text_file)
    code, said = ended(command, tmp_path, pooled(killed))
    assert code == 1, said
    assert "error: failed, 1 of this sweep's runs" in said and "its process died" in said
    assert statuses(tmp_path / "o") == {"seed=0": "running", "seed=1": "finished"}
    code, said = ended(command, tmp_path, pooled())
    assert code == 0, said
    assert statuses(tmp_path / "o") == {"seed=0": "finished", "seed=1": "finished"}


def test_ctrl_c_ends_a_pool(text_file: Path, tmp_path: Path) -> None:
    command = pool_of(tmp_path, text_file, "trainer.max_steps=100000", "checkpoint_every=1")
    running = begin(command, tmp_path, pooled())
    while not list((tmp_path / "o").rglob("last.ckpt")):
        assert running.process.is_alive()
        time.sleep(0.05)
    assert running.process.pid is not None
    os.kill(running.process.pid, signal.SIGINT)
    code, said = running.end()
    assert code == 130 and "Interrupted; the same command resumes." in said, said
    for file in (tmp_path / "o").rglob("status.json"):  # no process holds the lock
        assert read_run(file.parent).status == "interrupted"


def test_a_bad_number_of_processes_is_one_sentence(text_file: Path, tmp_path: Path) -> None:
    code, said = ended(pool_of(tmp_path, text_file, "hydra.launcher.n_jobs=0"), tmp_path)
    assert code == 2 and is_one_sentence(said), said


def faulty_sweep(folder: Path) -> list[str]:
    """A sweep over a run that fails and one that does not."""
    (folder / "faulty.py").write_text(FAULTY)
    settings = [s for s in SMALL if s != "data=text"]
    settings += ["data=plays", "data.length=3000", "logger=none", f"outputs={folder}/o"]
    settings += ["hydra/launcher=basic"]
    return ["-m", "attn._target_=faulty.Faulty", "+attn.faulty=1,0", *settings]


def check_faulty_sweep(code: int | None, said: str, folder: Path) -> None:
    assert code == 1, said
    assert "error: failed, 1 of this sweep's runs" in said
    assert "python train.py attn._target_=faulty.Faulty +attn.faulty=1" in said
    found = sorted((folder / "o" / "lab").rglob("status.json"))
    told = {json.loads(f.read_text())["status"]: json.loads(f.read_text()) for f in found}
    assert told.keys() == {"finished", "failed"}
    assert "Traceback" in told["failed"]["reason"]
    assert "a fault of the user's own" in told["failed"]["reason"]


def test_a_run_that_fails_does_not_stop_the_sweep(tmp_path: Path) -> None:
    def importable() -> None:
        sys.path.append(str(tmp_path))

    check_faulty_sweep(*ended(faulty_sweep(tmp_path), tmp_path, importable), tmp_path)


@pytest.mark.parametrize(
    ("chosen", "given", "threads"),
    [
        ({"_target_": "joblib"}, "3", 3),
        ({"_target_": "joblib"}, "3,1", 3),
        ({"_target_": "submitit", "cpus_per_task": 2}, "", 2),
        ({"_target_": "basic"}, "3", 1),
    ],
)
def test_a_launchers_process_uses_its_share_of_threads(
    chosen: dict[str, Any], given: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    name = chosen["_target_"]
    hydra = {"runtime": {"choices": {"hydra/launcher": name}}, "launcher": chosen}
    try:
        share_threads(OmegaConf.create(hydra))
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(1)


def test_a_job_of_submitit_does_a_step_before_signals_of_its_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def blocked(*_: Any) -> set[Any]:
        return set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))

    launcher = object.__new__(attnlab_submitit.SlurmLauncher)
    monkeypatch.setattr(attnlab_submitit.Plugin, "__call__", blocked, raising=False)
    try:
        assert set(USER_SIGNALS) <= set(launcher())
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, USER_SIGNALS)


def launched(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The faulty sweep in a process of its own, in an environment without threads."""
    command = [sys.executable, "train.py", *faulty_sweep(folder), *arguments]
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    environment["PYTHONPATH"] = f"{folder}:{environment.get('PYTHONPATH', '')}"
    return subprocess.run(
        command, cwd=ROOT, env=environment | env, capture_output=True, text=True, timeout=900
    )


def threads_of(folder: Path) -> list[int]:
    return [json.loads(f.read_text())["threads"] for f in (folder / "o").rglob("metrics.json")]


LAUNCHERS = {
    "pool": ["hydra.launcher.n_jobs=2"],
    "joblib": ["hydra.launcher.n_jobs=2"],
    "submitit_local": ["hydra.sweeper.max_batch_size=1"],
    "ray": ["+hydra.launcher.ray.init.num_cpus=2"],
}


@pytest.mark.long
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_launchers(launcher: str, tmp_path: Path) -> None:
    if launcher in NEEDS:
        pytest.importorskip(f"hydra_plugins.hydra_{NEEDS[launcher]}_launcher")
    done = launched(tmp_path, f"hydra/launcher={launcher}", *LAUNCHERS[launcher])
    check_faulty_sweep(done.returncode, done.stdout + done.stderr, tmp_path)
    share = max(1, (os.cpu_count() or 1) // 2) if launcher in ("pool", "joblib") else 1
    assert threads_of(tmp_path) == [share]


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_the_users_threads_are_respected_and_several_devices_are_refused(
    launcher: str, tmp_path: Path
) -> None:
    if find_spec(f"hydra_plugins.hydra_{NEEDS[launcher]}_launcher") is None:
        pytest.skip(f"hydra-{NEEDS[launcher]}-launcher is not installed here")
    done = launched(
        tmp_path, f"hydra/launcher={launcher}", "trainer.devices=1,2", OMP_NUM_THREADS="3"
    )
    assert "trainer.devices = 2: runs on several devices cannot be swept" in done.stderr
    assert threads_of(tmp_path) == [3]


@pytest.mark.long
def test_hydras_own_directories_are_used(text_file: Path, tmp_path: Path) -> None:
    command = [*SMALL, f"data.path={text_file}", f"outputs={tmp_path}/o", "logger=none"]
    code, said = ended([*command, f"hydra.run.dir={tmp_path}/mine"], tmp_path)
    assert code == 0, said
    assert (tmp_path / "mine" / "metrics.json").exists()
    code, said = ended(["-m", *SWEEP, *command, f"hydra.sweep.dir={tmp_path}/swept"], tmp_path)
    assert code == 0, said
    assert len(list((tmp_path / "swept").glob("attn=*/seed=*/metrics.json"))) == 2
    assert not (tmp_path / "o").exists()
    inside = next((tmp_path / "swept").glob("attn=*/seed=0")) / "inner"
    code, said = ended([*command, f"hydra.run.dir={inside}"], tmp_path)
    assert code == 2 and f"{inside} lies inside the run directory {inside.parent}" in said


def test_a_sweep_ends_with_a_table_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "lab"
    for seed in range(2):
        write_run(root, "sdpa", seed, 2.0)
        write_run(root, "unscaled", seed, 2.25)
    summary(tmp_path)
    printed = capsys.readouterr().out
    assert f"All runs in {root}:" in printed and "+0.2500" in printed
    assert str(root / "comparison.png") in printed
    assert (root / "comparison.png").stat().st_size > 10_000


@pytest.mark.parametrize(("typed", "shown"), [("name=lab", True), ("name=a,b", False)])
def test_a_sweep_over_names_shows_no_other_runs(
    typed: str, shown: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "lab", "sdpa", 0, 2.0)
    write_run(tmp_path / "lab", "unscaled", 0, 2.25)
    SweepSummary().on_multirun_end(sweep_of(tmp_path / "lab", tmp_path, typed))
    assert ("+0.2500" in capsys.readouterr().out) == shown


def test_no_figure_is_reported_if_there_is_nothing_to_draw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for variant in ("sdpa", "unscaled"):
        write_run(tmp_path / "lab", variant, 0, float("nan"), status="diverged")
    summary(tmp_path)
    printed = capsys.readouterr().out
    assert "unscaled diverged at step 8 (one seed)" in printed and "Picture" not in printed
    assert not (tmp_path / "lab" / "comparison.png").exists()


def test_a_figure_that_cannot_be_drawn_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "lab"
    write_run(root, "sdpa", 0, 2.0)
    write_run(root, "unscaled", 0, 2.25)
    (root / "comparison.png").mkdir()
    summary(tmp_path)
    captured = capsys.readouterr()
    assert "+0.2500" in captured.out
    assert "no picture was drawn" in captured.err


def tuned(text_file: Path, folder: Path, *changed: str) -> list[str]:
    """A search of the learning rate for each of two variants, of runs of 20 steps."""
    sizes = [s for s in SMALL if not s.startswith(("trainer", "model.n_layer"))]
    steps = ["trainer.max_steps=20", "trainer.val_check_interval=20", "model.n_layer=1"]
    command = ["-m", "experiment=tune", *sizes, *steps, "optim.min_lr=0", "logger=none"]
    command += [f"data.path={text_file}", f"outputs={folder}/o", "hydra/launcher=basic"]
    return [*command, f"hydra.sweeper.storage=sqlite:///{folder}/tune.db", *changed]


def trials_of(folder: Path) -> dict[str, list[Any]]:
    """The trials of each variant."""
    import optuna

    storage = f"sqlite:///{folder}/tune.db"
    return {
        next(word for word in name.split() if word.startswith("attn=")): optuna.load_study(
            study_name=name, storage=storage
        ).trials
        for name in optuna.get_all_study_names(storage)
    }


@pytest.mark.long
def test_optuna_finds_the_better_of_two_rates_for_each_variant_and_resumes(
    text_file: Path, tmp_path: Path
) -> None:
    pytest.importorskip("optuna")
    planted = "optim.lr=choice(1e-7,1e-2)"
    two = tuned(text_file, tmp_path, "attn=sdpa,unscaled", planted, "hydra.sweeper.batch=2")
    code, said = ended([*two, "hydra.sweeper.n_trials=4"], tmp_path)
    assert code == 0, said
    assert {arm: len(found) for arm, found in trials_of(tmp_path).items()} == {
        "attn=sdpa": 4,
        "attn=unscaled": 4,
    }
    code, said = ended([*two, "hydra.sweeper.n_trials=12"], tmp_path)  # eight more of each
    assert code == 0, said
    for found in trials_of(tmp_path).values():
        assert len(found) == 12
        rates = {trial.params["optim.lr"]: trial.value for trial in found}
        assert rates["0.01"] < rates["1e-07"] - 0.1
    assert said.count("Best of 12 trials") == 2
    best = [line for line in said.splitlines() if line.startswith("  python train.py -m ")]
    assert len(best) == 2 and all(line.endswith("optim.lr=0.01 seed=0,1,2") for line in best)
    code, said = ended([*two, "optim.lr=1e-2", "attn=sdpa", "seed=0,1"], tmp_path)  # as suggested
    assert code == 0 and "seed=1: finished" in said, said


def test_a_continued_search_draws_new_values(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    commands: list[str] = []

    def launch(given: list[list[str]], initial_job_idx: int) -> list[SimpleNamespace]:
        commands.extend(" ".join(command) for command in given)
        return [SimpleNamespace(return_value=1.0) for _ in given]

    storage, params = f"sqlite:///{tmp_path}/tune.db", OmegaConf.create({})
    for n_trials in (3, 6):
        sweeper = OptunaSweeper(params, n_trials, batch=3, seed=0, storage=storage)
        sweeper.launcher = SimpleNamespace(launch=launch)  # type: ignore[assignment]
        sweeper.sweep(["optim.lr=interval(0.0,1.0)"])
    assert len(commands) == len(set(commands)) == 6


@pytest.mark.long
def test_optuna_searches_an_interval_in_a_pool_and_a_divergence_is_the_worst(
    text_file: Path, tmp_path: Path
) -> None:
    pytest.importorskip("optuna")
    interval = "optim.lr=tag(log,interval(1e-6,1e6))"
    command = tuned(text_file, tmp_path, "attn=sdpa", interval, "hydra.sweeper.n_trials=8")
    pool = [word.replace("launcher=basic", "launcher=pool") for word in command]
    code, said = ended([*pool, "hydra.launcher.n_jobs=2"], tmp_path, pooled())
    assert code == 0, said
    (found,) = trials_of(tmp_path).values()
    assert len({trial.params["optim.lr"] for trial in found}) == 8
    worst = [trial.value for trial in found if trial.value == float("inf")]
    assert 0 < len(worst) < 8 and said.count("diverged at step") == len(worst)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("optim.lr=interval(1e-1,1e-4)", "must go from low to high"),
        ("optim.lr=tag(log,interval(-1,1))", "from above 0"),
        ("hydra.sweeper.n_trials=0", "must be 1 or more"),
        ("hydra.sweeper.batch=two", "must be 1 or more"),
        ("hydra.sweeper.storage=tune.db", "name a file as sqlite:///tune.db"),
        ("hydra.sweeper.storage='sqlite:////nowhere/tune.db'", "cannot be opened"),
    ],
)
def test_optuna_refuses_a_search_without_intervals(
    text_file: Path, tmp_path: Path, changed: str, said: str
) -> None:
    pytest.importorskip("optuna")
    code, output = ended(tuned(text_file, tmp_path, changed), tmp_path)
    assert code == 2 and said in output and "Traceback" not in output, output
    assert not (tmp_path / "o").exists()


def test_a_search_whose_trials_all_fail_reports_no_best_trial(
    text_file: Path, tmp_path: Path
) -> None:
    pytest.importorskip("optuna")
    broken = ["attn=sdpa", "model.n_head=choice(3,5)", "hydra.sweeper.n_trials=2"]
    code, said = ended(tuned(text_file, tmp_path, *broken, "optim.lr=1e-3"), tmp_path)
    assert code == 2 and "error: refused, 2 of this sweep's runs" in said, said
    assert "None of 2 trials ended with a loss: " in said and "Best of" not in said
