"""Reads run directories: the settings, status, metrics and curves of runs."""

import math
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from attnlab.errors import BadInput, first_line
from attnlab.files import read_yaml
from attnlab.runs.event_files import read_scalars
from attnlab.runs.run_directory import RunDirectory, variant_of
from attnlab.runs.settings import flat, identity, last_of

STATUSES = {"finished", "stopped", "diverged", "failed", "running", "interrupted"}
ENDED = {"finished", "stopped", "diverged"}  # with a result


@dataclass(frozen=True)
class Run:
    """One run directory."""

    folder: Path
    status: str  # one of STATUSES, or damaged
    step: int = 0  # the last one, or the one at which the run diverged
    metrics: dict[str, Any] = field(default_factory=dict)  # metrics.json under flat keys
    config: dict[str, Any] = field(default_factory=dict)  # under dotted keys
    overrides: tuple[str, ...] = ()  # as typed, such as "optim.lr=0.01"
    reason: str = ""  # why the run stopped, diverged or failed, or what is damaged

    @cached_property
    def values(self) -> dict[str, Any]:
        """All settings and metrics by key, to show, sort and filter by."""
        named: dict[str, Any] = {"attn": self.variant, "status": self.status}
        named |= {"step": self.step, "group": self.folder.parent.name}
        return self.config | self.metrics | named

    @cached_property
    def typed(self) -> dict[str, str]:
        """The overrides by key."""
        return last_of(self.overrides)

    @property
    def variant(self) -> str:
        """The name of the file in conf/attn."""
        # A run without a result has stored its variant only if it was typed.
        named = self.typed.get("attn", self.folder.parent.name.split(",")[0])
        return str(self.metrics.get("variant", variant_of(named)))

    @cached_property
    def attention(self) -> dict[str, Any]:
        """The settings of attn under dotted keys. Null is left out, here and in `rest`, because
        runs of earlier versions lack settings that are null by default."""
        return {k: x for k, x in self.config.items() if k.startswith("attn.") and x is not None}

    @cached_property
    def rest(self) -> dict[str, Any]:
        """All other settings that can change the result, except the seed."""
        kept = identity(self.config).items()
        return {k: x for k, x in kept if not (k in self.attention or k == "seed" or x is None)}

    @property
    def is_plain(self) -> bool:
        """Whether no setting of the variant was changed."""
        return not any(key.startswith("attn.") for key in self.typed)

    @property
    def seed(self) -> Any:
        return self.config.get("seed", self.metrics.get("seed"))

    @property
    def has_result(self) -> bool:
        """Whether the run finished, was stopped by a callback, or diverged."""
        return self.status in ENDED

    @property
    def loss(self) -> float:
        """Final validation loss in nats; infinite if the run diverged, NaN without a result."""
        return (
            math.inf if self.status == "diverged" else float(self.metrics.get("val_loss", "nan"))
        )

    @property
    def place(self) -> Path:
        """The directory of its sweep."""
        above = self.folder.parent
        return above.parent if self.folder.name.startswith("seed=") else above


def read_runs(root: Path) -> list[Run]:
    """All runs in or below a directory, sorted by name; BadInput if there are none."""
    if not root.is_dir():
        raise BadInput(f"there is no directory {root}")
    files = sorted(root.rglob("status.json"), key=_natural)
    if not files:
        raise BadInput(f"{root} holds no runs: there is no status.json in or below it")
    return [read_run(file.parent) for file in files]


def read_neighbors(folder: Path) -> list[Run]:
    """The runs of the sweep of a run, in `<sweep>/<settings>/seed=<n>`, itself among them."""
    if not folder.name.startswith("seed="):
        return [read_run(folder)]
    files = sorted(folder.parent.parent.glob("*/seed=*/status.json"), key=_natural)
    return [read_run(file.parent) for file in files]


def read_run(folder: Path) -> Run:
    """One run; "damaged", with a reason, if its files cannot be read or are not as a run writes
    them. Never raises."""
    directory, saved = RunDirectory(folder), folder / ".hydra"
    try:
        status = directory.status()
        word, reason = status["status"], str(status.get("reason") or "")
        metrics = flat(directory.metrics()) if word in ENDED else {}
        # Saved settings are resolved, so OmegaConf, which is ten times as slow, is not needed.
        config: Any = {}
        overrides: Any = []
        if word != "running" or (saved / "overrides.yaml").exists():  # otherwise it begins
            config, overrides = (read_yaml(saved / f"{x}.yaml") for x in ("config", "overrides"))
        plain = {key.removeprefix("probes."): x for key, x in metrics.items()}
        if word == "running" and not _is_locked(folder):
            word = "interrupted"
        typed = tuple(map(str, overrides))
        run = Run(folder, word, status["step"], plain, flat(config), typed, reason)
        return run if _is_sound(run) else Run(folder, "damaged", reason="a value is out of range")
    except Exception as error:  # parsers raise anything on a damaged file
        return Run(folder, "damaged", reason=first_line(error))


def read_curves(folder: Path, pattern: str) -> dict[str, list[tuple[int, float]]]:
    """The scalars of a run whose tags match: tag -> (step, value), the latest for each step."""
    scalars = read_scalars(folder)
    return {tag: sorted(scalars[tag].items()) for tag in scalars if re.fullmatch(pattern, tag)}


def _natural(path: Path) -> list[tuple[float, str]]:
    """A sort key by which seed 10 follows seed 9, and a rate of 0.01 one of 0.003."""
    pieces = re.split(r"(\d+(?:\.\d+)?(?:e-?\d+)?)", str(path))
    return [(float(p), "") if p[:1].isdecimal() else (-1, p) for p in pieces]


def _is_sound(run: Run) -> bool:
    """Whether the values that tables and figures use have the types that a run writes."""
    values = run.values
    curves = [x for key, x in values.items() if key.endswith("by_position")]
    by_position = [x for curve in curves if isinstance(curve, list) for x in curve]
    return (
        run.status in STATUSES
        and run.step >= 0
        and {type(values.get(key, "")) for key in ("attn", "unit", "baseline")} == {str}
        and type(values.get("seed")) in (int, str, type(None))
        and all(isinstance(curve, list) for curve in curves)
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
