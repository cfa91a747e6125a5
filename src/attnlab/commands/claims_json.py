"""What `attnlab reproduce --json` and `attnlab rank --json` print; docs/json.md describes it."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence

from attnlab.claims.claim_page import verdict_in_words
from attnlab.claims.finding import Finding
from attnlab.claims.judged_claim import JudgedClaim
from attnlab.claims.ranking import Cell, Protocol, ranking_table, why_exploratory_cells
from attnlab.claims.ranking_page import family_of_cells, with_verdict
from attnlab.claims.reach import limits_of, reach_line
from attnlab.claims.work import Work


def claim_content(judged: JudgedClaim, missing: int) -> dict[str, object]:
    """The verdict on a claim, and its predictions with their numbers."""
    return {
        "claim": judged.claim.folder.name,
        "says": judged.claim.says,
        "verdict": judged.verdict,
        "in_words": verdict_in_words(judged),
        "reach": reach_line(judged),
        "lacks": lacks_content(judged),
        "withdrawn": judged.claim.withdrawn,
        "contradicted_by": judged.contradicted_by(),
        "exploratory": judged.why_exploratory(),
        "missing": missing,
        "predictions": [finding_content(judged, finding) for finding in judged.findings],
        "again": {name: finding_content(judged, each) for name, each in judged.again.items()},
    }


def lacks_content(judged: JudgedClaim) -> dict[str, object]:
    """What the verdict lacks: numbers of steps that were tested at one length, and words on rates
    and processors; empty where it lacks nothing."""
    limits = limits_of(judged)
    return {"lengths": limits.lengths, "rates": limits.rates, "processors": limits.processors}


def finding_content(judged: JudgedClaim, finding: Finding) -> dict[str, object]:
    """A prediction at one length of training, with the numbers by which it is judged."""
    tally = finding.tally
    at_risk = finding.prediction.at_risk and judged.was_at_risk(finding)
    return {
        "name": finding.name,
        "says": finding.prediction.says,
        "role": finding.prediction.role,
        "at_risk": at_risk,
        "steps": finding.steps,
        "verdict": finding.verdict,
        "doubt": judged.why_open(finding),
        "at_edge": finding.arms_at_edge,
        "agree": tally.agree,
        "of": tally.n,
        "median": tally.median,
        "low": tally.low,
        "high": tally.high,
        "unit": finding.prediction.unit,
        "above": finding.prediction.above,
        "below": finding.prediction.below,
        "by_seed": dict(zip(finding.seeds, finding.values, strict=False)),
    }


def ranking_content(
    protocol: Protocol, names: Sequence[str], lengths: Sequence[int], work: Work
) -> dict[str, object]:
    """The cells of some variants at some lengths, as multiples of n steps."""
    table = ranking_table(protocol, work.rows, names, work.again)
    shown = {key: cell for key, cell in table.items() if key.times in lengths}
    family = family_of_cells(with_verdict(shown))
    ahead = work.ahead() if work.ahead else None
    cells = []
    for key, cell in shown.items():
        steps = key.times * protocol.tasks[key.task].steps
        about = {"variant": key.variant, "task": key.task, "steps": steps}
        cells.append(about | cell_content(cell) | {"holm": family.mark(key)})
    return {
        "cells": cells,
        "chance_of_any_wrong_verdict": family.any_wrong,
        "exploratory": why_exploratory_cells(protocol, table),
        "missing": len(work.missing()),
        "ahead": {"runs": ahead.runs, "cpu_minutes": ahead.minutes} if ahead else None,
    }


def cell_content(cell: Cell) -> dict[str, object]:
    """A cell of the ranking."""
    median, low, high = cell.difference
    return {
        "verdict": cell.verdict,
        "unit": cell.unit,
        "median": cell.value,
        "difference": {"median": median, "low": low, "high": high},
        "at_edge": cell.at_edge,
        "diverged": cell.diverged,
        "failed": cell.failed,
        "n": len(cell.rows),
        "agree": cell.agree,
        "again": cell.again.verdict if cell.again else None,
    }


@contextlib.contextmanager
def stdout_on_stderr() -> Iterator[None]:
    """Send what this process and those that it starts print to the standard error, so that the
    standard output has the answer alone."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
