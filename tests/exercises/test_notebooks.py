"""The notebooks for students run where attnlab is installed, and nbgrader reads their points."""

from copy import deepcopy
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from docs import notebooks
from docs.chapters.build import CHAPTERS, execute, read
from docs.exercises import statements
from tests.marks import LONG, sampled

FILES = notebooks.EXERCISES
each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
WRONG = {
    "scores": "def scores(q, k):\n    return q @ k.mT",
    "softmax": "softmax = lambda scores: scores",
    "attention": "def attention(q, k, v)\n    return v",  # does not compile
    "additive_scores": "def additive_scores(q, k, W, U, v):\n    return 1 / 0",
}


def ids(notebook: NotebookNode) -> dict[str, NotebookNode]:
    """The cells of a notebook that have nbgrader's metadata, by their ids."""
    cells = [cell for cell in notebook.cells if "nbgrader" in cell.metadata]
    return {cell.metadata.nbgrader.grade_id: cell for cell in cells}


def outputs(notebook: NotebookNode, folder: Path) -> str:
    """What a notebook shows, run to its end in spite of errors."""
    cells = execute(notebook, folder, allow_errors=True).cells
    shown = [output for cell in cells for output in cell.get("outputs", [])]
    return "".join(output.text for output in shown if output.output_type == "stream")


def points(notebook: NotebookNode) -> dict[str, float]:
    """The points of an executed notebook, by the rule of nbgrader's `determine_grade`.

    A cell with an error has none, one that ends with a number has so many, others have all.
    """
    earned = {}
    for name, cell in ids(notebook).items():
        if cell.metadata.nbgrader.grade:
            earned[name] = cell.metadata.nbgrader.points
            for output in cell.outputs:
                if output.output_type == "error" or output.get("name") == "stderr":
                    earned[name] = 0.0
                elif output.output_type == "execute_result":
                    earned[name] = float(output.data["text/plain"])
    return earned


@pytest.mark.slow
@pytest.mark.parametrize(
    "file", sampled(FILES, lambda file: file == FILES[0]), ids=lambda file: file.stem
)
def test_a_right_and_an_empty_sheet(file: Path, tmp_path: Path) -> None:
    empty, right = notebooks.student(file), notebooks.solved(file)
    said = outputs(empty, tmp_path)
    count = sum(points(empty).values())
    assert count == 0 and "passed" not in said
    assert said.splitlines()[-1].startswith("0 of 0 right; ")
    said = outputs(right, tmp_path)
    full = [cell.metadata.nbgrader.get("points", 0) for cell in ids(right).values()]
    assert sum(points(right).values()) == sum(full)
    assert said.splitlines()[-1] == f"{sum(full)} of {sum(full)} right; 0 not answered yet"


@pytest.mark.slow
def test_a_half_filled_sheet_with_errors_is_graded_as_meant(tmp_path: Path) -> None:
    sheet, right = notebooks.student(FILES[0]), ids(notebooks.solved(FILES[0]))
    cells = ids(sheet)
    for name in ("same_without_scale", "late_mask_leak"):
        cells[name].source = right[name].source
    for name, source in WRONG.items():
        cells[name].source = source
    said = outputs(sheet, tmp_path)
    earned = points(sheet)
    assert [name for name, value in earned.items() if value] == [
        "same_without_scale_points",
        "late_mask_leak_points",
    ]
    assert said.splitlines()[-1] == "2 of 5 right; 2 not answered yet"
    assert "ZeroDivisionError" in said and "The scores are not scaled" in said


@pytest.mark.slow
def test_verdicts_get_partial_points(tmp_path: Path) -> None:
    sheet = notebooks.student(FILES[3])
    cells = ids(sheet)
    first, second = (row.verdict for row in statements()[:2])
    wrong = next(v for v in ("holds", "open") if v != second)
    answers = f"\nverdicts |= {{1: {first!r}, 2: {wrong!r}, 3: 'perhaps'}}"
    cells["4_statements_answers"].source += answers
    said = outputs(sheet, tmp_path)
    assert points(sheet) == {"4_statements_points": 1.0}
    assert "'perhaps' is not a verdict" in said
    assert said.splitlines()[-1] == f"1 of 3 right; {len(statements()) - 3} not answered yet"


