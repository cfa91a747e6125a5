"""Write the notebooks that students open in Jupyter or Colab.

    python scripts/notebooks.py build/notebooks
    python scripts/notebooks.py build/notebooks --solutions     # also the solutions, for teachers

They are the percent scripts of docs/quickstart.py, docs/exercises/sheets and docs/chapters. In an
exercise, the lines from BEGIN SOLUTION to END SOLUTION become a stub; a chapter's folded solutions
are left out.
"""

import os
import re
import sys
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

ROOT = Path(__file__).resolve().parents[1]
SHEETS = sorted(ROOT.glob("docs/exercises/sheets/[0-9]_*.py"))
CHAPTERS = sorted(ROOT.glob("docs/chapters/[0-9]*_*.py"))
QUICKSTART = ROOT / "docs" / "quickstart.py"


def repository() -> str:
    """The address of the repository: `Repository` of [project.urls] in pyproject.toml, or that of
    the variable REPOSITORY, as OWNER/attnlab on GitHub; empty while there is none."""
    if name := os.environ.get("REPOSITORY"):
        return f"https://github.com/{name}"
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    url = re.search(r'^\[project\.urls\]\n(?:\w.*\n)*?Repository = "(.+)"$', text, re.MULTILINE)
    return url[1] if url else ""


def install_cell() -> str:
    """A cell that installs attnlab where it is missing."""
    address = repository()
    if address:
        # attncheck, which attnlab needs, is a directory of the repository.
        install = f'%pip install -q "git+{address}#subdirectory=attncheck" "git+{address}"'
    else:
        clone = "/path/to/attnlab"
        install = f'raise ImportError("install your copy: %pip install {clone}/attncheck {clone}")'
    return f"try:\n    import attnlab\nexcept ImportError:\n    {install}"


GRADER = """
import sys

from attnlab.installation import lab_path

sys.path.append(str(lab_path("docs")))
from exercises import grade, grade_all, grade_statements, points, scored, statements"""
SOLUTION = re.compile(r"^( *)### BEGIN SOLUTION\n.*?### END SOLUTION$", re.DOTALL | re.MULTILINE)


def exercises(file: Path, *, solutions: bool) -> NotebookNode:
    """A sheet, with its solutions or with stubs, and a score at the end."""
    cells = jupytext.read(file, fmt="py:percent").cells
    names = []
    for cell in cells:
        if graded := re.search(r"^points\(grade\((\w+)\)", cell.source, re.MULTILINE):
            names.append(graded[1])
            cell.metadata |= {"editable": False, "deletable": False}
        elif not solutions:
            cell.source = stub(cell.source)
    if names:
        score = f"print(scored(grade_all({names}, globals())))"
        cells.append(new_code_cell(score))
    return notebook([cells[0], new_code_cell(install_cell() + "\n" + GRADER), *cells[1:]])


def stub(source: str) -> str:
    """Replace the solution of a function, or of each method of a class."""
    name = re.search(r"^(?:def|class) (\w+)", source, re.MULTILINE)
    todo = f'raise NotImplementedError("{name[1]} is not done yet")' if name else ""
    return SOLUTION.sub(rf"\1# your code\n\1{todo}", source)


def chapter(file: Path, *, solutions: bool) -> NotebookNode:
    """A chapter, whose helpers are folded, with or without its solutions."""
    cells = jupytext.read(file, fmt="py:percent").cells
    for cell in cells:
        tags = cell.metadata.get("tags", [])
        if not solutions and ("hide-cell" in tags or "<details>" in cell.source):
            cell.cell_type = "code"
            cell.source = "# your code"
            cell.pop("attachments", None)
        elif tags:
            cell.metadata["jupyter"] = {"source_hidden": True}
    return notebook([cells[0], new_code_cell(install_cell()), *cells[1:]])


def quickstart() -> NotebookNode:
    """The quick start, which installs attnlab first."""
    cells = jupytext.read(QUICKSTART, fmt="py:percent").cells
    return notebook([cells[0], new_code_cell(install_cell()), *cells[1:]])


def notebook(cells: list[NotebookNode]) -> NotebookNode:
    """A Python notebook without outputs, with reproducible cell ids."""
    made = [
        new_code_cell(c.source, metadata=c.metadata) if c.cell_type == "code" else c for c in cells
    ]
    for number, cell in enumerate(made):
        cell["id"] = f"cell-{number}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=made, metadata={"kernelspec": kernel})


def write_all(folder: Path, *, solutions: bool = False) -> list[Path]:
    """Write every notebook, those with solutions into a directory of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "quickstart.ipynb"]
    nbformat.write(quickstart(), files[0])
    for with_solutions in (False, True)[: 1 + solutions]:
        into = folder / "solutions" if with_solutions else folder
        into.mkdir(parents=True, exist_ok=True)
        for kind, sources in ((exercises, SHEETS), (chapter, CHAPTERS)):
            for file in sources:
                files.append(into / f"{kind.__name__}_{file.stem}.ipynb")
                nbformat.write(kind(file, solutions=with_solutions), files[-1])
    return files


if __name__ == "__main__":
    print(*write_all(Path(sys.argv[1]), solutions="--solutions" in sys.argv), sep="\n")
