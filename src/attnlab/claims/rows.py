"""Rows: one JSON object a line for each run, appended as runs end, and committed to git."""

import json
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from attnlab.claims.declared import commit_of, lost_rows
from attnlab.claims.trials import Row, Run
from attnlab.errors import BadInput
from attnlab.installation import is_installed
from attnlab.processor import processor_model

COMMITTED = "rows.jsonl"
COMMITTED_AGAIN = "rows-again.jsonl"  # of another instruction set
decode = json.JSONDecoder(parse_constant=lambda _: None).decode  # NaN and infinity become null


class Rows(dict[Run, Row]):
    """The rows of some files, by their overrides and seed; new ones are appended to the last file.

    A half line, which a killed process leaves behind, is cut off before the next row is written.
    BadInput if a line is damaged or a run has two rows in a file.
    """

    def __init__(self, *files: Path) -> None:
        super().__init__()
        self.file = files[-1]
        for file in reversed(files):  # if two files have a row of a run, that of the first counts
            self.update(read_rows(file))

    def add(self, row: Row) -> Run:
        """Append a row to the last file, and keep it as it will be read from there, with null for
        NaN. The run to which it belongs."""
        text = self.file.read_bytes() if self.file.exists() else b""
        if text and not text.endswith(b"\n"):  # a half line: its process was killed
            self.file.write_bytes(text[: text.rfind(b"\n") + 1])
        self.file.parent.mkdir(parents=True, exist_ok=True)
        row = decode(json.dumps(row))
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")
        run = Run(tuple(row["overrides"]), row["seed"])
        self[run] = row
        return run


def read_rows(file: Path) -> dict[Run, Row]:
    """The rows of a file by their run, without a half line at its end; none if there is no file.
    BadInput if a line is no row, or a run has two."""
    found: dict[Run, Row] = {}
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            break
        try:
            row = decode(line.decode())
            run = Run(tuple(row["overrides"]), row["seed"])
        except (ValueError, KeyError, TypeError) as error:
            why = f"{file}, line {number} is not a row; restore it with git"
            raise BadInput(why) from error
        if run in found:
            raise BadInput(f"{file}, line {number}: a second row of {run}")
        found[run] = row
    return found


def open_rows(committed: Path, own: Path, *, apart: bool = False) -> tuple[Rows, str]:
    """The rows of a file, and the commit that new ones will name.

    New rows are appended to the committed file; or to `own`, of which there may be rows already,
    if they are to be kept apart, or cannot be published as they are not made by a clean commit of
    a clone.
    """
    commit = commit_of(committed.parent)
    has_clean_commit = commit != "" and not commit.endswith("+")
    if apart or not has_clean_commit or is_installed():
        return Rows(committed, own), commit
    return Rows(committed), commit


class KeptRows(NamedTuple):
    """The rows of a claim or the ranking."""

    rows: Rows
    again: Rows  # of another instruction set
    commit: str  # of new ones


def kept_rows(folder: Path, outputs: Path, *, apart: bool = False) -> KeptRows:
    """The rows of a claim or the ranking in `folder`, and those of its repetition. New ones that
    are not for the committed files, as `open_rows` says, are in files of `outputs`."""
    rows, commit = open_rows(folder / COMMITTED, outputs / COMMITTED, apart=apart)
    again, _ = open_rows(folder / COMMITTED_AGAIN, outputs / COMMITTED_AGAIN, apart=apart)
    return KeptRows(rows, again, commit)


def refuse_lost_rows(folder: Path) -> None:
    """BadInput if a row of a claim or the ranking that was once committed is there no longer."""
    for rows in (folder / COMMITTED, folder / COMMITTED_AGAIN):
        if lost := lost_rows(rows):
            raise BadInput(
                f"{rows} lacks {len(lost)} rows of its history, such as {lost[0][:90]}...; rows "
                "are only added: restore them with git"
            )


def other_instruction_set(rows: Iterable[Row], again: Mapping[Run, Row]) -> str:
    """The instruction set with which rows are repeated: that of the repetition if some rows were
    repeated already, or else one that none of the rows has."""
    begun = {row["instruction_set"] for row in again.values()}
    if begun:
        return min(begun)
    used = {row.get("instruction_set") for row in rows}
    # Rows that do not name theirs (None) may have any but SSE4.2.
    return "AVX2" if used == {"AVX512"} else "SSE4.2"


def machine() -> str:
    """The processor and the version of torch, stored in each row beside its instruction set:
    rounding depends on all three."""
    return f"{processor_model()}, torch {version('torch')}"
