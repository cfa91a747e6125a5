"""Where `attnlab reproduce` reads and writes."""

import json
from dataclasses import dataclass
from pathlib import Path

from attnlab.claims.evidence import Row
from attnlab.errors import BadInput
from attnlab.files import read_json


@dataclass(frozen=True)
class Places:
    """Folders of one budget.

    Args:
        experiments: holds the claims.
        conf: Hydra's configuration.
        outputs: everything that is written goes below `outputs/<budget>`.
        budget: quick or full.
    """

    experiments: Path
    conf: Path
    outputs: Path
    budget: str

    @property
    def root(self) -> Path:
        return self.outputs / self.budget

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def verdicts(self) -> Path:
        return self.root / "verdicts.json"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    def figure(self, claim: str) -> Path:
        return self.root / "figures" / f"{claim}.svg"

    def row(self, task: str) -> Path:
        return self.root / "rows" / f"{task}.json"

    def declared(self, claim: str) -> Path:
        """What a claim said before its first run."""
        return self.root / "declared" / f"{claim}.json"

    def claim_file(self, claim: str) -> Path:
        return self.experiments / claim / "claim.py"

    def read_row(self, task: str) -> Row | None:
        """A stored row; None where there is none yet, or what is there is no row."""
        try:
            return read_json(self.row(task))
        except (FileNotFoundError, json.JSONDecodeError):
            return None

    def check(self) -> None:
        """Refuse folders that are not there.

        Raises:
            BadInput: with the first that is not.
        """
        if not self.experiments.is_dir():
            raise BadInput(f"there is no folder {self.experiments}; name one by --experiments")
        if not (self.conf / "train.yaml").is_file():
            raise BadInput(f"{self.conf} holds no train.yaml; name Hydra's folder by --conf")
