"""What a page says of earlier tests, dropped predictions and other thresholds, from git."""

import json
import subprocess

import pytest
import yaml

from attnlab.claims.attempts import (
    attempts_in_words,
    attempts_of,
    has_other_threshold,
    section_on_changed_words,
)
from attnlab.claims.claim import Claim
from attnlab.claims.judged_claim import judge_claim
from attnlab.claims.rows import Rows

FIRST = {
    "says": "A.", "base": ["y=1"], "first_seed": 300, "arms": {"a": ["attn=a"]},
    "predictions": {
        "p": {"says": "P.", "arms": ["a"], "above": 0.5},
        "gone": {"says": "Gone.", "arms": ["a"], "above": 9.0, "role": "secondary"},
    },
}  # fmt: skip


def git(folder, *words):
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, check=True)


def declared(folder, content):
    """Commit a claim."""
    (folder / "claim.yaml").write_text(yaml.safe_dump(content))
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "x")


@pytest.fixture
def folder(tmp_path):
    """A claim that was tested at first with the seeds from 300."""
    folder = tmp_path / "experiments" / "mine"
    folder.mkdir(parents=True)
    git(tmp_path, "init", "-q")
    declared(folder, FIRST)
    for seed in range(300, 310):
        row = {"overrides": ["y=1", "attn=a"], "seed": seed, "status": "finished",
               "values": {"val_loss": 1.0}, "commit": ""}  # fmt: skip
        Rows(folder / "rows.jsonl").add(row)
    return folder


def section(folder):
    claim, rows = Claim.read(folder / "claim.yaml"), Rows(folder / "rows.jsonl")
    attempts = attempts_of(claim, rows)
    return attempts, attempts_in_words(judge_claim(claim, rows), attempts)


def test_the_first_test_has_no_earlier_one(folder):
    attempts, words = section(folder)
    assert [attempt.first_seed for attempt in attempts] == [300]
    assert words == ""


def test_an_earlier_test_stays_on_the_page(folder):
    second = json.loads(json.dumps(FIRST)) | {"first_seed": 400}
    del second["predictions"]["gone"]
    second["predictions"]["p"]["above"] = 0.4
    declared(folder, second)
    attempts, words = section(folder)
    assert [(x.first_seed, x.verdict) for x in attempts] == [(300, "holds"), (400, "undecided")]
    assert "| 300 | holds |" in words
    assert "- `gone`: Gone. (refuted, 0 of 10; seeds from 300)" in words
    assert "- `p`, 0.5: P. (confirmed, 10 of 10; seeds from 300)" in words


def test_a_prediction_that_was_dropped_after_its_test_stays_on_the_page(folder):
    less = json.loads(json.dumps(FIRST))
    del less["predictions"]["gone"]
    declared(folder, less)
    _, words = section(folder)
    assert "`gone`" in words and "| 300 |" not in words


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"says": "B."}, "- the sentence: A."),
        ({"otherwise": "less than 1"}, "- nothing of what holds instead"),
        ({"p": {"says": "Q."}}, "- `p`, says: P."),
        ({"p": {"where": "here"}}, "- `p`, where: nothing"),
    ],
)
def test_words_that_were_changed_after_the_runs_stay_on_the_page(folder, change, words):
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=folder, text=True).strip()
    rows = Rows(folder / "rows.jsonl")
    for run, row in rows.items():
        rows[run] = row | {"commit": commit}
    later = json.loads(json.dumps(FIRST))
    for key, value in change.items():
        if key == "p":
            later["predictions"]["p"] |= value
        else:
            later[key] = value
    declared(folder, later)
    said = section_on_changed_words(judge_claim(Claim.read(folder / "claim.yaml"), rows))
    assert words in said if words else said == ""


@pytest.mark.parametrize(
    ("then", "now", "other"),
    [({0.4}, {0.3}, True), ({0.4}, {0.4}, False), ({1e-9}, {20.723}, False),
     ({1e-9}, {20.0}, True), ({0.5}, {0.5, 1.0}, False), (set(), {1.0}, False)],
)  # fmt: skip
def test_a_threshold_is_compared_by_what_it_means(then, now, other):
    assert has_other_threshold(frozenset(then), frozenset(now)) == other
