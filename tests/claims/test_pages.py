"""Pages and figures follow from the committed rows, to the last character."""

from pathlib import Path

import pytest

from attnlab.claims.claims import Claim, judge_claim
from attnlab.claims.experiments import figure_of, find_claims
from attnlab.claims.page import BEGIN, END, all_claims, fill, page_block, ranking_block
from attnlab.claims.ranking import Protocol, cells
from attnlab.claims.rows import Rows
from attnlab.errors import BadInput

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
CLAIMS = find_claims([str(file.parent) for file in sorted(EXPERIMENTS.glob("*/claim.yaml"))])


def published(page: Path) -> str:
    """The text between the marks of a page."""
    return page.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].strip()


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.folder.name)
def test_the_page_and_figure_of_a_claim_are_those_of_its_rows(claim: Claim) -> None:
    rows = Rows(claim.folder / "rows.jsonl")
    verdict, parts = judge_claim(claim, rows)
    page, svg = published(claim.folder / "README.md"), (claim.folder / "figure.svg").read_text()
    assert (page_block(claim, verdict, parts), figure_of(claim, parts)) == (page, svg)
    row = next(iter(parts[0].rows.values()))[0]  # a planted error: one value of one seed
    row["values"][parts[0].prediction.metric] = 1.0 + len(str(row))
    verdict, parts = judge_claim(claim, rows)
    assert page_block(claim, verdict, parts) != page and figure_of(claim, parts) != svg


def test_the_table_of_all_claims_is_that_of_their_rows() -> None:
    judged = [(each, *judge_claim(each, Rows(each.folder / "rows.jsonl"))) for each in CLAIMS]
    assert len(judged) == 13
    assert all_claims(judged) == published(EXPERIMENTS / "README.md") != all_claims(judged[:-1])


def test_the_page_of_the_ranking_is_that_of_its_rows() -> None:
    protocol = Protocol.read(EXPERIMENTS / "ranking" / "ranking.yaml")
    rows, page = Rows(protocol.folder / "rows.jsonl"), published(protocol.folder / "README.md")
    assert ranking_block(protocol, cells(protocol, rows, protocol.arms)) == page
    for run, row in rows.items():
        if {"attn=rotary", "data=tinyshakespeare"} <= set(run.overrides):
            row["values"]["curve"]["losses"] |= {"1200": 2.5}
    assert ranking_block(protocol, cells(protocol, rows, protocol.arms)) != page


@pytest.mark.parametrize("text", ["", BEGIN, END + BEGIN])
def test_only_what_is_between_the_marks_of_a_page_is_replaced(tmp_path: Path, text: str) -> None:
    page = tmp_path / "README.md"
    page.write_text(text)
    with pytest.raises(BadInput):
        fill(page, "x")
    assert page.read_text() == text
    page.write_text(f"{text[:1]}a{BEGIN}b{END}c")
    fill(page, "x")
    assert page.read_text() == f"{text[:1]}a{BEGIN}\nx\n{END}c"
