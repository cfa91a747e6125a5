"""Declarations: claim.yaml or ranking.yaml, and whether rows were made after their commit.

Committing such a file declares it. Rows name the commit at which they were made, and what the file
declared at that commit is compared with what it declares today.
"""

import subprocess
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from attnlab.errors import BadInput
from attnlab.files import read_yaml

GENERATED = tuple(f":(exclude,top,glob)**/{name}" for name in ("rows*.jsonl", "*.md", "*.svg"))
UNCHECKED = "Whether it was declared first cannot be checked: git does not know {commit}."
AnyDeclared = TypeVar("AnyDeclared", bound="Declared")


class Declared(BaseModel, extra="forbid", frozen=True):
    """What claim.yaml or ranking.yaml declares."""

    file: Path = Path("claim.yaml")

    @classmethod
    def read(cls: type[AnyDeclared], file: Path) -> AnyDeclared:
        """Read and check a file of YAML; BadInput names the entries that are not valid."""
        try:
            return cls(**read_yaml(file), file=file.resolve())
        except ValidationError as error:
            raise BadInput(f"{file} cannot be read: {entries_in_words(error)}") from error
        except TypeError as error:
            raise BadInput(f"{file} cannot be read: {error}") from error

    @property
    def folder(self) -> Path:
        """The directory of its file, rows, page and modules, which gives it its name."""
        return self.file.parent


def entries_in_words(error: ValidationError) -> str:
    """The entries that are not valid, each with what is wrong with it; only the latter where it is
    wrong of several together."""
    found = []
    for each in error.errors(include_url=False):
        entry = ".".join(map(str, each["loc"]))
        what = each["msg"].removeprefix("Value error, ")
        found.append(f"{entry}: {what}" if entry else what)
    return "; ".join(found)


def git(directory: Path, *words: str) -> str | None:
    """What a git command, run in a directory, prints; None if it fails, as outside a
    repository."""
    done = subprocess.run(["git", "-C", directory, *words], capture_output=True, encoding="utf-8")
    return done.stdout if done.returncode == 0 else None


def commit_of(directory: Path) -> str:
    """The commit of a directory's repository, with a + if any file of the repository, other than
    rows, pages and figures, differs from it; an empty string outside a repository."""
    head = head_of(directory)
    changed = git(directory, "status", "--porcelain", "--", ":/", *GENERATED)
    return f"{head}+" if changed else head


def head_of(directory: Path) -> str:
    """The commit of a directory's repository, whether or not files differ from it; an empty string
    outside a repository."""
    return (git(directory, "rev-parse", "HEAD") or "").strip()


def has_commit(directory: Path, commit: str) -> bool:
    """Whether the repository of a directory has a commit; not if its name is empty."""
    return bool(commit) and git(directory, "cat-file", "-e", f"{commit}^{{commit}}") is not None


def lost_rows(rows: Path) -> list[str]:
    """Lines that a file of rows had at an earlier commit and has no longer: rows that were changed
    or removed. Each once."""
    lines = set(rows.read_text(encoding="utf-8").splitlines()) if rows.exists() else set()
    lost: dict[str, None] = {}
    for commit in (git(rows.parent, "log", "--format=%H", "--", rows.name) or "").split():
        then = git(rows.parent, "show", f"{commit}:./{rows.name}") or ""
        for line in then.splitlines():
            # Rows of earlier formats begin otherwise, and do not count.
            if line not in lines and line.startswith('{"overrides"'):
                lost[line] = None
    return list(lost)


@cache
def content_at(file: Path, commit: str) -> Any:
    """What a file of YAML held at a commit; None if it did not exist.

    If there was declared.json instead, the earlier format of claim.yaml: what claim.yaml held at
    the commit that replaced the one by the other. A test then compared the two.
    """
    text = git(file.parent, "show", f"{commit}:./{file.name}")
    if text is None and git(file.parent, "show", f"{commit}:./declared.json") is not None:
        deleted = git(file.parent, "log", "--diff-filter=D", "--format=%H", "--", "declared.json")
        replaced_at = (deleted or "").split()[-1]
        text = git(file.parent, "show", f"{replaced_at}:./{file.name}")
    return None if text is None else yaml.safe_load(text)


def why_undeclared(
    file: Path,
    tested: Iterable[tuple[str, tuple[str, ...]]],
    declaration: Callable[..., Any],
) -> str:
    """Why rows are not a declared test, in a sentence; empty if they are.

    The rows must have been made at clean commits at which the file declared of what was tested
    what it declares today. `tested` has pairs of the commit of some rows and the keys of what they
    test, such as a variant and a task; `declaration(content, *keys)` is what the content of the
    file declares of that, or None.
    """
    today = read_yaml(file)
    for commit, keys in sorted(tested):
        if commit.endswith("+"):
            return f"Exploratory: runs were made with uncommitted changes of {commit[:8]}."
        if not has_commit(file.parent, commit):
            return UNCHECKED.format(commit=commit[:8] or "their commit")
        then = content_at(file, commit)
        if then is None or declaration(then, *keys) != declaration(today, *keys):
            name = " on ".join(keys)
            return f"Exploratory: {name} was declared otherwise at {commit[:8]}, when it was run."
    return ""
