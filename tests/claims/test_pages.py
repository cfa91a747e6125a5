"""Pages and the ranking's figure follow from the committed rows, to the last character."""

import shutil
from pathlib import Path

import pytest

from attnlab.claims.claims import judge_claim, read_claim, read_declared
from attnlab.claims.experiments import OpenClaim, figure_of, find_claims, open_claim, save
from attnlab.claims.page import all_claims, fill, page_block
from attnlab.claims.ranking import Protocol
from attnlab.claims.ranking_page import ranking_block
from attnlab.claims.rows import Rows, read_renamed
from attnlab.errors import BadInput

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
CLAIMS = sorted(EXPERIMENTS.glob("*/claim.yaml"))


def rows_of(folder: Path) -> Rows:
    return Rows(folder / "rows.jsonl", renamed=read_renamed(EXPERIMENTS))


def changed(page: Path, block: str, folder: Path) -> bool:
    """Whether a page would be another one with this block."""
    copy = folder / "README.md"
    shutil.copy(page, copy)
    fill(copy, block)
    return copy.read_text(encoding="utf-8") != page.read_text(encoding="utf-8")


def figure(opened: OpenClaim, rows: Rows, folder: Path) -> bytes:
    _, parts = judge_claim(opened.claim, rows)
    save(figure_of(opened, parts), folder / "figure.svg")
    return (folder / "figure.svg").read_bytes()


@pytest.mark.parametrize("file", CLAIMS, ids=lambda file: file.parent.name)
def test_the_page_and_figure_of_a_claim_are_those_of_its_rows(file: Path, tmp_path: Path) -> None:
    opened = open_claim(file, tmp_path)
    claim, rows, page = opened.claim, opened.committed, file.with_name("README.md")
    verdict, parts = judge_claim(claim, rows)
    assert not changed(page, page_block(claim, verdict, parts), tmp_path)
    assert figure(opened, rows, tmp_path) == file.with_name("figure.svg").read_bytes()
    row = parts[0].rows[parts[0].arms[0].name][0]  # a planted error: one value of one seed
    row["values"][parts[0].prediction.metric] = 1.0 + len(str(row))
    verdict, parts = judge_claim(claim, rows)
    assert changed(page, page_block(claim, verdict, parts), tmp_path)
    assert figure(opened, rows, tmp_path) != file.with_name("figure.svg").read_bytes()


def test_the_table_of_all_claims_is_that_of_their_rows(tmp_path: Path) -> None:
    claims = [read_claim(file) for file in find_claims([str(file.parent) for file in CLAIMS])]
    judged = [(claim, *judge_claim(claim, rows_of(claim.file.parent))) for claim in claims]
    assert len(judged) == 13
    assert not changed(EXPERIMENTS / "README.md", all_claims(judged), tmp_path)
    assert changed(EXPERIMENTS / "README.md", all_claims(judged[:-1]), tmp_path)


def test_the_page_of_the_ranking_is_that_of_its_rows(tmp_path: Path) -> None:
    folder = EXPERIMENTS / "ranking"
    protocol, rows = read_declared(folder / "ranking.yaml", Protocol), rows_of(folder)
    assert not changed(folder / "README.md", ranking_block(protocol, rows), tmp_path)
    for run, row in rows.items():
        if {"attn=rotary", "data=tinyshakespeare"} <= set(run.overrides):
            row["values"]["curve"]["losses"] |= {"1200": 2.5}
    assert changed(folder / "README.md", ranking_block(protocol, rows), tmp_path)


@pytest.mark.parametrize("text", ["", "<!-- results -->", "<!-- /results --><!-- results -->"])
def test_a_page_without_marks_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    page = tmp_path / "README.md"
    page.write_text(text)
    with pytest.raises(BadInput):
        fill(page, "x")
    assert page.read_text() == text
