"""The run directory: its name, its files, and when a run may write to it."""

import hashlib
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from filelock import FileLock, SoftFileLock, Timeout
from omegaconf import DictConfig, OmegaConf

from attnlab.errors import BadInput, first_line
from attnlab.files import TEMPORARY, read_json, read_yaml, write_atomically, write_json
from attnlab.runs.settings import (
    Settings,
    differences,
    fingerprint,
    flat,
    is_below,
    last_of,
    settings_with,
)

Status = Literal["running", "finished", "stopped", "diverged", "failed", "interrupted"]

LONGEST_NAME = 80  # bytes of `attn=...`
# What a run writes, by directory. Nothing else is ever deleted.
WRITTEN = {
    ".": re.compile(
        r"(status|loggers)\.json|metrics\.(json|csv|csv\.kept)|history\.json|hparams\.yaml"
        r"|checkup\.(json|html)|events\.out\.tfevents\.[0-9]+\..+\.[0-9]+"
    ),
    ".hydra": re.compile(r"(config|overrides)\.yaml"),
    "checkpoints": re.compile(r"(last|best|step_[0-9]{6,})\.ckpt"),
}
# The required entries of status.json and metrics.json, and further ones by status.
STATUS = {"status": str, "step": int, "fingerprint": str}
METRICS = {
    **{"status": str, "variant": str, "unit": str, "steps": int, "corpus": dict, "probes": dict},
    **{"val_loss": int | float, "tokens_per_second": int | float, "device": str, "precision": str},
    **{"corpus.name": str, "corpus.sha256": str},
}
ENDS: dict[str, Settings] = {
    "stopped": {"reason": str, "max_steps": int},
    "diverged": {"reason": str, "last_finite_loss": int | float},
}
RERUN = "use force=true to rerun"
# Seconds to wait for a lock: listing runs holds it for a moment, to see whether a run is active.
PATIENCE = 0.5


def variant_of(choice: str) -> str:
    """The name of a file of conf/attn in a run directory's name: cross-dot for cross/dot."""
    return choice.removeprefix("attn=").replace("/", "-")


def folder_for(cfg: DictConfig, variant: str, overrides: Iterable[str]) -> Path:
    """The run directory `<outputs>/<name>/attn=<variant>[,<other changes>]/seed=<n>`; BadInput if
    the name is not a plain directory name."""
    name = str(cfg.name)
    if not name or name in {".", ".."} or any(c in name for c in "/\\\0") or len(name) > 100:
        raise BadInput(f"name = {name!r} must be a plain directory name, without / or \\")
    changed = sorted(
        _plain(override)
        for key, override in last_of(overrides).items()
        if key not in settings_with("named") and not is_below(key, "shown")
    )
    run = ",".join([f"attn={variant}", *changed])
    if len(run.encode()) > LONGEST_NAME:
        digest = hashlib.sha256(run.encode()).hexdigest()[:8]
        run = run.encode()[: LONGEST_NAME - 9].decode(errors="ignore") + "~" + digest
    return Path(str(cfg.outputs)).expanduser() / name / run / f"seed={cfg.seed}"


def _plain(override: str) -> str:
    """An override as part of a directory's name; paths are cut to their last part and a digest."""
    key, _, value = override.lstrip("+").partition("=")
    value = value.strip("\"'")
    if not value.isprintable() or "/" in value or "\\" in value:
        digest = hashlib.sha256(value.encode()).hexdigest()[:6]
        value = "".join(c for c in Path(value).name if c.isprintable()) + f"~{digest}"
    return f"{key}={value}"


def _final_name(name: str) -> str:
    """The final name of a temporary file, "" for other files."""
    found = TEMPORARY.fullmatch(name)
    return found["name"] if found else ""


def _read_checked(file: Path, entries: Settings, ends: Mapping[str, Settings]) -> Settings:
    """Read a JSON file of a run and check the types of its required entries."""
    try:
        content = read_json(file)
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}; {RERUN}") from error
    except ValueError as error:
        raise BadInput(f"{file} is damaged ({first_line(error)}); {RERUN}") from error
    found = flat(content) | content
    for key, kind in (entries | ends.get(str(content.get("status")), {})).items():
        if not isinstance(found.get(key), kind) or isinstance(found[key], bool):
            raise BadInput(f"{file} is damaged ({key} is not as a run writes it); {RERUN}")
    return content


class Busy(BadInput):
    """Another process is training in the run directory."""


