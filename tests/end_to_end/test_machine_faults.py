"""Faults of the machine end with one sentence and an exit code, and lose nothing."""

import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from attnlab.attention import Attention, variant
from tests.forked import (
    FORK,
    RUN,
    begin,
    ended,
    folder_of,
    interrupted,
    is_one_sentence,
    same_weights,
)
from tests.marks import LONG


@pytest.fixture(scope="module")
def whole(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run."""
    scratch = tmp_path_factory.mktemp("whole")
    code, said = ended([*RUN, f"data.path={text_file}", f"outputs={scratch}/o"], scratch)
    assert code == 0, said
    return folder_of(scratch / "o")


@pytest.fixture
def command(text_file: Path, tmp_path: Path) -> list[str]:
    return [*RUN, f"data.path={text_file}", f"outputs={tmp_path}/o"]


@LONG  # the sample of the fault campaign has a full disk, too
def test_a_limited_file_size(command: list[str], whole: Path, tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    code, said = ended(command, tmp_path, limit)
    assert (code, is_one_sentence(said)) == (2, True), said
    assert "cannot be written: File too large" in said
    folder = folder_of(tmp_path / "o")
    assert json.loads((folder / "status.json").read_text())["status"] == "failed"
    assert not list(folder.rglob(".*.[0-9]*"))
    code, said = ended(command, tmp_path)
    assert code == 0, said
    assert same_weights(folder, whole)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting is not permitted here; a limited file size is tested in any case")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@LONG
@pytest.mark.parametrize("logger", ["none", "tensorboard"])
def test_a_full_disk(
    logger: str, tiny_disk: Path, text_file: Path, whole: Path, tmp_path: Path
) -> None:
    command = [*RUN, f"data.path={text_file}", f"outputs={tiny_disk}", f"logger={logger}"]
    code, said = ended(command, tmp_path)
    assert (code, is_one_sentence(said)) == (2, True), said
    assert "cannot be written: No space left on device" in said
    remount = ["mount", "-o", "remount,size=8m", str(tiny_disk)]
    subprocess.run(remount, check=True)
    code, said = ended(command, tmp_path)
    assert code == 0, said
    assert same_weights(folder_of(tiny_disk), whole)


@LONG
def test_a_read_only_file_system(tiny_disk: Path, text_file: Path, tmp_path: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    code, said = ended([*RUN, f"data.path={text_file}", f"outputs={tiny_disk}/o"], tmp_path)
    assert (code, is_one_sentence(said)) == (2, True), said
    assert "cannot be written: Read-only file system" in said


def obey_permissions() -> None:
    """Drop the capability that lets root write anywhere (CAP_DAC_OVERRIDE)."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3; of this process
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, twice 32 bits
    libc = ctypes.CDLL(None)
    assert libc.capget(header, sets) == 0
    for place in range(3):
        sets[place] &= ~(1 << 1)
    assert libc.capset(header, sets) == 0


@pytest.mark.parametrize("of", [pytest.param("outputs", marks=LONG), "the run"])
def test_no_permission_to_write(of: str, command: list[str], tmp_path: Path) -> None:
    if not sys.platform.startswith("linux") and os.geteuid() == 0:
        pytest.skip("permissions do not bind root, and only Linux lets root give that up")
    (tmp_path / "o").mkdir()
    closed = interrupted(command, tmp_path) if of == "the run" else tmp_path / "o"
    before = {f: f.read_bytes() for f in closed.rglob("*") if f.is_file()}
    closed.chmod(0o555)
    code, said = ended(command, tmp_path, obey_permissions if os.geteuid() == 0 else int)
    closed.chmod(0o755)
    assert (code, is_one_sentence(said)) == (2, True), said
    assert "cannot be written: Permission denied" in said
    assert before == {f: f.read_bytes() for f in closed.rglob("*") if f.is_file()}


@LONG
def test_the_clock_is_set_back(command: list[str], whole: Path, tmp_path: Path) -> None:
    command.append("logger=tensorboard")
    folder = interrupted(command, tmp_path)
    now = time.time

    def a_year_ago() -> None:
        time.time = lambda: now() - 365 * 86_400

    code, said = ended(command, tmp_path, a_year_ago)
    assert code == 0, said
    assert same_weights(folder, whole)
    from attnlab.runs.reading import read_curves, read_run

    assert read_run(folder).status == "finished"
    steps = [step for step, _ in read_curves(folder, "val/loss")["val/loss"]]
    assert steps == [4, 8, 12]


@LONG
def test_paths_with_spaces_and_non_latin_letters(
    text_file: Path, whole: Path, tmp_path: Path
) -> None:
    place = tmp_path / "Läufe und Daten, Прогоны = 跑"
    place.mkdir()
    shutil.copy(text_file, place / "mein text ß.txt")
    command = [*RUN, f"data.path='{place}/mein text ß.txt'", f"outputs='{place}/o'"]
    folder = interrupted(command, place)
    code, said = ended(command, tmp_path)
    assert code == 0, said
    assert same_weights(folder, whole)
    from typer.testing import CliRunner

    from attnlab.commands.cli import app

    for arguments in (["sample", str(folder), "--chars", "5"], ["runs", str(place)]):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output


def test_two_processes_in_one_folder(command: list[str], whole: Path, tmp_path: Path) -> None:
    training, go_on = FORK.Event(), FORK.Event()

    def wait() -> None:
        from attnlab.training.lightning_module import GPTModule

        step = GPTModule.training_step

        def waiting(self: GPTModule, *arguments: object) -> object:
            training.set()
            go_on.wait(120)
            return step(self, *arguments)  # type: ignore[arg-type]

        GPTModule.training_step = waiting  # type: ignore[assignment,method-assign]

    first = begin(command, tmp_path, wait)
    assert training.wait(120)
    code, said = ended(command, tmp_path)
    assert (code, is_one_sentence(said)) == (2, True), said
    assert "another process is training in" in said
    go_on.set()
    code, said = first.end()
    assert code == 0, said
    assert same_weights(folder_of(tmp_path / "o"), whole)


def limited_memory(more: int) -> Callable[[], None]:
    """`ulimit -v`: this many bytes more than the process uses now."""

    def limit() -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + more
        resource.setrlimit(resource.RLIMIT_AS, (most, most))

    return limit


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(
    "large", [pytest.param("model.n_embd=8192", marks=LONG), "data.batch_size=300000"]
)
def test_limited_memory(large: str, command: list[str], whole: Path, tmp_path: Path) -> None:
    code, said = ended([*command, large], tmp_path, limited_memory(400_000_000))
    assert (code, is_one_sentence(said)) == (2, True), said
    assert "memory" in said
    code, said = ended(command, tmp_path)
    assert code == 0, said


def nan_heads(layer: Attention) -> None:
    """Initialize heads with NaN."""
    layer.qkv.weight.data[0, 0] = torch.nan


def test_nan_weights_count_as_a_divergence(command: list[str], tmp_path: Path) -> None:
    def prepare() -> None:
        variant.nan = nan_heads  # type: ignore[attr-defined]

    code, said = ended(
        [*command, "attn.head_init=attnlab.attention.variant.nan"], tmp_path, prepare
    )
    assert (code, "Traceback" in said) == (0, False), said
    status = json.loads((folder_of(tmp_path / "o") / "status.json").read_text())
    assert (status["status"], status["step"]) == ("diverged", 1)
