"""The chapters of docs/chapters run, and their prose follows the measurements."""

import re
from pathlib import Path

import pytest
from latex2mathml.converter import convert
from nbclient.exceptions import CellExecutionError

from docs.chapters.build import CHAPTERS, HERE, execute, for_jupyter, for_sphinx, read
from tests.marks import sampled

each_chapter = pytest.mark.parametrize("file", CHAPTERS, ids=lambda file: file.stem)


@pytest.mark.slow
@pytest.mark.parametrize(
    "file", sampled(CHAPTERS, lambda file: file == CHAPTERS[1]), ids=lambda file: file.stem
)
def test_chapter_runs_and_draws(file: Path, tmp_path: Path) -> None:
    notebook = execute(read(file), tmp_path)
    outputs = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
    assert not [o for o in outputs if o.output_type == "stream" and o.name == "stderr"]
    shown = [kind for o in outputs for kind in o.get("data", {})]
    assert "<svg" in str(outputs) or "image/png" in shown
    assert not [
        o for o in outputs if "uint8" in str(o.get("data", {}).get("text/plain"))
    ]  # a picture


@each_chapter
def test_the_site_folds_solutions_and_hides_cells_that_print_sentences(file: Path) -> None:
    before = read(file)
    for cell, shown in zip(before.cells, for_sphinx(before).cells, strict=True):
        tags, site = cell.metadata.get("tags", []), shown.metadata.get("tags", [])
        if cell.cell_type == "markdown":
            folded = "<details><summary>A solution</summary>\n\n" in shown.source
            assert folded == ("solution" in tags) and cell.source in shown.source
        else:
            assert ("remove-input" in site) == ("say" in tags)
            assert ("hide-input" in site) == bool({"setup", "drawing", "check"} & set(tags))
            assert ("hide-cell" in site) == ("solution" in tags)
            assert shown.source == cell.source


@each_chapter
def test_prose_contains_no_measured_number(file: Path) -> None:
    """Numbers with decimals must come from the cell that measured them."""
    assert re.findall(
        r"(?<![\w.])\d+\.\d+(?!\w)", _without_code(_prose(file).partition("## References")[0])
    ) in (
        [],
        ["0.02"],
    )


@each_chapter
def test_every_chapter_has_assertions_and_exercises(file: Path) -> None:
    code = [cell.source for cell in read(file).cells if cell.cell_type == "code"]
    assert sum("assert" in source for source in code) >= 4
    assert 3 <= len(_tagged(file, "solution")) <= 5


def test_a_chapter_that_disagrees_with_the_library_fails(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text("# %%\nfrom attnlab.errors import BadInput\nassert BadInput is None\n")
    with pytest.raises(CellExecutionError, match="AssertionError"):
        execute(read(file), tmp_path)


@each_chapter
def test_a_chapter_has_the_parts_of_a_course(file: Path) -> None:
    prose = _prose(file)
    assert "**You will learn** to\n\n- " in prose and "**Prerequisites:** " in prose
    headings = re.findall(r"^## (.*)$", prose, re.MULTILINE)
    assert headings[-3:] == ["Summary", "Exercises", "References"]
    references = prose.partition("## References")[2]
    assert len(re.findall(r"\]\(https://", references)) >= 3


@each_chapter
def test_every_picture_has_an_alternative_text(file: Path) -> None:
    code = "\n".join(cell.source for cell in read(file).cells if cell.cell_type == "code")
    assert "HTML(" not in code  # `picture` asks for the text
    assert len(re.findall(r"\bImage\(", code)) == len(re.findall(r"\balt=", code))


def test_the_list_names_every_chapter() -> None:
    text = (HERE / "README.md").read_text(encoding="utf-8")
    assert len(CHAPTERS) == 10
    assert all(f"({file.name})" in text for file in CHAPTERS)


@each_chapter
def test_a_chapter_opens_with_a_question_and_a_sentence(file: Path) -> None:
    title, question, quoted, *_ = read(file).cells[0].source.split("\n\n")
    assert title.startswith("# ") and re.match(r"\*\*.+\?\*\*", question)
    assert quoted.startswith("> ")


@each_chapter
def test_the_reader_predicts_before_the_code_runs(file: Path) -> None:
    cells = read(file).cells
    predicts = [n for n, cell in enumerate(cells) if "**Predict.**" in cell.source]
    assert len(predicts) >= 3
    for n in predicts:  # the next thing that the reader sees is code, a picture or a table
        assert cells[n].cell_type == "markdown" and cells[n + 1].cell_type == "code"
    assert "\n".join(cell.source for cell in cells).count("**Explain.**") >= 3


@each_chapter
def test_only_the_subject_is_visible(file: Path) -> None:
    visible = [c.source for c in read(file).cells if c.cell_type == "code" and not c.metadata]
    for source in visible:
        assert not re.search(r"^\s*(import|from|assert)\b", source, re.MULTILINE), source
        assert max(map(len, source.splitlines())) <= 85, source
    drawn = [n for n, c in enumerate(read(file).cells) if "drawing" in c.metadata.get("tags", [])]
    early = [c for c in read(file).cells[: drawn[0]] if c.cell_type == "code" and not c.metadata]
    assert not any(re.search(r"^(def|class) ", cell.source, re.MULTILINE) for cell in early)
    assert "def table(" not in file.read_text(encoding="utf-8")


@each_chapter
def test_formulas_are_typeset(file: Path) -> None:
    """MathML is made of every formula, and no command of LaTeX is left in it."""
    for formula in re.findall(r"\$\$?([^$]+)\$\$?", _prose(file)):
        assert "\\" not in re.sub("<[^>]*>", "", convert(formula.strip()))


def test_jupyter_folds_what_the_site_folds() -> None:
    before = read(CHAPTERS[1])
    for cell, shown in zip(before.cells, for_jupyter(before).cells, strict=True):
        folded = cell.cell_type == "code" and bool(cell.metadata.get("tags"))
        assert ("jupyter" in shown.metadata) == folded
        assert shown.source.startswith("# @title ") == folded


def _tagged(file: Path, tag: str) -> list[str]:
    return [c.source for c in read(file).cells if tag in c.metadata.get("tags", [])]


def _prose(file: Path) -> str:
    cells = read(file).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def _without_code(text: str) -> str:
    """The text without code and URLs, which may contain numbers."""
    return re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)
