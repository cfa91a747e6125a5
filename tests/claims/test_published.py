"""What is published follows from the rows: against b308e5e, the declarations, and the pages."""

import json
import math
from functools import partial
from pathlib import Path

import pytest

from attnlab.claims import ranking
from attnlab.claims.claims import judge_claim, needed, read_claim, read_declared
from attnlab.claims.experiments import open_claim
from attnlab.claims.rows import Rows, git, read_renamed, undeclared
from attnlab.runs.seed_statistics import most_against

ROOT = Path(__file__).parents[2]
CLAIMS = sorted((ROOT / "experiments").glob("*/claim.yaml"))
RANKING = ROOT / "experiments" / "ranking"
BEFORE = "b308e5e"  # the last commit of the earlier format
ANEW = {"unscaled": "declared anew: its predictions are shares of what attention gives"}
by_claim = pytest.mark.parametrize("file", CLAIMS, ids=lambda file: file.parent.name)
has_history = pytest.mark.skipif(
    git(ROOT, "cat-file", "-e", BEFORE) is None, reason=f"needs the history of git up to {BEFORE}"
)


def rows_of(file: Path) -> Rows:
    return Rows(file.with_name("rows.jsonl"), renamed=read_renamed(ROOT / "experiments"))


def close(a: float | None, b: float | None) -> bool:
    x, y = (math.nan if number is None else float(number) for number in (a, b))
    return math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-12) or (math.isnan(x) and math.isnan(y))


@has_history
@by_claim
def test_the_verdict_of_the_earlier_format_is_the_same(file: Path) -> None:
    text = git(ROOT, "show", f"{BEFORE}:experiments/{file.parent.name}/verdict.json")
    assert text is not None
    if file.parent.name in ANEW:
        pytest.skip(ANEW[file.parent.name])
    old, rows = json.loads(text), rows_of(file)
    verdict, parts = judge_claim(read_claim(file), rows)
    assert verdict == old["verdict"]
    compared = 0
    for part in parts:
        if part.name not in old["predictions"] or part.prediction.first_seed is not None:
            continue
        then, compared = old["predictions"][part.name], compared + 1
        few = len(part.seeds) < 10  # such predictions are shown now
        assert part.verdict == ("shown" if few else then["verdict"]), part.name
        assert len(part.values) == len(then["values"])
        assert all(map(close, part.values, then["values"])), part.name
        if part.outcome is not None and part.prediction.role != "shown":
            for key in ("yes", "n", "median", "low", "high"):
                assert close(getattr(part.outcome, key), then[key]), (part.name, key)
            answers = [part.prediction.criterion.answer(x) for x in part.values[: then["n"]]]
            assert most_against(answers) == then["no"], part.name
    assert compared > 0
    assert needed(read_claim(file), rows) == []


@has_history
def test_the_cells_of_the_earlier_ranking_are_the_same() -> None:
    protocol = read_declared(RANKING / "ranking.yaml", ranking.Protocol)
    rows = rows_of(RANKING / "ranking.yaml")
    table = ranking.cells(protocol, rows)
    page = git(ROOT, "show", f"{BEFORE}:experiments/ranking/README.md")
    assert page is not None
    other = set[tuple[str, str, int]]()  # whose number was not the one that the verdict counts
    compared = 0
    for times, head in ((1, "## After n steps"), (ranking.LONG, "## After 4 n steps")):
        lines = [
            [x.strip() for x in line.strip("|").split("|")]
            for line in page.split(head)[1].split("\n\n")[1].splitlines()
        ]
        tasks = [name.split(",")[0].replace("induction at 128", "induction") for name in lines[0]]
        for name, *cells in lines[2:]:
            for task, text in zip(tasks[1:], cells, strict=True):
                key = (name, task.replace("induction", "induction at 128"), times)
                if text != "–" and key in table:
                    compared += 1
                    verdict, number, interval = in_earlier_words(table[key])
                    assert text.startswith(verdict), key
                    told, _, apart = text.partition("<br>")
                    if not (told.startswith(verdict + number) and apart == interval):
                        other.add(key)
                    assert (", edge" in told) == table[key].at_edge
    assert compared == 220
    assert other == {
        ("sdpa, a tenth of the rate", "mqar", 4),
        ("sdpa, a tenth of the rate", "noisy recall", 4),
        ("forgetting", "noisy recall", 4),
    }


def in_earlier_words(cell: ranking.Cell) -> tuple[str, str, str]:
    """Verdict, number, and difference with interval, as the earlier page wrote them."""
    digits = {"nats": 3, "steps": 0}.get(cell.unit, 1)
    number = f"{cell.value:,.{digits}f} {cell.unit}"
    number = number if math.isfinite(cell.value) else f"{cell.diverged} diverged"
    a, b, c = (
        f"{x:+,.{digits}f}".replace("inf", "∞").replace("+nan", "unknown") for x in cell.difference
    )
    apart = "" if math.isnan(cell.difference[1]) else f"{a} ({b} to {c})"
    return "" if cell.verdict == "baseline" else f"{cell.verdict}: ", number, apart


@has_history
@by_claim
def test_rows_are_of_the_declared_claim(file: Path, tmp_path: Path) -> None:
    opened = open_claim(file, tmp_path)
    _, parts = judge_claim(opened.claim, opened.committed)
    assert opened.undeclared(parts) == ""


@has_history
def test_rows_of_the_ranking_are_of_the_declared_protocol() -> None:
    file = RANKING / "ranking.yaml"
    rows = rows_of(file)
    made = list(ranking.made(read_declared(file, ranking.Protocol), rows))
    assert undeclared(file, made, partial(ranking.of_cell, renamed=rows.renamed)) == ""
    assert len(made) > 200


def lost_lines(lines: list[str], earlier: list[str]) -> list[str]:
    """Rows of earlier contents of a file that it no longer has; not those of earlier formats."""
    return sorted(x for x in {*earlier} - {*lines} if x.startswith('{"overrides"'))


@has_history
@pytest.mark.parametrize("file", [*CLAIMS, RANKING / "ranking.yaml"], ids=lambda f: f.parent.name)
def test_rows_are_only_added(file: Path) -> None:
    rows = file.with_name("rows.jsonl")
    commits = (git(file.parent, "log", "--format=%H", "--", rows.name) or "").split()
    then = [git(file.parent, "show", f"{commit}:./{rows.name}") or "" for commit in commits]
    earlier = [line for text in then for line in text.splitlines()]
    lines = rows.read_text(encoding="utf-8").splitlines()
    assert lost_lines(lines, earlier) == []
    assert lost_lines(lines[1:], lines) == [lines[0]]
    assert lost_lines([lines[0].replace("1", "2"), *lines[1:]], lines) == [lines[0]]
