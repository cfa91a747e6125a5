"""Rows: one JSON object a line for each run, appended as runs end, and committed to git.

A row is found by its overrides and its seed. `renamed.yaml` beside the claims holds overrides that
were renamed since rows were made, old: [new, ...]; they are replaced as rows are read.
"""

import json
import math
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from attnlab.claims.claims import Part
from attnlab.claims.trials import Row, Run
from attnlab.errors import BadInput
from attnlab.files import read_yaml

Renamed = Mapping[str, Sequence[str]]
WORDS = ("says", "where", "long")  # of a prediction: they may change after its runs
UNCHECKED = "Whether it was declared before its runs cannot be checked here: {why}."
GENERATED = tuple(f":(exclude,top,glob)**/{name}" for name in ("rows.jsonl", "*.md", "*.svg"))


class Rows(dict[Run, Row]):
    """The rows of some files; new ones are appended to the last file.

    A half line, which a killed process leaves behind, is cut off before the next row is written.
    BadInput if a line is damaged or a run has two rows in a file.
    """

    def __init__(self, *files: Path, renamed: Renamed | None = None) -> None:
        super().__init__()
        self.file, self.renamed = files[-1], renamed or {}
        for file in files:
            found: dict[Run, Row] = {}
            lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    continue
                run, row = self._read(file, number, line)
                if run in found:
                    raise BadInput(f"{file}, line {number}: a second row of {said(run)}")
                found[run] = row
            self.update({run: row for run, row in found.items() if run not in self})

    def _read(self, file: Path, number: int, line: bytes) -> tuple[Run, Row]:
        try:
            row = json.loads(line)
            return Run(rename(row["overrides"], self.renamed), row["seed"]), row
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(f"{file}, line {number} is not a row; restore it with git") from error

    def add(self, row: Row) -> None:
        """Keep a row, also on the disk."""
        text = self.file.read_bytes() if self.file.exists() else b""
        if text and not text.endswith(b"\n"):
            self.file.write_bytes(text[: text.rfind(b"\n") + 1])
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(plain(row)) + "\n")
        self[Run(tuple(row["overrides"]), row["seed"])] = row


def plain(content: Any) -> Any:
    """JSON without NaN and infinities, which become null."""
    if isinstance(content, dict):
        return {key: plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [plain(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def said(run: Run) -> str:
    """A run in words."""
    return f"{' '.join(run.overrides)} seed={run.seed}"


def rename(overrides: Iterable[str], renamed: Renamed) -> tuple[str, ...]:
    """Overrides with today's names."""
    return tuple(new for old in overrides for new in renamed.get(old, [old]))


def read_renamed(experiments: Path) -> dict[str, list[str]]:
    """The renamed overrides of a directory of claims."""
    file = experiments / "renamed.yaml"
    return dict(read_yaml(file) or {}) if file.exists() else {}


def git(directory: Path, *words: str) -> str | None:
    """What a git command prints; None if it fails, as outside a repository."""
    command = ["git", "-C", str(directory), *words]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    return done.stdout if done.returncode == 0 else None


def commit_of(directory: Path) -> str:
    """The commit of a directory's repository, with a + if anything but rows, pages and figures
    differs from it; an empty string outside a repository."""
    changed = git(directory, "status", "--porcelain", "--", ":/", *GENERATED)
    return (git(directory, "rev-parse", "HEAD") or "").strip() + ("+" if changed else "")


def machine() -> str:
    """What rounding depends on, the processor and torch; stored in each row."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    named = (line.partition(": ")[2] for line in lines if line.startswith("model name"))
    return f"{next(named, platform.machine())}, torch {version('torch')}"


def declaration(content: Mapping[str, Any], name: str, renamed: Renamed) -> Any:
    """What a claim.yaml declares of a prediction: all but its words; None if it does not."""
    entry = content["predictions"].get(name)
    if entry is None:
        return None
    arms = {arm: rename(content["arms"][arm], renamed) for arm in entry["arms"]}
    fixed = {key: value for key, value in entry.items() if key not in WORDS}
    first = entry.get("first_seed", content["first_seed"])
    seeds = (first, content.get("most_seeds", 10))
    base = rename(content["base"], renamed)
    return fixed | {"arms": list(arms.values()), "base": base, "first_seed": seeds}


@cache
def content_at(file: Path, commit: str) -> Any:
    """What a file of YAML held at a commit; None if it did not exist or the commit is unknown.

    A claim that was declared in the earlier format, declared.json, is that of the commit which
    turned it into claim.yaml: a test compared the two then.
    """
    text = git(file.parent, "show", f"{commit}:./{file.name}")
    if text is None and git(file.parent, "show", f"{commit}:./declared.json") is not None:
        added = git(file.parent, "log", "--diff-filter=A", "--format=%H", "--", file.name)
        first = (added or "").split()[-1:]
        text = git(file.parent, "show", f"{first[0]}:./{file.name}") if first else None
    return None if text is None else yaml.safe_load(text)


def undeclared(file: Path, parts: Iterable[Part], renamed: Renamed) -> str:
    """Why rows are not a declared test of a claim, in a sentence; empty if they are.

    Committing claim.yaml declares it: rows must come from clean commits at which their prediction
    was the same, but for its words.
    """
    today = read_yaml(file)
    for part in parts:
        now = declaration(today, part.of, renamed)
        for commit in {row["commit"] for of_arm in part.rows.values() for row in of_arm}:
            if why := uncheckable(file, commit):
                return why
            then = content_at(file, commit)
            if then is None or declaration(then, part.of, renamed) != now:
                return (
                    f"Exploratory: {part.of} was not declared as it is today at {commit[:8]}, "
                    "when runs were made."
                )
    return ""


def uncheckable(file: Path, commit: str) -> str:
    """Why a row of a commit is exploratory or cannot be checked, in a sentence; or nothing."""
    if commit.endswith("+"):
        return f"Exploratory: runs were made with uncommitted changes of {commit[:8]}."
    if not commit:
        return UNCHECKED.format(why="runs were made outside a git repository")
    if git(file.parent, "cat-file", "-e", f"{commit}^{{commit}}") is None:
        return UNCHECKED.format(why=f"git does not know {commit[:8]}, when runs were made")
    return ""


def lost_lines(file: Path) -> list[str]:
    """Rows that a file had at a commit of its history and no longer has."""
    today = set(file.read_text(encoding="utf-8").splitlines())
    commits = (git(file.parent, "log", "--format=%H", "--", file.name) or "").split()
    then = [git(file.parent, "show", f"{commit}:./{file.name}") or "" for commit in commits]
    lines = {line for text in then for line in text.splitlines()} - today
    return sorted(line for line in lines if line.startswith('{"overrides"'))  # not earlier formats
