"""Runs on the disk as rows: what they were, how they ended, what they measured."""

import io
import math
import operator
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from filelock import FileLock, Timeout

from attnlab.errors import BadInput, printable
from attnlab.event_files import read_scalars
from attnlab.files import read_json, read_yaml, write_atomically
from attnlab.plotting.figures import RunCurves
from attnlab.training.run_directory import APART, flat, last_of

if TYPE_CHECKING:
    import pandas

STATUSES = {"finished", "stopped", "diverged", "failed", "running", "interrupted"}
Value = Any
T = TypeVar("T")
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}


@dataclass(frozen=True)
class Run:
    """One run folder.

    Args:
        folder: where it is.
        status: finished, stopped, diverged, failed, running, interrupted or damaged.
        step: the last that was done; the one at which it diverged.
        metrics: metrics.json under flat keys, empty where there is none.
        config: the configuration under dotted keys.
        overrides: what was typed, "optim.lr=0.01" say.
    """

    folder: Path
    status: str
    step: int = 0
    metrics: dict[str, Value] = field(default_factory=dict)
    config: dict[str, Value] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()

    @cached_property
    def values(self) -> dict[str, Value]:
        """Everything that can be shown, sorted by or filtered by, under its key."""
        variant = self.folder.parent.name.split(",")[0].removeprefix("attn=")
        named = {"attn": self.metrics.get("variant", variant), "status": self.status}
        named |= {"step": self.step, "group": self.group.name}
        return self.config | self.metrics | named

    @property
    def group(self) -> Path:
        """What runs have in common that differ by their seed alone."""
        return self.folder.parent

    @property
    def changes(self) -> list[str]:
        """What the user changed, besides variant, seed and name."""
        return [o for key, o in last_of(self.overrides).items() if key not in APART]


def read_runs(root: Path) -> list[Run]:
    """All runs below a folder, or the one in it, in order of their names.

    Raises:
        BadInput: there is no such folder, or no run in it.
    """
    if not root.is_dir():
        raise BadInput(f"there is no folder {root}")
    found = sorted(root.rglob("status.json"), key=_natural)
    if not found:
        raise BadInput(f"{root} holds no runs: no status.json in it or below")
    return [read_run(file.parent) for file in found]


def read_run(folder: Path) -> Run:
    """One run; what cannot be read makes it "damaged", and never raises."""
    try:
        status = read_json(folder / "status.json")
        word, step = status["status"], status["step"]
        if not isinstance(word, str) or type(step) is not int or step < 0:
            return Run(folder, "damaged")
        metrics_file, saved = folder / "metrics.json", folder / ".hydra"
        metrics = flat(read_json(metrics_file)) if metrics_file.exists() else {}
        config_file, overrides_file = saved / "config.yaml", saved / "overrides.yaml"
        # What a run saved is resolved, so that OmegaConf, ten times as slow, is not needed.
        config = flat(read_yaml(config_file) or {}) if config_file.exists() else {}
        overrides = (
            tuple(map(str, read_yaml(overrides_file) or ())) if overrides_file.exists() else ()
        )
    except Exception:  # whatever a parser makes of a damaged file
        return Run(folder, "damaged")
    if word == "running" and not _is_locked(folder):
        word = "interrupted"
    plain = {key.removeprefix("probes."): x for key, x in metrics.items()}
    return _checked(Run(folder, word, step, plain, config, overrides))


def select(runs: Sequence[Run], conditions: Sequence[str]) -> list[Run]:
    """The runs for which all conditions hold: attn=unscaled, optim.lr<=0.01, val_loss<2, ...

    Raises:
        BadInput: a condition cannot be read, or names a key that no run has.
    """
    for condition in conditions:
        found = re.fullmatch(r"([^=<>!]+?)\s*(!=|<=|>=|=|<|>)\s*(.*)", condition)
        if found is None:
            raise BadInput(f"where = {condition} must be KEY=VALUE, or with !=, <, >, <=, >=")
        key, sign, wanted = found.groups()
        check_key(runs, key)
        if sign not in {"=", "!="} and _number(wanted) is None:
            raise BadInput(f"where = {condition}: {sign} compares numbers, and {wanted!r} is none")
        runs = [run for run in runs if _holds(run.values.get(key), sign, wanted)]
    return list(runs)


