"""What is published follows from the rows: against b308e5e, and the declarations."""

import json
import math
from pathlib import Path

import pytest

from attnlab.claims.claims import Claim, judge_claim, needed
from attnlab.claims.experiments import exploratory
from attnlab.claims.judge import answer
from attnlab.claims.page import words
from attnlab.claims.ranking import LONG, Protocol, cells, of_cell
from attnlab.claims.rows import Rows, git, undeclared
from attnlab.runs.seed_statistics import most_against

ROOT = Path(__file__).parents[2]
CLAIMS = [Claim.read(file) for file in sorted((ROOT / "experiments").glob("*/claim.yaml"))]
RANKING = Protocol.read(ROOT / "experiments" / "ranking" / "ranking.yaml")
BEFORE = "b308e5e"  # the last commit of the earlier format
EDGE = " (best rate is the last one tried)"
by_claim = pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.folder.name)
pytestmark = pytest.mark.skipif(
    git(ROOT, "cat-file", "-e", BEFORE) is None, reason=f"needs the history of git up to {BEFORE}"
)


def rows_of(declared: Claim | Protocol) -> Rows:
    return Rows(declared.folder / "rows.jsonl")


def close(a: float | None, b: float | None) -> bool:
    x, y = (math.nan if number is None else float(number) for number in (a, b))
    return math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-12) or (math.isnan(x) and math.isnan(y))


@by_claim
def test_the_verdict_of_the_earlier_format_is_the_same(claim: Claim) -> None:
    if claim.folder.name == "unscaled":
        pytest.skip("declared anew: its predictions are shares of what attention gives")
    text = git(ROOT, "show", f"{BEFORE}:experiments/{claim.folder.name}/verdict.json")
    old, rows = json.loads(text), rows_of(claim)
    verdict, parts = judge_claim(claim, rows)
    assert verdict == old["verdict"]
    compared = 0
    for part in parts:
        if part.name not in old["predictions"] or part.prediction.first_seed is not None:
            continue
        each, then, compared = part.prediction, old["predictions"][part.name], compared + 1
        few = len(part.seeds) < 10  # such predictions are shown now
        assert part.verdict == ("shown" if few else then["verdict"]), part.name
        assert len(part.values) == len(then["values"])
        assert all(map(close, part.values, then["values"])), part.name
        if part.values and each.role != "shown":
            for key in ("yes", "n", "median", "low", "high"):
                assert close(getattr(part.outcome, key), then[key]), (part.name, key)
            bounds = (each.above, each.below, each.always)
            answers = [answer(x, *bounds) for x in part.values[: then["n"]]]
            assert most_against(answers) == then["no"], part.name
    assert compared > 0
    assert needed(claim, rows) == []


def test_the_cells_of_the_earlier_ranking_are_the_same() -> None:
    table = cells(RANKING, rows_of(RANKING), RANKING.arms)
    page = git(ROOT, "show", f"{BEFORE}:experiments/ranking/README.md")
    other = set[tuple[str, str, int]]()  # whose number was not the one that the verdict counts
    compared = 0
    for times, head in ((1, "## After n steps"), (LONG, "## After 4 n steps")):
        lines = [
            [x.strip() for x in line.strip("|").split("|")]
            for line in page.split(head)[1].split("\n\n")[1].splitlines()
        ]
        tasks = [name.split(",")[0] for name in lines[0]]
        for name, *texts in lines[2:]:
            for task, text in zip(tasks[1:], texts, strict=True):
                key = (name, {"induction": "induction at 128"}.get(task, task), times)
                if text != "–" and key in table:
                    compared += 1
                    now, _, apart = words(table[key]).replace("**", "").partition("<br>")
                    assert text.split(":")[0] == now.split(":")[0] or ":" not in now, key
                    assert (", edge" in text) == (EDGE in now), key
                    if not (text.startswith(now.replace(EDGE, "")) and text.endswith(apart)):
                        other.add(key)
    assert compared == 220
    assert other == {
        ("sdpa, a tenth of the rate", "mqar", 4),
        ("sdpa, a tenth of the rate", "noisy recall", 4),
        ("forgetting", "noisy recall", 4),
    }


@by_claim
def test_rows_are_of_the_declared_claim(claim: Claim) -> None:
    assert exploratory(claim, judge_claim(claim, rows_of(claim))[1]) == ""


def test_rows_of_the_ranking_are_of_the_declared_protocol() -> None:
    table = cells(RANKING, rows_of(RANKING), RANKING.arms).items()
    made = {(row["commit"], f"{a} on {task}") for (a, task, _), cell in table for row in cell.rows}
    assert undeclared(RANKING.file, made, of_cell) == ""
    assert len({what for _, what in made}) == len(RANKING.arms) * len(RANKING.tasks)


def lost_lines(lines: list[str], earlier: list[str]) -> list[str]:
    """Rows of earlier contents of a file that it no longer has; not those of earlier formats."""
    return sorted(x for x in {*earlier} - {*lines} if x.startswith('{"overrides"'))


@pytest.mark.parametrize("declared", [*CLAIMS, RANKING], ids=lambda each: each.folder.name)
def test_rows_are_only_added(declared: Claim | Protocol) -> None:
    rows = declared.folder / "rows.jsonl"
    commits = (git(declared.folder, "log", "--format=%H", "--", rows.name) or "").split()
    then = [git(declared.folder, "show", f"{commit}:./{rows.name}") or "" for commit in commits]
    earlier = [line for text in then for line in text.splitlines()]
    lines = rows.read_text(encoding="utf-8").splitlines()
    assert lost_lines(lines, earlier) == []
    assert lost_lines(lines[1:], lines) == [lines[0]]
    assert lost_lines([lines[0].replace("1", "2"), *lines[1:]], lines) == [lines[0]]
