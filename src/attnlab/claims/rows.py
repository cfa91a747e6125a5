"""Finished runs and measurements, one JSON object a line."""

import json
import math
from pathlib import Path
from typing import Any

from attnlab.claims.paths import Paths
from attnlab.claims.results import Row
from attnlab.errors import BadInput


class RowStore:
    """The rows of some claims: read once, appended to as tasks finish.

    Args:
        paths: where rows are kept.
        claims: whose rows are read.
        fresh: leave the committed rows alone, as if there were none.
    """

    def __init__(self, paths: Paths, claims: list[str], *, fresh: bool = False) -> None:
        self.paths, self.fresh = paths, fresh
        self.rows: dict[str, Row] = {}
        self.failed: dict[str, Row] = {}  # of this call; the next call tries them again
        self.kept: set[tuple[Path, str]] = set()
        for claim in claims:
            committed = [] if fresh else [paths.rows(claim)]
            for file in (*committed, paths.own_rows(claim)):
                self._read(file)

    def _read(self, file: Path) -> None:
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                self.rows[row["id"]] = row
                self.kept.add((file, row["id"]))
            except (ValueError, KeyError, TypeError) as error:
                if number == len(lines):  # a write that was killed; the task runs again
                    text = "".join(f"{each}\n" for each in lines[:-1])
                    file.write_text(text, encoding="utf-8")
                    return
                raise BadInput(f"{file}, line {number} is damaged; remove it") from error

    def get(self, id_: str) -> Row | None:
        """A row; None where there is none. A task that failed in this call has a failed row."""
        return self.rows.get(id_) or self.failed.get(id_)

    def add(self, row: Row, claims: dict[str, bool]) -> None:
        """Keep a row.

        Args:
            row: of a finished, diverged or failed task; failed ones are not written.
            claims: names of the claims it belongs to -> whether it is part of the declared test.
        """
        if row["status"] == "failed":
            self.failed[row["id"]] = row
            return
        self.rows[row["id"]] = row
        for claim, declared in claims.items():
            own = self.fresh or not declared
            file = self.paths.own_rows(claim) if own else self.paths.rows(claim)
            if (file, row["id"]) in self.kept:
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(plain(row)) + "\n")
            self.kept.add((file, row["id"]))


def plain(content: Any) -> Any:
    """JSON without NaN and infinities: they become null, "inf" and "-inf"."""
    if isinstance(content, dict):
        return {key: plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [plain(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None if math.isnan(content) else str(content)
    return content
