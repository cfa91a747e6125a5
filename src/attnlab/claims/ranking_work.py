"""What `attnlab rank` runs: cells of the ranking, or some of them with another instruction set."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from attnlab.claims.ranking import (
    LONG,
    CellKey,
    Protocol,
    Table,
    config_of,
    missing_of_cells,
    missing_of_ranking,
    ranking_table,
    task_steps,
    with_steps,
)
from attnlab.claims.ranking_plan import runs_ahead
from attnlab.claims.rows import Rows, kept_rows, other_instruction_set
from attnlab.claims.trials import Row, Run, is_pilot, pilots_and_tests
from attnlab.claims.work import Work
from attnlab.errors import BadInput

if TYPE_CHECKING:
    from attnlab.training.config import RunConfig

SAMPLE = 30  # cells of the published table that are repeated
CLOSE = 9  # of ten seeds: one more or one less makes, or changes, a verdict


def open_ranking(
    protocol: Protocol,
    names: Sequence[str],
    outputs: Path,
    *,
    own: bool = False,
    quick: bool = False,
    again: bool = False,
) -> Work:
    """What `attnlab rank` has to do for some variants: the missing runs of all their cells or,
    with `quick`, of some tasks after n steps alone. With `own`, the one variant is the user's: it
    must pass the checkup (BadInput), and its rows are kept apart. With `again`, the runs of its
    cells, or of a sample of the cells of all, are repeated with another instruction set."""
    outputs = outputs.resolve()
    if own:  # then it is the only name
        config = config_of(protocol, names[0])
        refuse_unhealthy(config, names[0])
        outputs /= name_of_directory(config, names[0])
    kept = kept_rows(protocol.folder, outputs, apart=own)
    work = Work(
        folder=protocol.folder,
        outputs=outputs,
        rows=kept.rows,
        commit=kept.commit,
        missing=partial(missing_of_ranking, protocol, kept.rows, names, quick=quick),
        again=kept.again,
        ahead=partial(runs_ahead, protocol, kept.rows, names, quick=quick),
    )
    if again:
        return repetition(work, kept.again, protocol, names, quick=quick)
    return work


def refuse_unhealthy(config: "RunConfig", name: str) -> None:
    """Examine a variant with attncheck, at its size on the first task; BadInput if it does not
    pass."""
    from attncheck import checkup

    result = checkup(config.model(len(config.data().alphabet)), name=name)
    if not result.healthy:
        raise BadInput(f"{name} does not pass the checkup and is not ranked:\n{result}")


def name_of_directory(config: "RunConfig", name: str) -> str:
    """The name of the directory of a user's variant: its own name, and a digest of its settings,
    which have a digest of its code, so that rows are never mixed after a change."""
    short = re.sub(r"[^a-zA-Z0-9_.=,-]+", "_", name)[:60]  # names of files are limited
    digest = hashlib.sha256(repr(config.settings.attn).encode()).hexdigest()
    return f"{short}~{digest[:8]}"


def repetition(
    work: Work, again: Rows, protocol: Protocol, names: Sequence[str], *, quick: bool
) -> Work:
    """What `attnlab rank --again` has to do, instead of `work`: repeat the test runs of the cells
    with a verdict of one variant or, if all are named, of a sample of those of all. BadInput if
    no cell has a verdict. `again`: the rows of the repetition so far."""
    table = ranking_table(protocol, work.rows, names)
    with_verdict = keys_with_verdict(protocol, table, quick=quick)
    if not with_verdict:
        raise BadInput("nothing is ranked that could be repeated; run the command without --again")
    cells = with_verdict if len(names) == 1 else sample_of_cells(table, with_verdict)
    test_rows: list[Row] = []
    for key in cells:
        test_rows += table[key].rows
    return replace(
        work,
        outputs=work.outputs / "again",
        missing=partial(missing_again_of_cells, protocol, work.rows, again, cells),
        smaller_set=other_instruction_set(test_rows, again),
        ahead=None,
    )


def keys_with_verdict(protocol: Protocol, table: Table, *, quick: bool) -> list[CellKey]:
    """The keys of the cells with a verdict; with `quick`, only of those that `--quick` runs: of
    some tasks, at the shorter of two trainings."""
    found = []
    for key, cell in table.items():
        is_quick = protocol.tasks[key.task].quick and key.times == 1  # after n steps, not 4 n
        if cell.has_verdict and (is_quick or not quick):
            found.append(key)
    return found


def sample_of_cells(table: Table, with_verdict: Sequence[CellKey]) -> list[CellKey]:
    """The cells that are repeated: at most 30 of those in which 9 or 10 of 10 seeds are on one
    side, so that one more or one less makes or changes a verdict. They are drawn by a digest of
    their names, so that a new variant adds cells and does not exchange them all."""
    close = [key for key in with_verdict if table[key].agree >= CLOSE]
    return sorted(close, key=digest_of_cell)[:SAMPLE]


def digest_of_cell(key: CellKey) -> str:
    """A digest of the name of a cell, by which cells are ordered regardless of their results."""
    # A plain tuple, because samples that are published were drawn by its words.
    return hashlib.sha256(repr(tuple(key)).encode()).hexdigest()


def missing_again_of_cells(
    protocol: Protocol, rows: Mapping[Run, Row], again: Mapping[Run, Row], cells: Sequence[CellKey]
) -> list[Run]:
    """The test runs of some cells, and of their partners, that are not among the repeated rows
    `again`, at the learning rates that the pilots in `rows` choose. Where a run of 4 n steps is
    among them, that of n steps is not: the longer one says both."""
    both_sides = []
    for key in cells:
        both_sides += [key, key._replace(variant=protocol.partner(key.variant))]
    missing = missing_of_cells(protocol, pilots_and_tests(rows, again), both_sides)
    runs = []
    for run in missing:
        longer = with_steps(run, LONG * task_steps(run))
        is_said_by_longer = longer != run and longer in missing
        if not is_pilot(run.seed) and not is_said_by_longer:  # a lost pilot is not repeated
            runs.append(run)
    return runs