@each_file
def test_a_stub_keeps_the_signature_and_hides_the_solution(file: Path) -> None:
    before = notebooks.solved(file).cells
    after = notebooks.student(file).cells
    for cell, shown in zip(before, after, strict=True):
        assert "SOLUTION" not in shown.source
        if "### BEGIN SOLUTION" in cell.source:
            assert "# your code\n" in shown.source
            first = cell.source.partition("\n")[0]
            assert shown.source.startswith(first)
            assert len(shown.source) < len(cell.source)
        else:
            assert shown.source == cell.source


@each_file
def test_points_are_locked_and_answers_are_not(file: Path) -> None:
    for notebook in (notebooks.student(file), notebooks.solved(file)):
        cells = ids(notebook)
        graded = [cell for cell in cells.values() if cell.metadata.nbgrader.grade]
        answers = [cell for cell in cells.values() if cell.metadata.nbgrader.solution]
        assert graded and len(cells) == len(graded) + len(answers)
        assert all(c.metadata.nbgrader.locked and c.metadata.editable is False for c in graded)
        assert not any(c.metadata.nbgrader.locked or "editable" in c.metadata for c in answers)
        assert all(cell.source.startswith("points(") for cell in graded)


def test_a_chapter_keeps_its_outputs_and_loses_its_solutions() -> None:
    executed = read(CHAPTERS[1])
    for cell in executed.cells:
        if cell.cell_type == "code":
            cell.outputs = [nbformat.v4.new_output("stream", text="shown")]
    before = deepcopy(executed)
    taken, whole = (notebooks.chapter(executed, solutions=s) for s in (False, True))
    assert executed == before
    for cell, tagged in zip(taken.cells[2:], before.cells[1:], strict=True):
        solution = "solution" in tagged.metadata.get("tags", [])
        assert (cell.source == "# your code") == solution
        assert bool(cell.get("outputs")) == (tagged.cell_type == "code" and not solution)
    assert all(
        cell.source.endswith(tagged.source)
        for cell, tagged in zip(whole.cells[2:], before.cells[1:], strict=True)
    )


@pytest.mark.parametrize(
    "faults", [notebooks.SHOWN[::6], pytest.param(notebooks.SHOWN, marks=LONG)]
)
def test_all_notebooks_are_written_and_install_the_same_package(
    faults: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebooks, "SHOWN", faults)
    files = notebooks.write_all(tmp_path, {file.stem: read(file) for file in CHAPTERS})
    assert len(files) == len(FILES) + 1 + len(CHAPTERS)
    for file in files:
        notebook = nbformat.read(file, as_version=4)
        nbformat.validate(notebook)
        (install,) = [c.source for c in notebook.cells if "%pip install" in c.source]
        assert f'%pip install -q "{notebooks.PACKAGE}"' in install
        assert notebook.cells[0].cell_type == "markdown"
        assert "SOLUTION" not in file.read_text()
        assert not any("solution" in cell.metadata.get("tags", []) for cell in notebook.cells)


@pytest.mark.long
def test_solutions_are_files_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebooks, "SHOWN", notebooks.SHOWN[::6])
    files = notebooks.write_all(tmp_path, {}, solutions=True)
    executed = [nbformat.read(f, as_version=4) for f in files if f.parent.name == "solutions"]
    assert len(executed) == len(FILES) + 1
    for notebook in executed:
        full = [cell.metadata.nbgrader.get("points", 0) for cell in ids(notebook).values()]
        assert sum(points(notebook).values()) == sum(full) > 0


def test_links_to_colab_need_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "colab" not in notebooks.links_to("chapter_1_equation")
    monkeypatch.setattr(notebooks, "REPOSITORY", "somebody/attnlab")
    monkeypatch.setattr(notebooks, "COLAB", "https://colab.research.google.com/github/x/")
    assert "/github/x/chapter_1_equation.ipynb" in notebooks.links_to("chapter_1_equation")
