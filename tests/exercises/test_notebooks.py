"""The notebooks for students run where attnlab is installed."""

from pathlib import Path

import jupytext
import nbformat
import pytest
from nbformat import NotebookNode

from docs import notebooks
from docs.chapters.build import CHAPTERS, execute
from tests.marks import LONG, sampled

FILES = notebooks.EXERCISES
each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def outputs(notebook: NotebookNode, folder: Path) -> list[str]:
    """Run a notebook and return what its cells show, as text."""
    script = folder / "notebook.py"
    jupytext.write(notebook, script, fmt="py:percent")
    cells = [cell for cell in execute(script, folder).cells if cell.cell_type == "code"]
    shown = [output for cell in cells for output in cell.outputs]
    return [o.data["text/plain"] if "data" in o else o.text for o in shown]


@pytest.mark.slow
@pytest.mark.parametrize(
    "file", sampled(FILES, lambda file: file == FILES[0]), ids=lambda file: file.stem
)
def test_stubs_run_and_solutions_pass(file: Path, tmp_path: Path) -> None:
    stubs = outputs(notebooks.student(file), tmp_path)
    assert "not done yet" in stubs[-1] and "passed" not in "".join(stubs)
    if "statements" not in file.name:
        assert all(text.endswith(": not done yet") for text in stubs)
        right = outputs(notebooks.solved(file), tmp_path)
        assert len(right) == len(stubs) and all(text.endswith(": passed") for text in right)


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


@pytest.mark.parametrize(
    "faults", [notebooks.SHOWN[::6], pytest.param(notebooks.SHOWN, marks=LONG)]
)
def test_all_notebooks_are_written_and_install_the_same_package(
    faults: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebooks, "SHOWN", faults)
    files = notebooks.write_all(tmp_path)
    assert len(files) == len(FILES) + 1 + len(CHAPTERS)
    for file in files:
        notebook = nbformat.read(file, as_version=4)
        nbformat.validate(notebook)
        (install,) = [c.source for c in notebook.cells if "%pip install" in c.source]
        assert f'%pip install -q "{notebooks.PACKAGE}"' in install
        assert notebook.cells[0].cell_type == "markdown" and not any(
            cell.get("outputs") for cell in notebook.cells
        )
