"""Where `attnlab reproduce` reads and writes."""

from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from attnlab.errors import BadInput
from attnlab.files import is_installed, lab_path


@dataclass(frozen=True)
class Paths:
    """Directories of one call."""

    experiments: Path  # holds the claims, with their declarations and rows
    conf: Path  # Hydra's configuration
    outputs: Path  # runs, figures, and the report go below it
    budget: str  # quick or full

    @property
    def fixed(self) -> bool:
        """Whether the claims are those of an installed package, to which nothing is written."""
        return is_installed() and self.experiments == lab_path("experiments").resolve()

    @property
    def runs(self) -> Path:
        return self.outputs / "runs"

    @property
    def verdicts(self) -> Path:
        return self.outputs / self.budget / "verdicts.json"

    @property
    def report(self) -> Path:
        return self.outputs / self.budget / "report.html"

    def figure(self, claim: str) -> Path:
        return self.outputs / self.budget / "figures" / f"{claim}.svg"

    def claim_file(self, claim: str) -> Path:
        return self.experiments / claim / "claim.py"

    def declared(self, claim: str) -> Path:
        """What a claim said before its first run; committed."""
        return self.experiments / claim / "declared.json"

    def rows(self, claim: str) -> Path:
        """Finished runs and measurements of the declared test; committed."""
        return self.experiments / claim / "rows.jsonl"

    def own_rows(self, claim: str) -> Path:
        """Finished runs and measurements that are exploratory, or were asked for afresh."""
        return self.outputs / "rows" / f"{claim}.jsonl"

    def published(self, claim: str) -> Path:
        """The last published verdict; committed."""
        return self.experiments / claim / "verdict.json"

    def lock(self) -> FileLock:
        """Hold the outputs for this process; the lock of a dead one is free at once.

        Raises:
            BadInput: another call holds them, or they cannot be written.
        """
        lock = FileLock(self.outputs / ".lock", timeout=0)
        try:
            self.outputs.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout as error:
            raise BadInput(f"another `attnlab reproduce` is running in {self.outputs}") from error
        except OSError as error:
            raise BadInput(f"{self.outputs} cannot be written: {error.strerror}") from error
        return lock
