"""Sweeps: a failed run does not stop the others, and the end is told by the directories."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnlab.files import read_json
from attnlab.settings.typed import for_hydra
from attnlab.training.sweep_progress import runs_at_once
from tests.cli import small_run, train_py
from tests.conftest import ROOT, SMALL

FAULTY = """
from pathlib import Path
import lightning.pytorch as L

class Faulty(L.Callback):
    '''Fails in one run of a sweep, until it is repaired.'''
    def on_train_batch_start(self, trainer, lit, *_):
        this = (lit.settings.variant, lit.seed) == ("unscaled", 1)
        if this and not Path("repaired").exists():
            raise ZeroDivisionError("a fault of the user's own")
"""


def ended(root: Path) -> set[str]:
    """The runs with a result, as <attention>/<seed>."""
    return {f"{f.parts[-3].partition(',')[0]}/{f.parts[-2]}" for f in root.rglob("metrics.json")}


def test_a_refused_run_does_not_stop_the_others(text_file: Path, tmp_path: Path) -> None:
    done = small_run(
        tmp_path, text_file, "-m", "hydra/launcher=basic", "attn=sdpa,unscaled", "seed=0,1",
        "model.n_head=2,3", "name=a b",
    )  # fmt: skip
    assert done.code == 1
    assert ended(tmp_path) == {f"attn={a}/seed={s}" for a in ("sdpa", "unscaled") for s in (0, 1)}
    assert (tmp_path / "a b" / "comparison.png").exists()
    assert "unscaled" in done.out.partition("All runs in")[2]
    (log,) = (tmp_path / ".sweep").rglob("hydra.log")  # which is not for the terminal
    assert "#7" in log.read_text() and "#7" not in done.out + done.err
    notes = [read_json(file) for file in sorted((tmp_path / ".sweep").rglob("failed_*.json"))]
    assert len(notes) == 4 and all("model.n_head=3" in note["command"] for note in notes)
    assert all(note["reason"] in done.err for note in notes)


@pytest.mark.parametrize(
    "word", ["optim.lr=-1", "data.batch_size=0", "seed=a", "hydra.sweep.subdir=abc"]
)
def test_the_command_of_a_run_with_a_wrong_setting_is_noted(
    word: str, text_file: Path, tmp_path: Path
) -> None:
    words = (word, "hydra/launcher=basic", "model.dropout=0.125")
    done = small_run(tmp_path, text_file, "-m", *words)
    assert done.code == 1
    (note,) = (read_json(file) for file in (tmp_path / ".sweep").rglob("failed_*.json"))
    assert "model.dropout=0.125" in note["command"] and word.partition("=")[0] in note["reason"]


def test_a_sweep_that_cannot_be_written_is_one_sentence(text_file: Path, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("mine")
    for launcher in ("basic", "processes"):
        words = ("-m", f"hydra/launcher={launcher}", "seed=0,1")
        done = small_run(tmp_path / "a file", text_file, *words)
        assert done.code == 2 and done.err.count("\n") == 1 and "a file" in done.err


def test_the_notes_of_a_sweep_are_in_the_users_directory(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    words = ("-m", "hydra/launcher=basic", "outputs=~/out", "name=2024_01,1e5")
    done = train_py(*words, *SMALL, f"data.path={text_file}")
    assert done.code == 0, done.err
    assert [file.name for file in tmp_path.iterdir()] == ["home"]
    names = {file.name for file in (tmp_path / "home/out").iterdir()}
    assert names == {".sweep", "2024_01", "1e5"}


def test_a_run_that_diverges_is_a_result(text_file: Path, tmp_path: Path) -> None:
    done = small_run(
        tmp_path, text_file, "-m", "hydra/launcher=basic", "attn=sdpa,unscaled",
        "optim.lr=1e38", "trainer.gradient_clip_val=null",
    )  # fmt: skip
    assert (done.code, done.err) == (0, "")
    assert "diverged" in done.out and len(ended(tmp_path)) == 2


@pytest.mark.slow
def test_a_sweep_in_processes_ends_and_is_completed(text_file: Path, tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    command = [
        *(sys.executable, str(ROOT / "train.py"), "-m", *SMALL, f"data.path={text_file}"),
        *("attn=sdpa,unscaled", "seed=0,1,2", "+callbacks.faulty._target_=faulty.Faulty"),
    ]

    def sweep() -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    first = sweep()
    assert first.returncode == 1
    assert len(ended(tmp_path)) == 5 and "attn=unscaled/seed=1" not in ended(tmp_path)
    assert "a fault of the user's own" in first.stderr
    (note,) = (read_json(f) for f in (tmp_path / "outputs/.sweep").rglob("failed_*.json"))
    assert f'File "{tmp_path / "faulty.py"}", line 10' in note["traceback"]
    picture = tmp_path / "outputs/lab/comparison.png"
    assert "unscaled" in first.stdout.partition("All runs in")[2] and picture.exists()
    before = {file: file.read_bytes() for file in tmp_path.rglob("metrics.json")}
    (tmp_path / "repaired").touch()
    second = sweep()
    assert second.returncode == 0, second.stderr
    assert len(ended(tmp_path)) == 6
    assert all(file.read_bytes() == content for file, content in before.items())


DIES = """
import os
import lightning.pytorch as L

