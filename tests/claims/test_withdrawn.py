"""A verdict that does not stand is withdrawn, and wherever it is printed, so is the reason."""

import json
import re
from statistics import median

import pytest

from attnlab.claims.attempts import attempts_of
from attnlab.claims.claim import Claim, find_claims
from attnlab.claims.claim_page import block_of_all_claims, claim_report, verdict_and_where
from attnlab.claims.declared import git
from attnlab.claims.judged_claim import judge_claim, judge_files
from attnlab.claims.ranking import Protocol, ranking_table
from attnlab.claims.rows import COMMITTED, COMMITTED_AGAIN, Rows
from attnlab.claims.trials import Run
from attnlab.commands.claims_json import claim_content
from docs.exercises.grader import statements
from scripts.fill_pages import CELL, PAGES
from scripts.lab import Published
from tests.conftest import ROOT

CLAIMS = find_claims([str(file.parent) for file in sorted(ROOT.glob("experiments/*/claim.yaml"))])
WITHDRAWN = [claim for claim in CLAIMS if claim.withdrawn]
by_claim = pytest.mark.parametrize("claim", WITHDRAWN, ids=lambda claim: claim.folder.name)
FEWEST = {20: 17, 40: 31}  # seeds that confirm


def judged(says="A.", **settings):
    """A claim that holds by ten seeds."""
    predictions = {"p": {"says": "P.", "arms": ["x"], "above": 0.5}}
    claim = Claim(says=says, base=[], first_seed=0, arms={"x": ["x=1"]}, predictions=predictions,
                  **settings)  # fmt: skip
    row = {"overrides": ("x=1",), "status": "finished", "values": {"val_loss": 1.0}, "commit": "",
           "cpu_seconds": None}  # fmt: skip
    return judge_claim(claim, {Run(("x=1",), seed): row | {"seed": seed} for seed in range(10)})


def test_a_withdrawn_claim_is_undecided_whatever_its_predictions_say():
    as_it_was, withdrawn = judged(), judged(withdrawn="Too short.")
    assert (as_it_was.verdict, withdrawn.verdict) == ("holds", "undecided")
    assert withdrawn.verdict_of_predictions == "holds"
    for said in (verdict_and_where, lambda each: block_of_all_claims([each])):
        assert "Too short." not in said(as_it_was)
        assert "Too short." in said(withdrawn)


def plain(text):
    """A text without marks and line breaks."""
    return " ".join(re.sub(r"<!--.*?-->|\*\*", "", text).split())


@by_claim
def test_the_reason_stands_wherever_the_verdict_does(claim):
    name = claim.folder.name
    rows, again = Rows(claim.folder / COMMITTED), Rows(claim.folder / COMMITTED_AGAIN)
    result = judge_files(claim)
    says = plain(claim.says)
    of_table, why = re.findall(
        rf"^\| \[{name}\].*$", (ROOT / "experiments/README.md").read_text(encoding="utf-8"), re.M
    )
    (of_exercise,) = [row for row in statements() if row.text == says]
    printed = {
        "page": (claim.folder / "README.md").read_text(encoding="utf-8"),
        "table": of_table,
        "exercise": of_exercise.words + of_exercise.found,
        "reproduce": claim_report(claim, rows, again),
        "JSON": json.dumps(claim_content(result, 0), ensure_ascii=False),
        "lab": Published.read(name).verdict(only=None)["says"],
    }
    assert "withdrawn" in why
    reason = plain(claim.withdrawn).rstrip(".")
    assert [place for place, text in printed.items() if reason not in plain(text)] == []
    assert result.verdict == of_exercise.verdict == "undecided"
    for file in PAGES:
        for line in file.read_text(encoding="utf-8").splitlines():
            if any(cell[1:4] == (name, "", "") for cell in CELL.findall(line)):
                assert reason in plain(line), file


@pytest.mark.skipif(git(ROOT, "cat-file", "-e", "b308e5e") is None, reason="needs the history")
def test_an_earlier_test_that_was_withdrawn_is_listed_as_such():
    for claim in WITHDRAWN:
        last = attempts_of(claim, Rows(claim.folder / COMMITTED))[-1]
        assert (last.first_seed, last.verdict) == (claim.first_seed, "withdrawn")


