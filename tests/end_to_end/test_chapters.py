"""The chapters of docs/chapters run, and their pages stand alone."""

import re
from pathlib import Path

import pytest
from nbclient.exceptions import CellExecutionError

from docs.chapters.build import CHAPTERS, HERE, execute, index, page, read
from tests.marks import sampled

each_chapter = pytest.mark.parametrize("file", CHAPTERS, ids=lambda file: file.stem)


@pytest.mark.slow
@pytest.mark.parametrize(
    "file", sampled(CHAPTERS, lambda file: file == CHAPTERS[0]), ids=lambda file: file.stem
)
def test_chapter_runs_and_its_page_stands_alone(file: Path, tmp_path: Path) -> None:
    notebook = execute(file, tmp_path)
    outputs = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
    assert not [o for o in outputs if o.output_type == "stream" and o.name == "stderr"]
    html = page(notebook, file.stem)
    assert "<svg" in html or "data:image/png" in html
    assert html.count("<summary>A solution") == len(_tagged(file, "solution"))
    assert stands_alone(html)


@each_chapter
def test_sentences_hold_no_measured_number(file: Path) -> None:
    """Numbers with decimals are put into a sentence by the cell that measured them."""
    prose = [cell.source for cell in read(file).cells if cell.cell_type == "markdown"]
    assert re.findall(r"(?<![\w.])\d+\.\d+(?!\w)", _without_code("\n".join(prose))) in (
        [],
        ["0.02"],
    )


@each_chapter
def test_chapter_asserts_and_asks(file: Path) -> None:
    code = [cell.source for cell in read(file).cells if cell.cell_type == "code"]
    assert sum("assert" in source for source in code) >= 4
    assert 3 <= len(_tagged(file, "solution")) <= 5


def test_a_chapter_that_disagrees_with_the_library_fails(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text("# %%\nfrom attnlab.errors import BadInput\nassert BadInput is None\n")
    with pytest.raises(CellExecutionError, match="AssertionError"):
        execute(file, tmp_path)


def test_index_leads_to_every_page() -> None:
    text = (HERE / "README.md").read_text(encoding="utf-8")
    html = page(index(), "index")
    assert len(CHAPTERS) == 6
    for file in CHAPTERS:
        assert f"({file.name})" in text
        assert f'href="{file.stem}.html"' in html
    assert stands_alone(html)


@pytest.mark.parametrize(
    "html",
    [
        '<img src="https://a.org/x.png">',
        "<script>1</script>",
        '<link rel="stylesheet" href="//a.org/x.css">',
        "<style>@import url(x.css)</style>",
    ],
)
def test_a_page_with_external_references_does_not_stand_alone(html: str) -> None:
    assert not stands_alone(html)


def stands_alone(html: str) -> bool:
    """Whether a page asks for nothing when it is opened."""
    asks = r'<script|<link|<iframe|@import|url\((?!#)|src="(?!data:)'
    return re.search(asks, html) is None


def _tagged(file: Path, tag: str) -> list[str]:
    return [c.source for c in read(file).cells if tag in c.metadata.get("tags", [])]


def _without_code(text: str) -> str:
    return re.sub(r"`[^`]*`", "", text)
