"""The page of the ranking: verdicts with numbers, sorted in the browser, complete without it."""

import copy
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from attnlab.ranking import page, page_figures
from attnlab.ranking.contestant_costs import costs, reference_processor
from attnlab.ranking.protocol import Contestant, parse
from attnlab.ranking.trials import Course
from attnlab.ranking.verdicts import Cell, make_table
from tests.browser import chromium
from tests.ranking.simulated import PROTOCOL, protocol, row_of, run, settings_of

LAST = ("recall", 400)  # the fourth column of cells


class Invented(SimpleNamespace):
    """A ranking with invented rows."""

    def table(self):
        return make_table(self.protocol, self.rows, self.quick)


@pytest.fixture(scope="module")
def ranking():
    of, rows = protocol(), {}
    own = Contestant("mine <b>", "yours", ("attn=good", "attn._target_=m.A"), "sdpa", own=True)
    of.arms[own.name] = own
    for arm, task in of.cells(quick=False):
        if (arm.name, task.name) != ("bad", "recall"):
            run(Course(of, arm, task, rows))
    return Invented(protocol=of, rows=rows, quick=False, own=own)


def test_the_page_has_every_verdict_and_says_what_was_not_run(ranking):
    text = page.html(ranking)
    assert text.count('class="worse"') == 1 + 4 + 2  # the legend, slow, bad
    assert ">100,000<" in text  # parameters
    bad = "a worse one. The source claims: to be better. Here: worse on text."
    assert f"<b>bad</b>: {bad}" in text and "All models are small GPTs" in text
    assert "state at T" in text and "were measured on p, beside" in text  # the processor
    assert "not run" in text and "mine &lt;b&gt;" in text and "<b>mine <b>" not in text
    assert not re.search(r"(src|href)=.(?!#)", text)  # it loads nothing


def test_a_run_that_two_contestants_share_is_counted_once(ranking):
    trial, row = next(iter(ranking.rows.items()))
    shared = ranking.rows | {replace(trial, overrides=("attn=alias",)): row}
    content = page._content(Invented(**vars(ranking) | {"rows": shared}))
    assert content["runs"] == len(ranking.rows)


def test_quick_always_says_that_the_long_runs_are_left_out(ranking):
    content = {"table": ranking.table(), "left_out": [], "quick": True}
    assert page.notes(content)[-1] == "Left out: 4 n steps."


def test_the_terminal_table_names_controls_and_errors(ranking, capsys):
    page.print_table(ranking)
    out = capsys.readouterr().out
    assert "better and worse need 10 of 10 seeds" in out and "mine <b>" in out


