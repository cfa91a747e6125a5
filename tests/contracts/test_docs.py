"""The pages of docs/ name files and tests that exist."""

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGES = sorted((ROOT / "docs").rglob("*.md"))
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@each_page
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


@each_page
def test_named_files_and_tests_exist(page: Path) -> None:
    named = re.findall(
        r"\b((?:tests|experiments|conf|benchmarks|src)/[\w/.-]+\.\w+)(?:::(\w+))?",
        re.sub(r"\bb308e5e:\S+", "", page.read_text(encoding="utf-8")),  # in the history
    )
    # docs/own.md, a claim `mine` and renamed.yaml are about files of the reader's own.
    own = [
        pair for pair in named if not re.search("/mine|renamed", pair[0]) and page.name != "own.md"
    ]
    missing = [
        "::".join(filter(None, (file, test)))
        for file, test in own
        if not (ROOT / file).is_file()
        or (test and f"def {test}(" not in (ROOT / file).read_text(encoding="utf-8"))
    ]
    assert missing == []


def test_every_variant_has_a_row_with_its_question() -> None:
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs/variants.md").read_text(), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == {file.stem for file in (ROOT / "conf" / "attn").glob("*.yaml")}


def test_the_readme_is_short_and_its_links_lead_to_files() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)|(?:src|srcset)=\"([^\"]+)\"", text)
    assert [link for pair in links if not (ROOT / (link := "".join(pair))).exists()] == []
    assert len(text.splitlines()) <= 150
