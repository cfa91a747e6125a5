"""Rows of runs and measurements: one JSON object a line, with a digest of its own content."""

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from attnlab.claims.claim import RunMetric
from attnlab.claims.paths import Paths
from attnlab.errors import BadInput
from attnlab.files import read_file, read_json, write_atomically

Row = dict[str, Any]  # a run or measurement; of exploratory ones, "declared" is False
Kind = Literal["rows", "pilots"]


class RowStore:
    """The rows of some claims: read once, appended to as tasks finish.

    Each claim has its own rows, even for runs that it shares with other claims, because such a
    run may be older than this claim's declaration. With `fresh`, or for installed claims, all rows
    are kept in the outputs; otherwise, only exploratory rows are, and they are marked. Pilots have
    a file of their own, pilots.jsonl.
    """

    def __init__(
        self, paths: Paths, claims: list[str], *, fresh: bool = False, kind: Kind = "rows"
    ) -> None:
        self.paths, self.fresh, self.kind = paths, fresh, kind
        self.rows: dict[tuple[str, str], Row] = {}  # claim, id of the row
        self.failed: dict[str, Row] = {}  # of this call; the next call tries them again
        self.cut: dict[Path, bytes] = {}  # files with an unfinished last line, without it
        for claim in claims:
            for row in self._read(paths.own_rows(claim)) if kind == "rows" else ():
                if fresh or paths.fixed or row.get("declared") is False:
                    self.rows[claim, row["id"]] = row
            if not fresh:
                check_published(paths.experiments / claim)
                committed = self._read(paths.experiments / claim / f"{kind}.jsonl")
                self.rows |= {(claim, row["id"]): row for row in committed}

    def get(self, claim: str, id_: str) -> Row | None:
        """A row; None where there is none. A task that failed in this call has a failed row."""
        return self.rows.get((claim, id_)) or self.failed.get(id_)

    def committed(self, claim: str) -> dict[str, Row]:
        """The rows of a claim that are part of its declared test, by id."""
        return {
            id_: row
            for (name, id_), row in self.rows.items()
            if name == claim and row.get("declared") is not False
        }

    def add(self, row: Row, claims: dict[str, bool]) -> None:
        """Keep a row for each claim that does not have it yet; a failed row is not written.

        `claims` maps the names of its claims to whether the row is part of the declared test.
        """
        if row["status"] == "failed":
            self.failed[row["id"]] = row
            return
        for claim, declared in claims.items():
            if (claim, row["id"]) in self.rows:
                continue
            declared |= self.kind == "pilots"
            kept = sealed(row if declared else row | {"declared": False})
            self.rows[claim, row["id"]] = kept
            own = self.fresh or not declared or self.paths.fixed
            committed = self.paths.experiments / claim / f"{self.kind}.jsonl"
            file = self.paths.own_rows(claim) if own else committed
            file.parent.mkdir(parents=True, exist_ok=True)
            if file in self.cut:
                write_atomically(file, self.cut.pop(file))
            with file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(kept) + "\n")

    def _read(self, file: Path) -> Iterator[Row]:
        """The rows of a file; an incomplete last line, left by a killed process, is noted."""
        content = read_file(file) if file.exists() else b""
        if not content.endswith(b"\n") and content:
            self.cut[file] = content[: content.rfind(b"\n") + 1]
        yield from read_rows(file)


def sealed(row: Row) -> Row:
    """A row as JSON, with its digest."""
    content = json.loads(json.dumps(plain(row)))
    content.pop("digest", None)
    return content | {"digest": _digest(content)}


def _digest(content: Row) -> str:
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_rows(file: Path) -> list[Row]:
    """The rows of a file; none if it does not exist.

    An incomplete last line is skipped. Raises BadInput if a line is damaged, differs from its
    digest, or repeats the id of an earlier line.
    """
    rows: list[Row] = []
    first: dict[str, int] = {}  # id -> line
    lines = read_file(file).splitlines(keepends=True) if file.exists() else []
    for number, line in enumerate(lines, 1):
        place = f"{file}, line {number}"
        if not line.endswith(b"\n"):
            break
        try:
            row = json.loads(line)
            id_, digest = row["id"], row["digest"]
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(
                f"{place} is damaged, or has no digest; restore the file from git"
            ) from error
        if digest != _digest({key: x for key, x in row.items() if key != "digest"}):
            raise BadInput(f"{place} differs from its digest; restore the file from git")
        if id_ in first:
            raise BadInput(f"{place} has the id of line {first[id_]}, {id_}; keep one of them")
        first[id_] = number
        rows.append(row)
    return rows


def read_published(directory: Path) -> dict[str, Any]:
    """The content of a claim's verdict.json; empty before it is published."""
    file = directory / "verdict.json"
    return read_json(file) if file.exists() else {}


def check_published(directory: Path) -> None:
    """Refuse, by BadInput, rows that differ from those of the claim's published verdict."""
    verdict = read_published(directory)
    if not (judged := verdict.get("rows")):
        return
    old = directory / f"rows-v{verdict['version']}.jsonl"
    file = old if old.exists() else directory / "rows.jsonl"
    name = f"the published verdict (version {verdict['version']})"
    rows = {row["id"]: (number, row) for number, row in enumerate(read_rows(file), 1)}
    if missing := [id_ for id_ in judged if id_ not in rows]:
        others = f" and {len(missing) - 1} others" if missing[1:] else ""
        what = f"the row {missing[0]}{others} of {name}"
        raise BadInput(f"{file} lacks {what}; restore the file from git")
    for id_, digest in judged.items():
        number, row = rows[id_]
        if row["digest"] != digest:
            place = f"{file}, line {number}"
            raise BadInput(f"{place} differs from the row of {name}; restore the file from git")


def score(row: Row, metric: str | RunMetric) -> float:
    """The number by which a run is judged; a diverged run has a direction but no size.

    The loss of a diverged run is inf, so that its arm is the worse one. If both arms diverged, the
    difference is NaN, which is neither yes nor no. Raises BadInput if the row lacks the number.
    """
    if isinstance(metric, RunMetric):
        return metric.diverged if row["status"] == "diverged" else number_of(row, metric.value)
    value = math.inf if row["status"] == "diverged" else number_of(row, metric)
    return value if math.isfinite(value) else math.inf


def number_of(row: Row, key: str) -> float:
    """A number that was stored by `plain`, which writes NaN as null."""
    if key not in row["values"]:
        known = ", ".join(row["values"])
        raise BadInput(f"{row['label']}: no number {key} was measured; the numbers are {known}")
    value = row["values"][key]
    return math.nan if value is None else float(value)


def plain(content: Any) -> Any:
    """JSON without NaN and infinities: they become null, "inf" and "-inf"."""
    if isinstance(content, dict):
        return {key: plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [plain(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None if math.isnan(content) else str(content)
    return content
