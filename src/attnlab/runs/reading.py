"""Runs on disk as rows: their settings, statuses and metrics."""

import io
import math
import os
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from attnlab.errors import BadInput, printable
from attnlab.files import read_json, read_yaml, write_atomically
from attnlab.plotting.figures import RunCurves
from attnlab.runs.event_files import read_scalars
from attnlab.runs.settings import flat, last_of, settings_with

if TYPE_CHECKING:
    import pandas

STATUSES = {"finished", "stopped", "diverged", "failed", "running", "interrupted"}


@dataclass(frozen=True)
class Run:
    """One run directory."""

    folder: Path
    status: str  # one of STATUSES, or damaged
    step: int = 0  # the last one, or the one at which the run diverged
    metrics: dict[str, Any] = field(default_factory=dict)  # metrics.json under flat keys
    config: dict[str, Any] = field(default_factory=dict)  # under dotted keys
    overrides: tuple[str, ...] = ()  # as typed, such as "optim.lr=0.01"

    @cached_property
    def values(self) -> dict[str, Any]:
        """All settings and metrics by key, to show, sort and filter by."""
        variant = self.folder.parent.name.split(",")[0].removeprefix("attn=")
        named = {"attn": self.metrics.get("variant", variant), "status": self.status}
        named |= {"step": self.step, "group": self.group.name}
        return self.config | self.metrics | named

    @property
    def group(self) -> Path:
        """The directory shared by runs that differ only in their seed."""
        return self.folder.parent

    @property
    def changes(self) -> list[str]:
        """The overrides except for variant, seed and name."""
        named = settings_with("named")
        return [o for key, o in last_of(self.overrides).items() if key not in named]


def read_runs(root: Path) -> list[Run]:
    """All runs in or below a directory, sorted by name; BadInput if there are none."""
    if not root.is_dir():
        raise BadInput(f"there is no directory {root}")
    found = sorted(root.rglob("status.json"), key=_natural)
    if not found:
        raise BadInput(f"{root} holds no runs: there is no status.json in or below it")
    return [read_run(file.parent) for file in found]


