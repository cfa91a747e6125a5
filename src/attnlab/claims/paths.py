"""Where `attnlab reproduce` reads and writes."""

from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from attnlab.errors import BadInput
from attnlab.files import is_installed, lab_path


@dataclass(frozen=True)
class Paths:
    """Directories of one call.

    `experiments/<claim>/` holds claim.py and, committed: declared.json, what was fixed before the
    first run; rows.jsonl, the runs and measurements of the declared test; and verdict.json, the
    last published verdict.
    """

    experiments: Path
    conf: Path  # Hydra's configuration
    outputs: Path  # runs, rows, figures, and the report go below it
    budget: str  # quick or full

    @property
    def fixed(self) -> bool:
        """Whether the claims are those of an installed package, to which nothing is written."""
        return is_installed() and self.experiments == lab_path("experiments").resolve()

    @property
    def results(self) -> Path:
        """Where verdicts.json, report.html and the figures go."""
        return self.outputs / self.budget

    def own_rows(self, claim: str) -> Path:
        """Finished runs and measurements that are exploratory, or were asked for afresh."""
        return self.outputs / "rows" / f"{claim}.jsonl"

    def lock(self) -> FileLock:
        """Hold the outputs for this process; the lock of a dead one is free at once. BadInput if
        another call holds them, or they cannot be written."""
        lock = FileLock(self.outputs / ".lock", timeout=0)
        try:
            self.outputs.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout as error:
            raise BadInput(f"another `attnlab reproduce` is running in {self.outputs}") from error
        except OSError as error:
            raise BadInput(f"{self.outputs} cannot be written: {error.strerror}") from error
        return lock
