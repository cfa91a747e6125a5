"""The slides: every figure is drawn by a chapter, and the file loads nothing."""

import re
from pathlib import Path

import pytest

from docs.chapters.build import CHAPTERS, read, slides_of
from docs.slides import FIGURE, TEXT, write_slides
from tests.browser import chromium

FIGURES = FIGURE.findall(TEXT.read_text(encoding="utf-8"))
PICTURES = {name: f"<svg><title>{name}</title></svg>" for name in FIGURES}


def test_every_figure_is_drawn_by_one_chapter() -> None:
    cells = [cell for file in CHAPTERS for cell in read(file).cells]
    named = [cell.metadata["slide"] for cell in cells if "slide" in cell.metadata]
    assert len(named) == len(set(named)) and set(FIGURES) <= set(named)


def test_pictures_come_from_the_outputs_of_their_cells() -> None:
    notebook = read(CHAPTERS[1])
    (cell,) = (cell for cell in notebook.cells if "slide" in cell.metadata)
    cell.outputs = [{"data": {"text/html": "<svg></svg>", "text/plain": "x"}}]
    assert slides_of([notebook]) == {cell.metadata["slide"]: "<svg></svg>"}


def test_slides_are_one_file_with_typeset_formulas(tmp_path: Path) -> None:
    write_slides(tmp_path / "slides.html", PICTURES)
    page = (tmp_path / "slides.html").read_text(encoding="utf-8")
    assert all(page.count(picture) == 1 for picture in PICTURES.values())
    assert page.count("<section ") == TEXT.read_text(encoding="utf-8").count("\n---\n") + 1
    assert page.count("<math ") > 5 and "<table>" in page and "\\frac" not in page
    assert not re.search(r"(src|href)=\"(?!#)", page) and "@" not in re.sub("@media", "", page)
    with pytest.raises(KeyError):
        write_slides(tmp_path / "slides.html", {"bars": ""})


@pytest.mark.long
@pytest.mark.parametrize("width", [390, 1280])
def test_keys_turn_the_pages(width: int, tmp_path: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    write_slides(tmp_path / "slides.html", PICTURES)
    with chromium() as browser:
        browser.open(tmp_path / "slides.html", width=width)
        browser.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT)
        assert browser.run("location.hash") == "#2"
        browser.press(Keys.END)
        assert browser.run("location.hash") == f"#{browser.run('slides.length')}"
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.messages() == [] and browser.requests() == []
