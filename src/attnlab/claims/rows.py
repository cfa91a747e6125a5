"""Rows: one JSON object a line for each run, appended as runs end, and committed to git.

A row is found by its overrides and its seed. `renamed.yaml` beside the claims holds overrides that
were renamed since rows were made, old: [new, ...]; they are replaced as rows are read.
"""

import json
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from attnlab.claims.trials import Row, Run
from attnlab.errors import BadInput
from attnlab.files import read_yaml
from attnlab.processor import processor_model

Renamed = Mapping[str, Sequence[str]]
WORDS = ("says", "where", "long")  # of a prediction: they may change after its runs
UNCHECKED = "Whether it was declared first cannot be checked: git does not know {commit}."
GENERATED = tuple(f":(exclude,top,glob)**/{name}" for name in ("rows.jsonl", "*.md", "*.svg"))
decode = json.JSONDecoder(parse_constant=lambda _: None).decode  # NaN and infinity become null


class Rows(dict[Run, Row]):
    """The rows of some files; new ones are appended to the last file.

    A half line, which a killed process leaves behind, is cut off before the next row is written.
    BadInput if a line is damaged or a run has two rows in a file.
    """

    def __init__(self, *files: Path) -> None:
        super().__init__()
        self.file, renamed = files[-1], read_renamed(files[0].parents[1])
        for file in reversed(files):  # those of the first count
            self.update(self._read(file, renamed))

    def _read(self, file: Path, renamed: Renamed) -> dict[Run, Row]:
        found: dict[Run, Row] = {}
        lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
        for number, line in enumerate(lines, 1):
            if line.endswith(b"\n"):
                try:
                    row = decode(line.decode())
                    run = Run(rename(row["overrides"], renamed), row["seed"])
                except (ValueError, KeyError, TypeError) as error:
                    why = f"{file}, line {number} is not a row; restore it with git"
                    raise BadInput(why) from error
                if run in found:
                    raise BadInput(f"{file}, line {number}: a second row of {run}")
                found[run] = row
        return found

    def add(self, row: Row) -> Run:
        """Keep a row, also on the disk."""
        text = self.file.read_bytes() if self.file.exists() else b""
        if text and not text.endswith(b"\n"):
            self.file.write_bytes(text[: text.rfind(b"\n") + 1])
        self.file.parent.mkdir(parents=True, exist_ok=True)
        row = decode(json.dumps(row))  # as it will be read
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")
        run = Run(tuple(row["overrides"]), row["seed"])
        self[run] = row
        return run


def read_renamed(experiments: Path) -> Renamed:
    """The renamed overrides of a directory of claims."""
    file = experiments / "renamed.yaml"
    return read_yaml(file) or {} if file.exists() else {}


def rename(overrides: Iterable[str], renamed: Renamed) -> tuple[str, ...]:
    """Overrides with today's names."""
    return tuple(new for old in overrides for new in renamed.get(old, [old]))


def git(directory: Path, *words: str) -> str | None:
    """What a git command prints; None if it fails, as outside a repository."""
    done = subprocess.run(["git", "-C", directory, *words], capture_output=True, encoding="utf-8")
    return done.stdout if done.returncode == 0 else None


def commit_of(directory: Path) -> str:
    """The commit of a directory's repository, with a + if anything but rows, pages and figures
    differs from it; an empty string outside a repository."""
    changed = git(directory, "status", "--porcelain", "--", ":/", *GENERATED)
    return (git(directory, "rev-parse", "HEAD") or "").strip() + ("+" if changed else "")


def machine() -> str:
    """What rounding depends on, the processor and torch; stored in each row."""
    return f"{processor_model()}, torch {version('torch')}"


def of_prediction(content: Any, name: str, renamed: Renamed) -> Any:
    """What a claim.yaml declares of a prediction: all but its words; None if it does not."""
    entry = content["predictions"].get(name)
    if entry is None:
        return None
    first = entry.get("first_seed", content["first_seed"])
    return {key: x for key, x in entry.items() if key not in WORDS} | {
        "arms": [rename(content["arms"][arm], renamed) for arm in entry["arms"]],
        "base": rename(content["base"], renamed),
        "first_seed": (first, content.get("most_seeds", 10)),
    }


@cache
def content_at(file: Path, commit: str) -> Any:
    """What a file of YAML held at a commit; None if it did not exist.

    For a claim of the earlier format, declared.json, this is what it held at the commit which
    turned that into claim.yaml: a test compared the two then.
    """
    text = git(file.parent, "show", f"{commit}:./{file.name}")
    if text is None and git(file.parent, "show", f"{commit}:./declared.json") is not None:
        gone = git(file.parent, "log", "--diff-filter=D", "--format=%H", "--", "declared.json")
        text = git(file.parent, "show", f"{(gone or '').split()[-1]}:./{file.name}")
    return None if text is None else yaml.safe_load(text)


def undeclared(
    file: Path, made: Iterable[tuple[str, str]], declared: Callable[[Any, str, Renamed], Any]
) -> str:
    """Why rows are not a declared test, in a sentence; empty if they are.

    Committing claim.yaml or ranking.yaml declares it: rows must come from clean commits at which
    it declared the same. `made` has the commits of rows, with the names of what they test.
    """
    today, renamed = read_yaml(file), read_renamed(file.parents[1])
    for commit, name in sorted(made):
        if commit.endswith("+"):
            return f"Exploratory: runs were made with uncommitted changes of {commit[:8]}."
        if not commit or git(file.parent, "cat-file", "-e", f"{commit}^{{commit}}") is None:
            return UNCHECKED.format(commit=commit[:8] or "their commit")
        then = content_at(file, commit)
        if then is None or declared(then, name, renamed) != declared(today, name, renamed):
            return f"Exploratory: {name} was declared otherwise at {commit[:8]}, when it was run."
    return ""
