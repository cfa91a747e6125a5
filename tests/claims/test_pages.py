"""Pages and figures follow from the committed rows, to the last character."""

from pathlib import Path

import pytest

from attnlab.claims.attempts import attempts_of
from attnlab.claims.claim import Claim, find_claims
from attnlab.claims.claim_page import block_of_all_claims, figure_of, page_block
from attnlab.claims.declared import git
from attnlab.claims.elsewhere import committed_rows
from attnlab.claims.judged_claim import judge_claim, judge_files
from attnlab.claims.markdown import BEGIN, END, fill_page
from attnlab.claims.ranking import Protocol, ranking_table
from attnlab.claims.ranking_page import ranking_block
from attnlab.claims.rows import COMMITTED, COMMITTED_AGAIN, Rows
from attnlab.errors import BadInput

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
FIRST = "b308e5e"  # a commit before all that rows name
ROWS = committed_rows(EXPERIMENTS)
CLAIMS = find_claims([str(file.parent) for file in sorted(EXPERIMENTS.glob("*/claim.yaml"))])


def published(page: Path) -> str:
    """The text between the marks of a page."""
    return page.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].strip()


@pytest.mark.skipif(git(EXPERIMENTS, "cat-file", "-e", FIRST) is None, reason="needs the history")
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.folder.name)
def test_the_page_and_figure_of_a_claim_are_those_of_its_rows(claim: Claim) -> None:
    rows = Rows(claim.folder / COMMITTED)
    again = Rows(claim.folder / COMMITTED_AGAIN)
    judged = judge_claim(claim, rows, again=again, committed=ROWS)
    page = published(claim.folder / "README.md")
    svg = (claim.folder / "figure.svg").read_text()
    assert page_block(judged, attempts_of(claim, rows)) == page
    assert figure_of(judged) == svg
    if not judged.findings[0].values:
        return  # not trained yet: there is no value to change
    first = judged.findings[0]
    row = next(iter(first.rows.values()))[0]  # a planted error: one value of one seed
    row["values"][first.prediction.metric] = 1.0 + len(str(row))
    judged = judge_claim(claim, rows, again=again, committed=ROWS)
    assert page_block(judged, attempts_of(claim, rows)) != page
    assert figure_of(judged) != svg


def test_the_table_of_all_claims_is_that_of_their_rows() -> None:
    judged = [judge_files(claim, ROWS) for claim in CLAIMS]
    assert block_of_all_claims(judged) == published(EXPERIMENTS / "README.md")
    assert block_of_all_claims(judged) != block_of_all_claims(judged[:-1])


def test_the_page_of_the_ranking_is_that_of_its_rows() -> None:
    protocol = Protocol.read(EXPERIMENTS / "ranking" / "ranking.yaml")
    rows = Rows(protocol.folder / COMMITTED)
    again = Rows(protocol.folder / COMMITTED_AGAIN)
    page = published(protocol.folder / "README.md")
    assert ranking_block(protocol, ranking_table(protocol, rows, protocol.arms, again)) == page
    for run, row in rows.items():
        if {"attn=rotary", "data=tinyshakespeare"} <= set(run.overrides):
            row["values"]["curve"]["losses"] |= {"1200": 2.5}
    assert ranking_block(protocol, ranking_table(protocol, rows, protocol.arms, again)) != page


@pytest.mark.parametrize("text", ["", BEGIN, END + BEGIN])
def test_only_what_is_between_the_marks_of_a_page_is_replaced(tmp_path: Path, text: str) -> None:
    page = tmp_path / "README.md"
    page.write_text(text)
    with pytest.raises(BadInput):
        fill_page(page, "x")
    assert page.read_text() == text
    page.write_text(f"{text[:1]}a{BEGIN}b{END}c")
    fill_page(page, "x")
    assert page.read_text() == f"{text[:1]}a{BEGIN}\nx\n{END}c"


def test_a_page_that_does_not_exist_is_begun(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    fill_page(page, "x")
    assert published(page) == "x"