def sort(runs: Sequence[Run], key: str, *, descending: bool = False) -> list[Run]:
    """By a key's numbers, then its words; what has neither comes last.

    Raises:
        BadInput: no run has the key.
    """
    check_key(runs, key)
    return _sorted(runs, lambda run: run.values.get(key), descending)


def sort_groups(groups: Sequence["Group"], key: str, *, descending: bool = False) -> list["Group"]:
    """By the mean of a key, or by its words.

    Raises:
        BadInput: no run has the key.
    """
    check_key([run for found in groups for run in found.runs], key)

    def value(found: "Group") -> Value:
        mean = found.mean(key)
        return found.runs[0].values.get(key) if mean is None else mean

    return _sorted(groups, value, descending)


def check_key(runs: Sequence[Run], key: str) -> None:
    """Refuse a key that no run has.

    Raises:
        BadInput: it is; the sentence names the nearest.
    """
    known = {name for run in runs for name in run.values}
    if runs and key not in known:
        near = get_close_matches(key, sorted(known), n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "see attnlab runs FOLDER --json"
        raise BadInput(f"{key} is neither a setting nor a metric of these runs; {hint}")


@dataclass(frozen=True)
class Group:
    """Runs that differ by their seed alone and ended alike."""

    runs: tuple[Run, ...]

    @property
    def status(self) -> str:
        return self.runs[0].status

    @property
    def variant(self) -> str:
        return str(self.runs[0].values["attn"])

    def numbers(self, key: str) -> list[float]:
        """The values of a key over the seeds."""
        found = [run.values.get(key) for run in self.runs]
        return [float(x) for x in found if isinstance(x, int | float)]

    def mean(self, key: str) -> float | None:
        """None where no run has a number."""
        numbers = self.numbers(key)
        return math.fsum(numbers) / len(numbers) if numbers else None

    def sd(self, key: str) -> float | None:
        """Of the sample (n - 1); None for fewer than two numbers."""
        numbers = self.numbers(key)
        if len(numbers) < 2:
            return None
        return statistics.stdev(numbers) if all(map(math.isfinite, numbers)) else math.nan


def group(runs: Sequence[Run]) -> list[Group]:
    """Runs by all but their seed; diverged and failed ones are groups of their own kind."""
    groups: dict[tuple[Path, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.group, run.status), []).append(run)
    return [Group(tuple(found)) for found in groups.values()]


def labels(runs: Sequence[Run]) -> dict[Path, str]:
    """A short name for each group: its variant, and the changes that not all groups share."""
    by_group = {run.group: run for run in runs}
    changes = [set(run.changes) for run in by_group.values()]
    shared = set.intersection(*changes) if changes else set()
    names = {run.group.parent.name for run in runs}
    result = {}
    for folder, run in by_group.items():
        apart = [change for change in run.changes if change not in shared]
        name = [f"{folder.parent.name}/"] if len(names) > 1 else []
        words = ["".join([*name, str(run.values["attn"])]), *apart]
        result[folder] = printable(" ".join(words))
    return result


def curves_of(runs: Sequence[Run]) -> list[RunCurves]:
    """The curves of each run, for `attnlab.plotting.figures`."""
    names = labels(runs)
    found = [
        RunCurves(
            name=names[run.group],
            variant=str(run.values["attn"]),
            seed=run.values.get("seed", run.folder.name),
            status=run.status,
            step=run.step,
            unit=str(run.values.get("unit", "")),
            scalars=read_curves(run.folder, r"(train|val)/loss|attn/entropy/L.*"),
            by_position=run.metrics.get("loss_by_position", ()),
        )
        for run in runs
    ]
    # Unfinished runs have no metrics to name their unit.
    unit = next((run.unit for run in found if run.unit), "character")
    return [run if run.unit else replace(run, unit=unit) for run in found]


def load(root: str | Path, *, curves: bool = False) -> "pandas.DataFrame":
    """Read all runs below a folder into a data frame.

    Args:
        root: `outputs`, a sweep in it, or a run directory.
        curves: one row for each logged value (run, attn, seed, tag, step, value) instead of one
            row for each run, with its settings and metrics as columns.

    Raises:
        BadInput: there is no such folder or no run in it, or pandas is not installed.
    """
    return frame(read_runs(Path(root)), curves=curves)


def frame(runs: Sequence[Run], *, curves: bool = False) -> "pandas.DataFrame":
    """Runs as a data frame; `load` has the arguments."""
    try:
        import pandas
    except ImportError as error:
        raise BadInput("a data frame needs pandas; install it with: pip install pandas") from error
    names = labels(runs)
    named = [({"run": names[run.group], "folder": str(run.folder)}, run) for run in runs]
    if not curves:
        return pandas.DataFrame([name | run.values for name, run in named])
    rows = [
        name | {"attn": run.values["attn"], "seed": run.values.get("seed"), "tag": tag}
        | {"step": step, "value": value}
        for name, run in named
        for tag, curve in read_curves(run.folder, ".*").items()
        for step, value in curve
    ]  # fmt: skip
    return pandas.DataFrame(rows)


def write_parquet(runs: Sequence[Run], file: Path) -> None:
    """Write `frame(runs)` as a Parquet file; columns of mixed types are written as text.

    Raises:
        BadInput: pandas or pyarrow is not installed.
    """
    table = frame(runs)
    for key in table.columns:
        kinds = {type(value) for value in table[key] if value is not None and value == value}
        if len(kinds) > 1 and kinds != {int, float}:
            table[key] = [None if value is None else str(value) for value in table[key]]
    content = io.BytesIO()
    try:
        table.to_parquet(content)
    except ImportError as error:
        raise BadInput("Parquet needs pyarrow; install it with: pip install pyarrow") from error
    write_atomically(file, content.getvalue())


def read_curves(folder: Path, pattern: str) -> dict[str, list[tuple[int, float]]]:
    """The scalars of a run's events whose tags match: tag -> (step, value), the latest a step."""
    scalars = read_scalars(folder)
    return {
        tag: sorted(values.items())
        for tag, values in scalars.items()
        if re.fullmatch(pattern, tag)
    }


def _holds(value: Value, sign: str, wanted: str) -> bool:
    number = _number(wanted)
    if number is not None and isinstance(value, int | float) and not isinstance(value, bool):
        return bool(COMPARE[sign](float(value), number))
    if sign in {"=", "!="}:
        return bool(COMPARE[sign](_word(value), wanted))
    return False


def _word(value: Value) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _sorted(items: Sequence[T], value: Callable[[T], Value], descending: bool) -> list[T]:
    """NaN and nothing are last in either direction."""
    present = [item for item in items if _rank(value(item))[0] < 2]
    absent = [item for item in items if _rank(value(item))[0] == 2]
    present.sort(key=lambda item: _rank(value(item)), reverse=descending)
    return present + absent


def _rank(value: Value) -> tuple[int, float, str]:
    if isinstance(value, int | float):
        return (2, 0.0, "") if math.isnan(value) else (0, float(value), "")
    return (2, 0.0, "") if value is None else (1, 0.0, str(value))


def _natural(path: Path) -> list[tuple[int, str]]:
    """Seed 10 after seed 9."""
    pieces = re.split(r"(\d+)", str(path))
    return [(int(p), "") if p.isdigit() else (-1, p) for p in pieces]


def _checked(run: Run) -> Run:
    """The run; "damaged" if a value on which lists and figures rely is not as a run writes it."""
    values = run.values
    by_position = values.get("loss_by_position", [])
    fine = (
        run.status in STATUSES
        and {type(values.get(key, "")) for key in ("attn", "unit")} == {str}
        and type(values.get("seed")) in (int, str, type(None))
        and isinstance(by_position, list)
        and all(type(x) in (int, float) for x in by_position)
        and all(abs(x) < 2**63 for x in [*values.values(), *by_position] if type(x) is int)
    )
    return run if fine else Run(run.folder, "damaged")


def _is_locked(folder: Path) -> bool:
    lock = folder / ".lock"
    # A lock is opened to be written; a symbolic link could name any file.
    if not lock.is_file() or lock.is_symlink():
        return False
    try:
        with FileLock(lock, timeout=0):
            return False
    except (Timeout, OSError):
        return True