class RunDirectory:
    """A run directory, which may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last_checkpoint = path / "checkpoints" / "last.ckpt"
        self.metrics_file = path / "metrics.json"
        self.status_file = path / "status.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory for this process; the lock of a dead process is free at once. Busy if
        another process holds it, BadInput if it cannot be written."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / ".lock", timeout=PATIENCE)
            lock.acquire()
        except Timeout as error:
            # Without locks of the file system, the file may be of a process that was killed.
            left = f"; if none is, delete {lock.lock_file}" * isinstance(lock, SoftFileLock)
            raise Busy(f"another process is training in {self.path}{left}") from error
        except OSError as error:
            raise BadInput(f"{self.path} cannot be written: {error.strerror}") from error
        try:
            for file in self._written(temporary=True):  # by a write that was killed
                file.unlink()
            yield
        finally:
            lock.release()

    def check_holds_no_other_files(self) -> None:
        """Refuse, by BadInput, a directory that is not empty and holds no run; even with force."""
        # A run writes status.json first. Looking for it last avoids a race with a run that starts.
        others = self.path.exists() and any(
            f.name != ".lock" and _final_name(f.name) != self.status_file.name
            for f in self.path.iterdir()
        )
        if others and not os.path.lexists(self.status_file):
            raise BadInput(f"{self.path} is not empty and holds no run; use another name=")

    def status(self) -> Settings:
        """The content of status.json, empty for no run; BadInput if the directory is not ours."""
        self.check_holds_no_other_files()
        there = os.path.lexists(self.status_file)  # also a link to nothing
        return _read_checked(self.status_file, STATUS, ENDS) if there else {}

    def is_done(self) -> bool:
        """Whether a run ended here with a result: finished, stopped by a callback, or diverged."""
        return self.status().get("status") in {"finished", "stopped", "diverged"}

    def metrics(self) -> Settings:
        """What metrics.json says; BadInput if it is missing or damaged."""
        found = _read_checked(self.metrics_file, METRICS, {})
        if found["status"] != (ended := self.status().get("status")):
            raise BadInput(f"{self.metrics_file} is damaged (its status is not {ended}); {RERUN}")
        return found

    def check_is_ours(self, settings: Settings, *inputs: str) -> None:
        """Refuse, by BadInput, a run of other settings or inputs; see `fingerprint`."""
        held = self.status().get("fingerprint")
        if held in (None, fingerprint(settings, *inputs)):
            return
        file = self.path / ".hydra" / "config.yaml"
        try:
            saved = read_yaml(file)
            differing = differences(saved, settings)
            if not differing and fingerprint(saved, *inputs) == held:
                return  # they differ only in settings that do not change the result
        except (OSError, ValueError, AttributeError, TypeError) as error:
            differing = [f"{file} cannot be read: {first_line(error)}"]
        other = f"configuration ({', '.join(differing[:4])})" if differing else "corpus"
        if not differing and len(inputs) > 1:
            other += " or continues other weights"
        raise BadInput(
            f"{self.path} holds a run of another {other}; use another name=, or "
            "force=true to rerun"
        )

    def _written(self, *, temporary: bool) -> list[Path]:
        """The regular files that a run writes, or the temporary files of those writes."""
        return [
            file
            for folder, names in WRITTEN.items()
            if (self.path / folder).is_dir()
            for file in (self.path / folder).iterdir()
            if names.fullmatch(_final_name(file.name) if temporary else file.name)
            and stat.S_ISREG(file.lstat().st_mode)
        ]

    def begin(
        self, settings: Settings, overrides: Iterable[str], digest: str, *, resumes: bool = False
    ) -> None:
        """Claim the directory by the status "running", and write `.hydra/`; unless the run
        resumes, remove what an earlier run, or one without a checkpoint, has written."""
        self.set_status("running", digest)
        if not resumes:
            for file in self._written(temporary=False):
                if file != self.status_file:
                    file.unlink()
        for name, content in (("config", settings), ("overrides", list(overrides))):
            text = OmegaConf.to_yaml(OmegaConf.create(content))
            write_atomically(self.path / ".hydra" / f"{name}.yaml", text.encode())

    def set_status(self, status: Status, digest: str, entries: Settings | None = None) -> None:
        """Replace status.json; `entries` may be the last step, why the run ended, and others."""
        content = {"status": status, "step": 0, "reason": None} | (entries or {})
        write_json(self.status_file, content | {"time": now(), "fingerprint": digest})


def now() -> str:
    """Local time to the second, as ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
