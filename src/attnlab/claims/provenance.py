"""Where a row comes from: repository, processor, versions, and a digest of all source files."""

import hashlib
import platform
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import attnlab
from attnlab.claims.paths import Paths
from attnlab.training.checkpoints import processor

ROWS = ("rows.jsonl", "pilots.jsonl")  # committed, and appended to while claims run
PACKAGES = ("attnlab", "torch", "lightning", "hydra-core", "numpy")


def repository_state(paths: Paths) -> dict[str, Any]:
    """The commit of the repository that contains the claims, and whether files differ from it.

    Without a repository, the commit is None.
    """
    top = _top(paths.experiments)
    if top is None:
        return {"commit": None, "dirty": True}
    apart = [f":(exclude,glob,top)**/{name}" for name in (*ROWS, "__pycache__/**")]
    if paths.outputs.is_relative_to(top):
        apart.append(f":(exclude,top){paths.outputs.relative_to(top)}")
    changed = git(paths.experiments, "status", "--porcelain", "--", ":/", *apart)
    return {"commit": git(paths.experiments, "rev-parse", "HEAD"), "dirty": bool(changed)}


def git(directory: Path, *arguments: str) -> str:
    """The output of a git command; CalledProcessError if it fails."""
    command = ["git", "-C", str(directory), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.strip()


def text_at(commit: str, file: Path) -> str | None:
    """The text of a file at a commit; None if it was not part of it."""
    try:
        return git(file.parent, "show", f"{commit}:./{file.name}")
    except subprocess.CalledProcessError:
        return None


@cache
def _top(directory: Path) -> Path | None:
    """The top directory of a repository with a commit; None without one."""
    try:
        git(directory, "rev-parse", "HEAD")
        return Path(git(directory, "rev-parse", "--show-toplevel"))
    except (OSError, subprocess.SubprocessError):
        return None


@cache
def sources_digest(paths: Paths, claim: str) -> str:
    """The digest of attnlab, the configuration, the claim, and a user's own modules."""
    package, directory = Path(attnlab.__file__).parent, paths.experiments / claim
    files = {*package.rglob("*.py"), *paths.conf.rglob("*.yaml")}
    files |= {*directory.rglob("*.py"), *directory.rglob("*.yaml")}
    top = _top(paths.experiments)
    if top is not None and not package.is_relative_to(top):  # a repository of the user
        files |= {top / name for name in git(top, "ls-files", "*.py").splitlines()}
    texts = sorted(file.read_bytes() for file in files if file.is_file())
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:12]


@cache
def machine() -> dict[str, Any]:
    """The processor and the versions of the libraries."""
    versions = {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}
    return {"processor": processor(), "versions": versions}