class Dies(L.Callback):
    def on_train_batch_start(self, trainer, lit, *_):
        if (lit.settings.variant, lit.seed) == ("unscaled", 1):
            os._exit(9)
"""


@pytest.mark.slow
def test_a_run_whose_worker_dies_is_listed_and_the_others_end(
    text_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "dies.py").write_text(DIES)
    command = [
        *(sys.executable, str(ROOT / "train.py"), "-m", *SMALL, f"data.path={text_file}"),
        *("attn=sdpa,unscaled", "seed=0,1", "+callbacks.dies._target_=dies.Dies"),
        "hydra.launcher.n_jobs=2",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert len(ended(tmp_path)) == 3
    (note,) = (read_json(f) for f in (tmp_path / "outputs/.sweep").rglob("failed_*.json"))
    assert "attn=unscaled" in note["command"] and "seed=1" in note["command"]
    assert note["command"] in done.stderr


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_sweep_ends_its_workers_and_says_what_is_left(
    end: signal.Signals, text_file: Path, tmp_path: Path
) -> None:
    command = [
        *(sys.executable, str(ROOT / "train.py"), "-m", *SMALL, f"data.path={text_file}"),
        *("hydra.launcher.n_jobs=2", "seed=0,1,2,3", "trainer.max_steps=1000000"),
        "trainer.val_check_interval=1000000",
    ]
    with (tmp_path / "log.txt").open("w") as log:
        sweep = subprocess.Popen(
            command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        for _ in range(120):
            if len([*tmp_path.rglob("last.ckpt")]) == 2:
                break
            time.sleep(0.5)
        listed = Path(f"/proc/{sweep.pid}/task/{sweep.pid}/children").read_text().split()
        children = [int(pid) for pid in listed]
        if end is signal.SIGINT:
            os.killpg(sweep.pid, end)  # as a terminal does
        else:
            sweep.send_signal(end)
        code = sweep.wait(60)
    time.sleep(5)
    assert code == (-end if end is signal.SIGKILL else 128 + end)
    assert len(children) >= 2 and not [pid for pid in children if is_alive(pid)]
    if end is not signal.SIGKILL:
        said = (tmp_path / "log.txt").read_text()
        assert "not begun: seed=2\nnot begun: seed=3\n" in said


@pytest.mark.parametrize(
    ("cores", "gpu", "visible", "devices", "at_once"),
    [
        (16, False, None, 1, 16),
        (2, False, None, "auto", 2),
        (16, True, None, 1, 4),
        (2, True, None, "1", 2),
        (16, True, "", 1, 16),
        (16, False, None, 2, 1),
        (16, True, None, "2", 1),
    ],
)
def test_how_many_train_at_once(
    cores: int,
    gpu: bool,
    visible: str | None,
    devices: int | str,
    at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("loky.cpu_count", lambda: cores)
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/nvidia-smi" if gpu else None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert runs_at_once(devices) == at_once


@pytest.mark.slow
def test_runs_of_several_devices_train_one_after_the_other(
    text_file: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), "-m", *SMALL, f"data.path={text_file}",
         "trainer.devices=2", "seed=0,1"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [read_json(file) for file in tmp_path.rglob("metrics.json")]
    assert [run["devices"] for run in found] == [2, 2]
    assert done.stdout.count("All runs in") == 1


def test_words_that_hydra_would_read_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = ["lab/attn=sdpa/seed=0", "lab/attn=sdpa,optim.lr=1e-2/seed=0"]
    for run in runs:
        (Path(run) / "checkpoints").mkdir(parents=True)
    rows = {
        f"init_from={runs[0]}": f"init_from='{runs[0]}'",
        f"init_from={runs[1]}": f"init_from='{runs[1]}'",
        f"init_from={runs[0]},{runs[1]}": f"init_from='{runs[0]}','{runs[1]}'",
        f"init_from={runs[1]},hf:gpt2": f"init_from='{runs[1]}','hf:gpt2'",
        "init_from=no,where": "init_from='no,where'",
        "init_from='quoted,by hand'": "init_from='quoted,by hand'",
        "init_from=null": "init_from=null",
        "seed=0,1": "seed=0,1",
        "name=1E234": "name='1E234'",
        "name=2024_01,1e5,a,007": "name='2024_01','1e5',a,'007'",
        "name='1e5'": "name='1e5'",
        "name=range(3)": "name=range(3)",
        "name=a=1e5": "name=a=1e5",
        "outputs=~/a": f"outputs={Path.home()}/a",
        "outputs='~/a b'": f"outputs='{Path.home()}/a b'",
        "--config-dir=~/a": f"--config-dir={Path.home()}/a",
        "outputs=a~": "outputs=a~",
        "data.path=~/a": "data.path=~/a",
    }
    assert {word: for_hydra(word) for word in rows} == rows
