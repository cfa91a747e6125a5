"""Finished runs and measurements, one JSON object per line."""

import json
import math
from pathlib import Path
from typing import Any

from attnlab.claims.paths import Paths
from attnlab.claims.results import Row
from attnlab.errors import BadInput
from attnlab.files import read_file, write_atomically


class RowStore:
    """The rows of some claims: read once, appended to as tasks finish.

    Each claim has rows of its own, also of runs that it shares with others: a run that was made
    for another claim may be older than this claim's declaration.

    With `fresh`, the committed rows are left alone, as if there were none.
    """

    def __init__(self, paths: Paths, claims: list[str], *, fresh: bool = False) -> None:
        self.paths, self.fresh = paths, fresh
        self.rows: dict[tuple[str, str], Row] = {}  # claim, id of the row
        self.failed: dict[str, Row] = {}  # of this call; the next call tries them again
        for claim in claims:
            committed = [] if fresh else [paths.rows(claim)]
            for file in (paths.own_rows(claim), *committed):
                self.rows |= {(claim, row["id"]): row for row in _read(file)}

    def get(self, claim: str, id_: str) -> Row | None:
        """A row; None where there is none. A task that failed in this call has a failed row."""
        return self.rows.get((claim, id_)) or self.failed.get(id_)

    def add(self, row: Row, claims: dict[str, bool]) -> None:
        """Keep a row for each claim that has none of this id; a failed one is not written.

        `claims`: names of the claims it belongs to -> whether it is part of the declared test.
        """
        if row["status"] == "failed":
            self.failed[row["id"]] = row
            return
        for claim, declared in claims.items():
            if (claim, row["id"]) in self.rows:
                continue
            self.rows[claim, row["id"]] = row
            own = self.fresh or not declared or self.paths.fixed
            file = self.paths.own_rows(claim) if own else self.paths.rows(claim)
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(plain(row)) + "\n")


def _read(file: Path) -> list[Row]:
    """The rows of a file; a last line that a kill cut off is removed, and its task runs again."""
    lines = read_file(file).decode().splitlines() if file.exists() else []
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            rows.append(row | {"id": row["id"]})
        except (ValueError, KeyError, TypeError) as error:
            if number < len(lines):
                raise BadInput(f"{file}, line {number} is damaged; remove it") from error
            write_atomically(file, "".join(f"{each}\n" for each in lines[:-1]).encode())
    return rows


def plain(content: Any) -> Any:
    """JSON without NaN and infinities: they become null, "inf" and "-inf"."""
    if isinstance(content, dict):
        return {key: plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [plain(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None if math.isnan(content) else str(content)
    return content