def test_no_word_is_broken_in_a_terminal_of_80_columns(ranking, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    page.print_table(ranking)
    tables = capsys.readouterr().out.partition(" verdicts, ")[0]
    assert "…" not in tables and max(len(line) for line in tables.splitlines()[:-1]) <= 80
    assert all(word in tables for word in ("parameters", "position", "state", "1,200 steps"))


def test_a_verdict_by_steps_and_not_by_accuracy_says_so():
    of = protocol()
    cell = Cell(of.arms["bad"], of.tasks[0], 300, "worse", value=96.3, unit="points", seeds=10)
    for count, said in ((10, ", by steps"), (3, ", 3 by steps"), (0, "")):
        assert page.in_words(replace(cell, by_steps=count)) == f"worse: 96.3 points{said}"
    assert page.in_words(replace(cell, by_steps=3, verdict="open")) == "open: 96.3 points"
    edge = replace(cell, partner_at_edge=True)
    assert page.in_words(edge) == "worse: 96.3 points, partner at edge"


def test_cells_of_two_processors_and_repeated_ones_are_counted(ranking):
    rows = {
        t: row | {"processor": "q"} if "attn=good" in t.overrides else row
        for t, row in ranking.rows.items()
    }
    table = make_table(ranking.protocol, rows)
    assert {c.apart for c in table.judged if c.arm.name in ("good", "mine <b>")} == {10}
    assert {c.apart for c in table.judged if c.arm.control} == {0}
    content = page._content(Invented(**vars(ranking) | {"rows": rows}))
    apart = sum(c.arm.name in ("good", "mine <b>") for c in table.judged)
    said = " ".join(page.notes(content))
    assert f"In {apart} verdicts, runs on different processors are compared." in said

    def solved(trial, task):  # within n steps
        row, late = row_of(trial, task), [0.5] * (settings_of(trial)[1] != 1.8e-3)
        if task.floor is not None:
            row |= {"status": "stopped"}
            row["values"]["curve"]["accuracy"] = [0.5, *late, 1.0, 1.0]
        return row

    rows = {}
    for arm, task in ranking.protocol.cells(quick=False):
        run(Course(ranking.protocol, arm, task, rows), make=solved)
    again = [(c.task.name, c.steps) for c in make_table(ranking.protocol, rows).repeated]
    assert len(again) == len(ranking.protocol.arms) - 1 and set(again) == {("recall", 400)}
    content = page._content(Invented(**vars(ranking) | {"rows": rows}))
    assert f"{len(again)} cells after 4 n steps that repeat those" in " ".join(page.notes(content))


def test_the_page_says_what_ten_seeds_can_resolve(ranking):
    (said,) = [x for x in page.notes(page._content(ranking)) if "9 of 10 tests" in x]
    spread, often, seldom = (float(x) for x in re.findall(r"([\d.]+) nats", said))
    draws = np.random.default_rng(0).normal(0, spread, (20_000, 10))
    for difference, expected in ((often, 0.9), (seldom, 0.1)):
        assert abs((draws + difference > 0).all(1).mean() - expected) < 0.04


def test_the_markdown_page_has_a_row_for_each_variant_that_was_run(ranking):
    text = page._template("ranking.md.j2").render(page._content(ranking))
    rows = [line.count("|") for line in text.splitlines() if line.startswith("| ")]
    assert rows == 7 * [4] + 7 * [4] + 7 * [6]  # after n and 4 n steps, and the costs


def test_a_part_of_the_table_says_what_was_not_run(ranking):
    of = protocol()
    rows = {t: row for t, row in ranking.rows.items() if "attn=sdpa" in t.overrides}
    course = Course(of, of.arms["bad"], of.tasks[0], rows)
    run(course)
    del rows[course.protocol.trial(course.arm, course.task, course.choose(300)[0].rate, 1200, 9)]
    part = Invented(protocol=of, rows=rows, quick=False, own=None)
    unfinished = page._content(part)
    words = [
        "Not run: 1 of 5 variants and controls (good).",
        "Not finished, or not run: text (bad), recall (bad).",
    ]
    assert [x for x in page.notes(unfinished) if x.startswith("Not ")] == words
    run(course)
    content = page._content(part)
    assert "Not finished, or not run: recall (bad)." in page.notes(content)
    verdicts = {c.verdict for c in content["table"].cells.values() if c.arm.name == "bad"}
    assert {"not run"} < verdicts and "not finished" not in verdicts
    assert "<b>good</b>" not in page.html(part)


def test_recall_is_drawn_against_the_state_of_its_own_model(ranking):
    drawn = {}

    def scatter(points, x, y, falls):
        drawn[y] = points

    tasks = tuple(replace(t, name="mqar") if t.name == "recall" else t for t in protocol().tasks)
    of = replace(ranking.protocol, tasks=tasks)
    rows = {
        t: row | {"values": row["values"] | {"costs": row["values"]["costs"] | {"cached": 9}}}
        if "data=mqar" in t.overrides else row
        for t, row in ranking.rows.items()
    }  # fmt: skip
    other = Invented(protocol=of, rows=rows, quick=False, own=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_figures, "_scatter", scatter)
        list(page_figures.figures(other.table(), other))
    assert {x for x, _ in drawn["accuracy: mqar, 400 steps"].values()} == {9.0}
    assert drawn["loss: text, 1,200 steps"].keys() == {"sdpa", "good", "bad", ranking.own.name}


def test_times_on_another_processor_are_marked_and_not_drawn(ranking):
    rows = {
        t: row | {"processor": "q"} if "attn=bad" in t.overrides else row
        for t, row in ranking.rows.items()
    }
    other = Invented(protocol=ranking.protocol, rows=rows, quick=False, own=None)
    content = page._content(other)
    spent = {row["arm"].name: page._cost_words(row["costs"], "p")[-1] for row in content["rows"]}
    assert spent["bad"].endswith("*") and not any("*" in spent[x] for x in spent if x != "bad")
    assert "A star marks times on another processor (q)" in page.html(other)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_figures, "_scatter", lambda points, *_: set(points))
        drawn = dict(page_figures.figures(other.table(), other))
    assert drawn["speed"] == {"sdpa", "good", ranking.own.name}


