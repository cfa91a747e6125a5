"""The directories of `attnlab reproduce`."""

from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from attnlab.errors import BadInput
from attnlab.installation import is_installed, lab_path


@dataclass(frozen=True)
class Paths:
    """Directories of one call.

    `experiments/<claim>/` holds claim.py and, committed: declared.json, what was fixed before the
    first run; rows.jsonl, the runs and measurements of the declared test; and verdict.json, the
    last published verdict.
    """

    experiments: Path
    conf: Path  # Hydra's configuration
    outputs: Path  # contains runs, rows, figures and the report
    budget: str  # quick or full
    config_dir: Path | None = None  # further configuration, as that of --config-dir

    @property
    def fixed(self) -> bool:
        """Whether the claims belong to an installed package, which is never written to."""
        return is_installed() and self.experiments == lab_path("experiments").resolve()

    @property
    def results(self) -> Path:
        """Where verdicts.json, report.html and the figures go."""
        return self.outputs / self.budget

    def own_rows(self, claim: str) -> Path:
        """Rows that are not committed: of exploratory runs, of --fresh, of installed claims."""
        return self.outputs / "rows" / f"{claim}.jsonl"

    def lock(self) -> FileLock:
        """Lock the outputs for this process; a process that dies releases its lock. BadInput if
        another call holds the lock, or the directory cannot be written."""
        lock = FileLock(self.outputs / ".lock", timeout=0)
        try:
            self.outputs.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout as error:
            raise BadInput(f"another call is running in {self.outputs}") from error
        except OSError as error:
            raise BadInput(f"{self.outputs} cannot be written: {error.strerror}") from error
        return lock
