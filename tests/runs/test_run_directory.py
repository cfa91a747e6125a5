"""A run directory: begun, replaced, and read, also by who may not write to it."""

import errno
import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attnlab.errors import BadInput
from attnlab.runs import run_directory
from attnlab.runs.run_directory import RunDirectory, folder_for

SETTINGS = {"seed": 0}
# What a run has left that has ended, and other files than those of a run.
ENDED = ("metrics.json", "metrics.csv", "checkpoints/last.ckpt", "checkpoints/best.ckpt")


class Ended(BaseException):
    """Stands for the end of the process; nothing catches it."""


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The process ends after so many changes of files: ends[:] = [3]."""
    left = [1000]

    def counted(name: str) -> None:
        original = vars(Path)[name]

        def change(path: Path, *arguments: object, **options: object) -> object:
            left[0] -= 1
            if left[0] < 0:
                raise Ended
            return original(path, *arguments, **options)

        monkeypatch.setattr(Path, name, change)

    for name in ("unlink", "replace", "mkdir"):
        counted(name)
    return left


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("changes", range(14))
def test_a_run_that_is_killed_as_it_begins_can_be_repeated(
    changes: int, force: bool, tmp_path: Path, ends: list[int]
) -> None:
    directory = RunDirectory(tmp_path)
    if force:  # an earlier run is replaced
        directory.begin(SETTINGS, ["seed=0"], ["own"], force=False)
        for name in ENDED:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("{}")
    ends[:] = [changes]
    try:
        directory.begin(SETTINGS, ["a=1"], force=force)
    except Ended:
        pass
    else:
        assert changes > 4
    ends[:] = [1000]
    assert directory.begin(SETTINGS, ["a=1"], force=force) is None
    left = {str(x.relative_to(tmp_path)) for x in tmp_path.rglob("*") if x.is_file()}
    assert {x for x in left if not x.endswith(".tmp")} == {
        ".hydra/config.yaml",
        ".hydra/overrides.yaml",
    }


@pytest.mark.parametrize("name", ["thesis.tex", ".hydra/hydra.yaml", "checkpoints/last.ckpt"])
def test_other_files_are_no_run_that_has_begun(name: str, tmp_path: Path) -> None:
    RunDirectory(tmp_path).begin(SETTINGS, [], force=False)
    (tmp_path / ".hydra/config.yaml").unlink()
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    for force in (False, True):
        with pytest.raises(BadInput, match="not empty"):
            RunDirectory(tmp_path).begin(SETTINGS, [], force=force)
    assert (tmp_path / name).exists()


def begun(path: Path) -> RunDirectory:
    """A directory with a run that has begun, whose lock no process holds."""
    directory = RunDirectory(path)
    with directory.locked():
        directory.begin(SETTINGS, [], force=False)
    return directory


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EBADF])
def test_without_locks_nobody_knows_whether_a_run_trains(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> bool:
        raise OSError(number, os.strerror(number))

    directory = begun(tmp_path)
    monkeypatch.setattr(run_directory, "lock_descriptor", fails)
    assert directory.status() == "unknown"
    directory.error.touch()
    assert directory.status() == "failed"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize(
    ("mode", "free", "held"),
    [(0o644, "interrupted", "running"), (0o600, "unknown", "unknown")],
)
def test_another_user_sees_whether_a_run_trains(
    mode: int, free: str, held: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("of_a_student")
    for parent in (folder, *folder.parents):
        if not parent.is_relative_to(tempfile.gettempdir()) or parent.stat().st_mode & 0o005 == 5:
            break
        parent.chmod(0o755)
    directory = begun(folder)
    (folder / ".lock").chmod(mode)

    def seen() -> str:
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()

        def look() -> None:
            os.setuid(65534)
            queue.put(directory.status())

        directory.status()  # what it imports, the other user may not be able to read
        other = context.Process(target=look)
        other.start()
        other.join(60)
        assert other.exitcode == 0
        return str(queue.get())

    assert seen() == free
    with directory.locked():
        assert seen() == held


@pytest.mark.parametrize("group", ["attn", "data", "model", "optim", "callbacks"])
def test_own_code_that_was_edited_is_another_directory(group: str) -> None:
    def folder(source: str) -> Path:
        """That of a run whose own code of the group has this digest."""
        settings: Any = {key: {} for key in ("attn", "data", "model", "optim", "callbacks")}
        own = {"source": source}
        settings[group] = {"mine": own} if group == "callbacks" else own
        settings |= {"outputs": "outputs", "name": "lab", "seed": 0}
        return folder_for(settings, "sdpa", [])

    assert folder("a" * 64) == folder("a" * 64) != folder("b" * 64)