def test_times_are_compared_on_the_processor_of_most_contestants(ranking):
    """The baseline was timed on two of them."""
    rows = {
        t: row
        if {"attn=sdpa", "optim.lr=0.0056"} <= {*t.overrides}
        else row | {"processor": "q", "cpu_seconds": 3.0}
        for t, row in ranking.rows.items()
    }
    of = ranking.protocol
    assert reference_processor(of, rows) == "q" and reference_processor(of, {}) == ""
    spent = {name: costs(Course(of, arm, of.tasks[0], rows), "q") for name, arm in of.arms.items()}
    assert {x["processor"] for x in spent.values()} == {"q"}
    assert spent["good"]["ms"] == 1000 * 3.0 / 1200


def test_a_contestant_is_also_compared_with_another_one_that_the_protocol_names(ranking):
    table = ranking.table()
    verdicts = [(x.arm.name, x.arm.partner, x.steps, x.verdict) for x in table.pairs]
    assert verdicts == [("good", "bad", 300, "better"), ("good", "bad", 1200, "better")]
    assert len(table.judged) == len(table.pairs) + sum(
        cell.verdict in ("better", "worse", "open") for cell in table.cells.values()
    )
    said = r"Against bad on text \(300 steps\): better, -0\.2\d+ \(-0\.2\d+ to -0\.\d+\)\."
    assert len(re.findall(said, page.html(ranking))) == 1
    protocol = copy.deepcopy(PROTOCOL)
    protocol["arms"]["good"]["pairs"] = {"text": "nobody"}
    with pytest.raises(ValueError, match="good: pairs name no task or arm: nobody"):
        parse(protocol)


def test_rows_hold_after_further_selection_seeds_and_no_other_change():
    now = copy.deepcopy(PROTOCOL)
    text = now["tasks"]["text"]
    text["selection_seeds"] = [1000, 1001, 1002]
    assert page._same(PROTOCOL, now, "good", "text")
    assert not page._same(now, PROTOCOL, "good", "text")  # it chose by a seed that does not count
    text["says"] = "another sentence"
    assert page._same(PROTOCOL, now, "good", "text")
    text["steps"] += 1
    assert not page._same(PROTOCOL, now, "good", "text")
    assert page._same(PROTOCOL, now, "good", "recall")
    assert not page._same(PROTOCOL, now, "new", "recall")


def test_the_line_of_the_best_points_skips_those_that_others_beat():
    points = {"a": (1.0, 0.5), "b": (1.0, 0.9), "c": (2.0, 0.7), "d": (3.0, 0.95)}
    (axes,) = page_figures._scatter(points, "x", "y", falls=False).axes
    (front,) = [line for line in axes.get_lines() if line.get_label() == "_front"]
    assert list(zip(*front.get_data(), strict=True)) == [(1.0, 0.9), (3.0, 0.95)]


@pytest.mark.long
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_a_phone_and_sorts(ranking, tmp_path, width):
    file = tmp_path / "ranking.html"
    file.write_text(page.html(ranking))
    with chromium() as browser:
        for dark in (False, True):
            browser.open(file, width=width, dark=dark)
            assert browser.run("document.documentElement.scrollWidth") <= width
        first = "document.querySelector('#ranking tbody th').textContent.trim()"
        assert browser.run(first) == "sdpa"
        browser.run("document.querySelectorAll('#ranking thead button')[1].click()")
        assert browser.run(first) in ("good", "mine <b>")  # the lowest loss
        cells = ranking.table().cells
        places = {arm: c.order for (arm, task, n), c in cells.items() if (task, n) == LAST}
        names = "[...document.querySelectorAll('#ranking tbody th')].map(x => x.firstChild.data)"
        for sign in (1, -1):  # ascending, then descending; "bad" was not run on it
            browser.run("document.querySelectorAll('#ranking thead button')[4].click()")
            found = [places[name] for name in browser.run(names)]
            assert len(found) == 6 and math.isnan(found[-1])
            assert [sign * x for x in found[:-1]] == sorted(sign * x for x in found[:-1])
            assert found[0] != found[-2]
        assert browser.messages() == [] and browser.requests() == []
