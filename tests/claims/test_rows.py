"""Rows that were edited, doubled or removed are refused in a sentence that names the line."""

import json

import pytest

from attnlab.claims.paths import Paths
from attnlab.claims.rows import RowStore, read_rows, sealed
from attnlab.errors import BadInput
from attnlab.files import write_json

ROWS = [
    sealed({"id": f"run-s{seed}", "seed": seed, "status": "finished", "values": {"x": seed}})
    for seed in range(3)
]


@pytest.fixture
def paths(tmp_path):
    """The directories of a project with a published claim."""
    found = Paths(tmp_path / "experiments", tmp_path / "conf", tmp_path / "out", "quick")
    judged = {row["id"]: row["digest"] for row in ROWS}
    write_json(found.experiments / "mine" / "verdict.json", {"version": 1, "rows": judged})
    return found


def write(paths, rows, name="rows.jsonl"):
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (paths.experiments / "mine" / name).write_text(text)


def test_the_rows_of_a_published_verdict_are_read(paths):
    write(paths, ROWS)
    assert list(RowStore(paths, ["mine"]).committed("mine").values()) == ROWS
    more = sealed({"id": "run-s3", "seed": 3, "values": {}})
    write(paths, [*ROWS, more])  # of predictions that were not run yet
    assert len(RowStore(paths, ["mine"]).rows) == 4


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([ROWS[0], ROWS[1] | {"values": {"x": 9}}, ROWS[2]], "line 2 differs from its digest"),
        (
            [ROWS[0], sealed(ROWS[1] | {"values": {"x": 9}}), ROWS[2]],
            "line 2 differs from the row",
        ),
        ([*ROWS, ROWS[1]], "line 4 has the id of line 2"),
        ([*ROWS, sealed(ROWS[1] | {"values": {"x": 9}})], "line 4 has the id of line 2"),
        ([ROWS[0], ROWS[2]], "lacks the row run-s1 of the published verdict"),
        ([], "lacks the row run-s0 and 2 others of the published verdict"),
        ([ROWS[0], {"id": "run-s1"}, ROWS[2]], "line 2 is damaged"),
    ],
    ids=["edited", "digest renewed", "doubled", "doubled, edited", "missing", "all", "no digest"],
)
def test_other_rows_than_the_published_ones_are_refused(paths, rows, sentence):
    write(paths, rows)
    with pytest.raises(BadInput, match=rf"rows\.jsonl.*{sentence}"):
        RowStore(paths, ["mine"])


def test_after_a_new_declaration_the_rows_of_the_old_verdict_are_checked_in_their_file(paths):
    write(paths, ROWS[:2], "rows-v1.jsonl")
    with pytest.raises(BadInput, match=r"rows-v1\.jsonl lacks the row run-s2"):
        RowStore(paths, ["mine"])
    write(paths, ROWS, "rows-v1.jsonl")
    assert RowStore(paths, ["mine"]).rows == {}


def test_a_digest_covers_numbers_that_json_lacks(tmp_path):
    row = sealed({"id": "a", "values": {"x": float("inf"), "y": float("nan"), 3: 1.5}})
    assert row["values"] == {"x": "inf", "y": None, "3": 1.5}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert read_rows(tmp_path / "rows.jsonl") == [row]
