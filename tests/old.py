"""The code before the reduction (commit b308e5e), for tests that compare bits with it."""

import atexit
import functools
import io
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

COMMIT = "b308e5e"
ROOT = Path(__file__).parents[1]


@functools.cache
def old_code() -> Path:
    """A directory with src/, conf/ and train.py of the commit, which is removed when this process
    ends; the test is skipped where git does not have it (a shallow clone, an unpacked archive)."""
    command = ["git", "-C", str(ROOT), "archive", COMMIT, "src", "conf", "train.py"]
    done = subprocess.run(command, capture_output=True)
    if done.returncode:
        pytest.skip(f"commit {COMMIT} is not here: {done.stderr.decode().strip()}")
    folder = Path(tempfile.mkdtemp(prefix="attnlab-old-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder
