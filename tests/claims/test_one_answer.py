"""One question has one answer: what a claim says, what the rows of others say of the same arms,
and what pages print of both."""

import re
from pathlib import Path
from statistics import median

import pytest

from attnlab.claims.claim import Claim, find_claims
from attnlab.claims.claim_page import claim_report
from attnlab.claims.elsewhere import committed_rows, compares_rates
from attnlab.claims.judged_claim import JudgedClaim, judge_claim, judge_files
from attnlab.claims.ranking import LONG, CellKey
from attnlab.claims.ranking_page import cells_of_variant
from attnlab.claims.reach import limits_of, reach_line, verdict_words
from attnlab.claims.rows import COMMITTED, COMMITTED_AGAIN, Rows
from scripts.fill_pages import PAGES
from scripts.lab import Published
from tests.conftest import ROOT

EXPERIMENTS = ROOT / "experiments"
CLAIMS = find_claims([str(file.parent) for file in sorted(EXPERIMENTS.glob("*/claim.yaml"))])
COMMITTED_ROWS = committed_rows(EXPERIMENTS)


def unlike(judged: JudgedClaim) -> list[str]:
    """The predictions whose sign or verdict is another one by the rows of others, without a
    sentence that says why: an entry of `differs`, or a withdrawal that names them."""
    found = []
    for finding in judged.findings:
        for name, there in judged.elsewhere.get(finding.name, {}).items():
            signs = {finding.tally.median > 0, there.tally.median > 0}
            is_same = finding.verdict == "shown" or finding.verdict == there.verdict
            is_said = name in judged.claim.differs or name in judged.claim.withdrawn
            if not is_said and (len(signs) == 2 or not is_same):
                found.append(f"{finding.name} by {name}")
    return found


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.folder.name)
def test_rows_of_the_same_arms_say_the_same_or_the_claim_says_why(claim: Claim) -> None:
    judged = judge_files(claim, COMMITTED_ROWS)
    assert unlike(judged) == []
    assert set(claim.differs) <= {name for of in judged.elsewhere.values() for name in of}
    if judged.verdict != "undecided":
        assert not judged.contradicted_by()


def test_rows_that_are_known_to_ask_the_same_are_found_and_a_planted_sign_is_seen() -> None:
    claim = next(claim for claim in CLAIMS if claim.folder.name == "more_heads")
    judged = judge_files(claim, COMMITTED_ROWS)
    assert set(judged.elsewhere["wide"]) == {"unscaled"}  # eight heads of 16 and one of 128
    rows = {run: dict(row) for run, row in COMMITTED_ROWS[claim.folder / COMMITTED].items()}
    for run, row in rows.items():  # eight heads become as good as one is, and the reverse
        if "model.n_head=8" in run.overrides:
            row["values"] = row["values"] | {"val_loss": row["values"]["val_loss"] - 0.3}
    planted = judge_claim(claim, rows, committed=COMMITTED_ROWS)
    assert "wide by unscaled" in unlike(planted)
    assert planted.why_open(next(x for x in planted.findings if x.key == "wide"))


def test_rows_at_any_rate_do_not_answer_what_a_rate_does() -> None:
    claim = next(claim for claim in CLAIMS if claim.folder.name == "large_rates")
    judged = judge_files(claim, COMMITTED_ROWS)
    arms = {finding.name: list(finding.arms.values()) for finding in judged.findings}
    assert compares_rates(arms["costs_less_300"]) and compares_rates(arms["softcap_1200"])
    assert not compares_rates(arms["scores_300"])
    assert not judged.elsewhere.keys() & {"costs_less_300", "stays_300", "softcap_300"}


def test_a_withdrawn_verdict_would_not_come_back_without_its_length_and_rate() -> None:
    claim = Claim.read(EXPERIMENTS / "needs_positions" / "claim.yaml")
    bare = judge_files(claim.model_copy(update={"withdrawn": ""}), COMMITTED_ROWS)
    assert bare.verdict in ("undecided", "holds", "holds in part")


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.folder.name)
def test_a_verdict_and_its_reach_are_the_same_wherever_they_are_printed(claim: Claim) -> None:
    judged = judge_files(claim, COMMITTED_ROWS)
    words, reach = verdict_words(judged), reach_line(judged)
    name = claim.folder.name
    page = (claim.folder / "README.md").read_text(encoding="utf-8")
    table = (EXPERIMENTS / "README.md").read_text(encoding="utf-8")
    of_table = re.findall(rf"^\| \[{name}\].*$", table, re.MULTILINE)
    assert len(of_table) == 2 and all(words in line for line in of_table)
    assert f"Verdict: {words}" in page and reach in page and reach in of_table[0]
    rows, again = (Rows(claim.folder / file) for file in (COMMITTED, COMMITTED_AGAIN))
    of_terminal = claim_report(claim, rows, again, COMMITTED_ROWS)
    of_lab = Published.read(name).verdict(only=None)
    assert words in of_terminal and words in of_lab["says"]
    assert reach in of_terminal and reach in of_lab["reach"]
    marked = re.compile(rf"<!-- {name} -->\*\*(.*?)\*\*(.*?)<!-- / -->")
    for file in PAGES:
        for verdict, limits in marked.findall(Path(file).read_text(encoding="utf-8")):
            assert verdict == judged.verdict
            withdrawn = ", withdrawn" if claim.withdrawn else ""
            assert limits.strip() == (withdrawn.strip() or str(limits_of(judged)))


def test_a_chapter_has_the_numbers_of_the_ranking() -> None:
    chapter = (ROOT / "docs/chapters/9_today.py").read_text(encoding="utf-8")
    numbers = r"(0\.\d+) nats better.{0,60}?after 300 steps,? and (0\.\d+) after 1,200"
    said = re.findall(rf"ranking/README\.md\).*?{numbers}", chapter, re.DOTALL)
    name = "sliding_window"
    _, table = cells_of_variant(EXPERIMENTS / "ranking", name)
    cells = [table[CellKey(name, "text", times)] for times in (1, LONG)]
    assert said == [tuple(f"{-cell.difference.median:.3f}" for cell in cells)] * 2


SIDES = {  # of the table of two processors: row -> overrides, and steps
    "one head of 128 | 300": ("model.init=unit", "", 300),
    "one head of 128 | 1,200": ("model.init=unit", "", 1200),
    "eight heads of 16 | 300": ("model.init=unit", "model.n_head=8", 300),
    "GPT-2's start, one head of 128 | 300": ("model.init=gpt2", "", 300),
    "GPT-2's start, one head of 128 | 1,200": ("model.init=gpt2", "", 1200),
}


@pytest.mark.parametrize("line", SIDES)
def test_the_earlier_test_on_another_processor_has_the_numbers_of_its_rows(line: str) -> None:
    start, heads, steps = SIDES[line]
    of_tests = {"Intel": range(300, 310), "AMD": range(500, 510)}
    cells = []
    for processor, seeds in of_tests.items():
        losses: dict[str, dict[int, float]] = {"sdpa": {}, "unscaled": {}}
        for run, row in COMMITTED_ROWS[EXPERIMENTS / "unscaled" / COMMITTED].items():
            words = [word for word in run.overrides if not word.startswith("optim.")]
            for name, of_arm in losses.items():
                wanted = ["experiment=unscaled", start, f"attn={name}", heads]
                wanted += [f"trainer.max_steps={steps}", f"trainer.val_check_interval={steps}"]
                is_there = processor in row["machine"] and run.seed in seeds
                if is_there and words == [word for word in wanted if word]:
                    of_arm[run.seed] = row["values"]["val_loss"]
        apart = sorted(losses["unscaled"][seed] - losses["sdpa"][seed] for seed in seeds)
        cells.append(f"{median(apart):.3f} ({apart[0]:.3f} to {apart[-1]:.3f})")
    page = (EXPERIMENTS / "unscaled" / "README.md").read_text(encoding="utf-8")
    assert f"| {line} | {' | '.join(cells)} |" in page
