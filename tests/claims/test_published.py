"""Published rows are those that were declared, and no row of the history is lost."""

from pathlib import Path

import pytest

from attnlab.claims.claim import Claim
from attnlab.claims.declared import git, lost_rows
from attnlab.claims.judged_claim import judge_claim, judge_files, missing_runs
from attnlab.claims.ranking import Protocol, ranking_table, why_exploratory_cells
from attnlab.claims.rows import COMMITTED, COMMITTED_AGAIN, Rows
from attnlab.claims.trials import Run

ROOT = Path(__file__).parents[2]
CLAIMS = [Claim.read(file) for file in sorted((ROOT / "experiments").glob("*/claim.yaml"))]
RANKING = Protocol.read(ROOT / "experiments" / "ranking" / "ranking.yaml")
FIRST = "b308e5e"  # a commit before all that rows name
by_claim = pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.folder.name)
pytestmark = pytest.mark.skipif(
    git(ROOT, "cat-file", "-e", FIRST) is None, reason=f"needs the history of git up to {FIRST}"
)


def rows_of(declared: Claim | Protocol) -> Rows:
    return Rows(declared.folder / COMMITTED)


@by_claim
def test_rows_are_complete_and_of_the_declared_claim(claim: Claim) -> None:
    assert judge_files(claim).why_exploratory() == ""
    assert missing_runs(claim, rows_of(claim)) == []


@by_claim
def test_a_prediction_that_is_repeated_is_repeated_with_all_seeds_that_are_due(
    claim: Claim,
) -> None:
    again = Rows(claim.folder / COMMITTED_AGAIN)
    result = judge_files(claim)
    for finding in result.findings:
        # Rows of an earlier version repeat other runs, and another prediction may share an arm.
        is_begun = all(
            any(Run(tuple(row["overrides"]), row["seed"]) in again for row in of_arm)
            for of_arm in finding.rows.values()
        )
        if finding.prediction.is_needed and is_begun:
            assert finding.name in result.again


@by_claim
def test_the_sizes_of_a_ladder_are_those_of_its_rows(claim: Claim) -> None:
    for finding in judge_claim(claim, rows_of(claim)).findings:
        for at, size in finding.prediction.sizes.items():
            rows = finding.rows[f"{finding.prediction.arms[0]}, {at}"]
            assert {row["values"]["parameters"] for row in rows} <= {size.parameters}


def test_rows_of_the_ranking_are_of_the_declared_protocol() -> None:
    again = Rows(RANKING.folder / COMMITTED_AGAIN)
    table = ranking_table(RANKING, rows_of(RANKING), RANKING.arms, again)
    assert why_exploratory_cells(RANKING, table) == ""
    assert all(cell.rows for cell in table.values())


@pytest.mark.parametrize("declared", [*CLAIMS, RANKING], ids=lambda each: each.folder.name)
def test_rows_are_only_added(declared: Claim | Protocol) -> None:
    assert lost_rows(declared.folder / COMMITTED) == []
    assert lost_rows(declared.folder / COMMITTED_AGAIN) == []


@pytest.mark.parametrize("declared", [*CLAIMS, RANKING], ids=lambda each: each.folder.name)
def test_a_clone_has_the_commits_of_all_rows(declared: Claim | Protocol) -> None:
    of_branch = set((git(ROOT, "rev-list", "HEAD") or "").split())
    for name in (COMMITTED, COMMITTED_AGAIN):
        assert {row["commit"] for row in Rows(declared.folder / name).values()} <= of_branch