def losses_of(cell, steps):
    """The loss of each seed after some steps."""
    return {row["seed"]: row["values"]["curve"]["losses"][str(steps)] for row in cell.rows}


def test_needs_positions_is_not_decided_against_the_rows_of_the_ranking():
    protocol = Protocol.read(ROOT / "experiments" / "ranking" / "ranking.yaml")
    names = ["sdpa", "sdpa, no positions"]
    table = ranking_table(protocol, Rows(protocol.folder / COMMITTED), names)
    claim = Claim.read(ROOT / "experiments" / "needs_positions" / "claim.yaml")
    for times, steps in ((1, 300), (4, 1200)):
        learned, without = (losses_of(table[name, "text", times], steps) for name in names)
        apart = [without[seed] - learned[seed] for seed in learned]
        assert len(apart) == 10 and min(apart) > 0.05  # the threshold of the claim
        assert judge_files(claim).verdict != "does not hold"
        if claim.withdrawn:
            assert f"{median(apart):.2f}" in claim.withdrawn


def test_a_claim_that_something_helps_is_not_refuted_where_there_is_no_room():
    result = judge_files(Claim.read(ROOT / "experiments" / "length_scaling" / "claim.yaml"))
    baseline = next(f for f in result.findings if f.key == "fixed").scores["sdpa"]
    assert min(baseline) < 0.9 or result.verdict == "undecided"


def test_how_far_windows_reach_holds_by_a_test_and_not_by_training():
    (row,) = [row for row in statements() if row.text.endswith("positions back, and no further.")]
    assert row.verdict == "holds" and "tests/test_textbook.py -k windows_reach" in row.command
    claim = Claim.read(ROOT / "experiments" / "window_reach" / "claim.yaml")
    assert claim.says != row.text  # one sentence, one answer


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.folder.name)
def test_no_verdict_rests_on_the_fewest_seeds_of_one_processor(claim):
    result = judge_files(claim)
    for finding in result.needed():
        tally = finding.tally
        at_the_bar = finding.verdict == "confirmed" and tally.agree == FEWEST.get(tally.n)
        if at_the_bar and finding.name not in result.again:
            assert result.verdict == "undecided"


@pytest.mark.parametrize(
    ("name", "predictions"),
    [
        ("needs_positions", ["one_layer", "two_layers"]),  # rows of the ranking had told
        ("differential_recall", ["version_2"]),  # three seeds in docs/tasks.md
        ("value_embeddings", ["lower", "than_wider"]),  # three seeds in docs/variants.md
    ],
)
def test_what_the_lab_had_seen_is_not_marked_at_risk(name, predictions):
    claim = Claim.read(ROOT / "experiments" / name / "claim.yaml")
    if claim.first_seed == 300:  # a later version has predictions of its own
        assert not any(claim.predictions[prediction].at_risk for prediction in predictions)


@pytest.mark.skipif(git(ROOT, "cat-file", "-e", "b308e5e") is None, reason="needs the history")
def test_the_page_of_more_heads_says_at_which_rates_seeds_were_counted():
    page = (ROOT / "experiments/more_heads/README.md").read_text(encoding="utf-8")
    context = plain(page.partition("<!-- results -->")[0])
    claim = Claim.read(ROOT / "experiments/more_heads/claim.yaml")
    now = next(f for f in judge_files(claim).findings if f.key == "four_300")
    (rate,) = {word for rows in now.rows.values() for row in rows for word in row["overrides"]
               if word.startswith("optim.lr=")}  # fmt: skip
    losses = {}
    old = git(ROOT, "show", "b331129c:experiments/more_heads/rows.jsonl") or ""
    for line in old.splitlines():
        row = json.loads(line)
        label = row["label"].split(": ")[1].split(",")[0]
        heads = 4 if label in ("sdpa", "4 heads") else label  # a claim may borrow rows of another
        losses[heads, row["seed"]] = row["values"]["val_loss"]
    better = sum(losses[4, seed] < losses["1 head", seed] for seed in range(200, 220))
    preset = git(ROOT, "show", "b331129c:conf/preset/micro.yaml") or ""
    assert rate == "optim.lr=0.01" and "lr: 3e-3" in preset
    for at, yes in (("1e-2", now.tally.agree), ("3e-3", better)):
        assert re.search(rf"{at}[^.;]*?{yes} of 20", context)
