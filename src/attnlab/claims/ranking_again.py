"""Repeats test runs of the ranking with another instruction set, whose rounding differs."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from attnlab.claims.ranking import (
    LONG,
    CellKey,
    Protocol,
    Table,
    at_n_and_4n,
    own_directory,
    ranking_table,
    task_steps,
    trial,
    with_steps,
)
from attnlab.claims.rows import COMMITTED, COMMITTED_AGAIN, Rows, another_set, open_rows
from attnlab.claims.trials import Row, Run, is_pilot, read_test, with_tests
from attnlab.claims.work import Work
from attnlab.errors import BadInput

SAMPLE = 30  # cells of the published table that are repeated
CLOSE = 9  # of ten seeds: one more or one less makes, or changes, a verdict


def open_ranking_again(
    protocol: Protocol, names: Sequence[str], outputs: Path, *, own: bool, quick: bool
) -> tuple[Work, Rows]:
    """What `attnlab rank --again` does: repeat the cells of one variant, or a sample of those of
    all variants. Also the rows that it repeats."""
    outputs = own_directory(protocol, names, outputs, own=own)
    rows, _ = open_rows(protocol.folder / COMMITTED, outputs / COMMITTED, apart=own)
    committed = protocol.folder / COMMITTED_AGAIN
    again, commit = open_rows(committed, outputs / COMMITTED_AGAIN, apart=own)
    table = ranking_table(protocol, rows, names)
    with_verdict = cells_with_verdict(protocol, table, quick=quick)
    if not with_verdict:
        raise BadInput("nothing is ranked that could be repeated; run the command without --again")
    cells = with_verdict if len(names) == 1 else sample_of_cells(table, with_verdict)
    test_rows: list[Row] = []
    for key in cells:
        test_rows += table[key].rows
    work = Work(
        folder=protocol.folder,
        outputs=outputs / "again",
        rows=again,
        commit=commit,
        missing=partial(missing_of_cells, protocol, rows, again, cells),
        smaller_set=another_set(test_rows, again),
    )
    return work, rows


def cells_with_verdict(protocol: Protocol, table: Table, *, quick: bool) -> list[CellKey]:
    """The cells with a verdict; `quick`: of the tasks of --quick, after n steps."""
    found = []
    for key, cell in table.items():
        is_quick = protocol.tasks[key.task].quick and key.times == 1
        if cell.has_verdict and (is_quick or not quick):
            found.append(key)
    return found


def sample_of_cells(table: Table, with_verdict: Sequence[CellKey]) -> list[CellKey]:
    """Some of the cells in which 9 or 10 of 10 seeds are on one side. The order is that of a
    digest of their names, so that a new variant adds cells and does not exchange them all."""
    close = [key for key in with_verdict if table[key].agree >= CLOSE]
    return sorted(close, key=digest_of_cell)[:SAMPLE]


def digest_of_cell(key: CellKey) -> str:
    """A fixed number for a cell that has nothing to do with its results."""
    # A plain tuple, because samples that are published were drawn by its words.
    return hashlib.sha256(repr(tuple(key)).encode()).hexdigest()


def missing_of_cells(
    protocol: Protocol, rows: Mapping[Run, Row], again: Mapping[Run, Row], cells: Sequence[CellKey]
) -> list[Run]:
    """The test runs of some cells, and of what they are compared with, that were not repeated."""
    both = at_n_and_4n(with_tests(rows, again))
    missing: dict[Run, None] = {}  # in order, each once
    for key in cells:
        task = protocol.tasks[key.task]
        for variant in (key.variant, protocol.partner(key.variant)):
            own = trial(protocol, variant, task, key.times)
            missing |= dict.fromkeys(read_test(own, both, own.seeds).missing)
    runs = []
    for run in missing:
        longer = with_steps(run, LONG * task_steps(run))
        said_by_longer = longer != run and longer in missing
        if not is_pilot(run.seed) and not said_by_longer:  # a lost pilot is not repeated
            runs.append(run)
    return runs
