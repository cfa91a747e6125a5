"""The page of the ranking: verdicts with numbers, sorted in the browser, complete without it."""

import re
from types import SimpleNamespace

import pytest

from attnlab.ranking import page
from attnlab.ranking.protocol import Contestant
from attnlab.ranking.trials import Course
from attnlab.ranking.verdicts import make_table
from tests.browser import chromium
from tests.ranking.simulated import protocol, run


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
    bad = "a worse one. The paper claims: to be better. Here: worse on text (300), text (1,200)."
    assert f"<b>bad</b>: {bad}" in text and "All models are small GPTs" in text
    assert "state at T" in text and "were measured on p," in text  # the processor
    assert "not run" in text and "mine &lt;b&gt;" in text and "<b>mine <b>" not in text
    assert not re.search(r"(src|href)=.(?!#)", text)  # it loads nothing


def test_the_terminal_table_names_controls_and_errors(ranking, capsys):
    page.print_table(ranking)
    out = capsys.readouterr().out
    assert "verdicts, each by 10 of 10 seeds" in out and "mine <b>" in out


def test_the_markdown_page_has_a_row_for_each_variant_that_was_run(ranking):
    text = page._template("ranking.md.j2").render(page._content(ranking))
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert {line.count("|") for line in rows} == {rows[0].count("|")} and len(rows) == 7


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
        assert browser.messages() == [] and browser.requests() == []