def read_run(folder: Path) -> Run:
    """One run; "damaged" if its files cannot be read or are not valid. Never raises."""
    try:
        status = read_json(folder / "status.json")
        word, step = status["status"], status["step"]
        metrics_file, saved = folder / "metrics.json", folder / ".hydra"
        metrics = flat(read_json(metrics_file)) if metrics_file.exists() else {}
        # Saved settings are resolved, so OmegaConf, which is ten times as slow, is not needed.
        config, overrides = (
            read_yaml(file) if (file := saved / name).exists() else None
            for name in ("config.yaml", "overrides.yaml")
        )
        plain = {key.removeprefix("probes."): x for key, x in metrics.items()}
        run = Run(folder, word, step, plain, flat(config or {}), tuple(map(str, overrides or ())))
        if not _is_sound(run):
            return Run(folder, "damaged")
    except Exception:  # parsers raise anything on a damaged file
        return Run(folder, "damaged")
    stale = word == "running" and not _is_locked(folder)
    return replace(run, status="interrupted") if stale else run


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed, or a single run."""

    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        return self.runs[0]

    def numbers(self, key: str) -> list[float]:
        """The numbers of a key over the seeds."""
        found = [run.values.get(key) for run in self.runs]
        return [float(x) for x in found if isinstance(x, int | float) and not isinstance(x, bool)]

    def mean(self, key: str) -> float | None:
        """The mean over the seeds; None if no run has a number."""
        numbers = self.numbers(key)
        add = math.fsum if all(map(math.isfinite, numbers)) else sum  # fsum refuses inf - inf
        return add(numbers) / len(numbers) if numbers else None

    def sd(self, key: str) -> float | None:
        """The sample standard deviation (n - 1); None for fewer than two numbers."""
        numbers = self.numbers(key)
        if len(numbers) < 2:
            return None
        return statistics.stdev(numbers) if all(map(math.isfinite, numbers)) else math.nan


def group(runs: Sequence[Run]) -> list[Group]:
    """Group runs that differ only in their seed and have the same status."""
    groups: dict[tuple[Path, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.group, run.status), []).append(run)
    return [Group(tuple(found)) for found in groups.values()]


def labels(runs: Sequence[Run]) -> dict[Path, str]:
    """A unique name for each group: its variant, the overrides that not all groups share and, if
    other groups have the same ones, its directory."""
    by_group = {run.group: run for run in runs}
    changes = [set(run.changes) for run in by_group.values()]
    shared = set.intersection(*changes) if changes else set()
    names = {run.group.parent.name for run in runs}
    result = {}
    for folder, run in by_group.items():
        apart = [change for change in run.changes if change not in shared]
        sweep = f"{folder.parent.name}/" if len(names) > 1 else ""
        result[folder] = printable(" ".join([f"{sweep}{run.values['attn']}", *apart]))
    unique = [name for name, count in Counter(result.values()).items() if count == 1]
    parent = os.path.commonpath([folder.absolute() for folder in result] or [Path()])
    for folder in [folder for folder, name in result.items() if name not in unique]:
        result[folder] += f" ({printable(os.path.relpath(folder, parent))})"
    return result


def curves_of(runs: Sequence[Run]) -> list[RunCurves]:
    """The curves of each run, for `attnlab.plotting.figures`."""
    names = labels(runs)
    # Unfinished runs have no metrics, so their unit is that of the others.
    unit = next((str(run.values["unit"]) for run in runs if "unit" in run.values), "character")
    return [
        RunCurves(
            name=names[run.group],
            variant=str(run.values["attn"]),
            seed=run.values.get("seed", run.folder.name),
            status=run.status,
            step=run.step,
            unit=str(run.values.get("unit", unit)),
            scalars=read_curves(run.folder, r"(train|val)/loss|(attn|layers)/entropy/L.*"),
            by_position=run.metrics.get("loss_by_position", ()),
            text=run.metrics.get("corpus.sha256"),
        )
        for run in runs
    ]


def load(root: str | Path | Sequence[Run], *, curves: bool = False) -> "pandas.DataFrame":
    """Read all runs below a directory into a data frame; BadInput if there are none.

    `root` is `outputs`, a sweep in it, a run directory, or the result of `read_runs`. A row is a
    run with its settings and metrics or, with `curves`, a logged value with its tag and step.
    """
    import pandas  # takes half a second

    runs = read_runs(Path(root)) if isinstance(root, str | Path) else root
    names = labels(runs)
    named = [({"run": names[run.group], "folder": str(run.folder)}, run) for run in runs]
    if not curves:
        return pandas.DataFrame([name | run.values for name, run in named])
    rows = [
        [*name.values(), run.values["attn"], run.values.get("seed"), tag, step, value]
        for name, run in named
        for tag, curve in read_curves(run.folder, ".*").items()
        for step, value in curve
    ]
    columns = ["run", "folder", "attn", "seed", "tag", "step", "value"]
    return pandas.DataFrame(rows, columns=columns)


def write_parquet(runs: Sequence[Run], file: Path) -> None:
    """Write `load(runs)` as a Parquet file; columns of mixed types, and of mappings, as text."""
    table = load(runs)
    for key in table.columns:
        kinds = {type(value) for value in table[key] if value is not None and value == value}
        if dict in kinds or (len(kinds) > 1 and kinds != {int, float}):
            table[key] = [None if value is None else str(value) for value in table[key]]
    content = io.BytesIO()
    table.to_parquet(content)
    write_atomically(file, content.getvalue())


def read_curves(folder: Path, pattern: str) -> dict[str, list[tuple[int, float]]]:
    """The scalars of a run whose tags match: tag -> (step, value), the latest for each step."""
    found = read_scalars(folder)
    return {tag: sorted(found[tag].items()) for tag in found if re.fullmatch(pattern, tag)}


def _natural(path: Path) -> list[tuple[int, str]]:
    """A sort key by which seed 10 follows seed 9."""
    pieces = re.split(r"(\d+)", str(path))
    return [(int(p), "") if p.isdecimal() else (-1, p) for p in pieces]


def _is_sound(run: Run) -> bool:
    """Whether the values that tables and figures use have the types that a run writes."""
    values = run.values
    by_position = values.get("loss_by_position", [])
    return (
        run.status in STATUSES
        and type(run.step) is int
        and run.step >= 0
        and {type(values.get(key, "")) for key in ("attn", "unit")} == {str}
        and type(values.get("seed")) in (int, str, type(None))
        and isinstance(by_position, list)
        and all(type(x) in (int, float) for x in by_position)
        and all(abs(x) < 2**63 for x in [*values.values(), *by_position] if type(x) is int)
    )


def _is_locked(folder: Path) -> bool:
    lock = folder / ".lock"
    # FileLock opens the file for writing; a symbolic link could point to any file.
    if not lock.is_file() or lock.is_symlink():
        return False
    try:
        with FileLock(lock, timeout=0):
            return False
    except (Timeout, OSError):
        return True
