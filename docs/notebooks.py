"""Write the notebooks that students open in Jupyter or Colab.

    python docs/notebooks.py build/notebooks
    python docs/notebooks.py build/notebooks --solutions

The exercises are the percent scripts of docs/exercises/sheets; the lines from BEGIN SOLUTION to
END SOLUTION become a stub. "Find the error" is generated from the planted faults of tests/faults.
The chapters are those of docs/chapters, executed, with a cell that installs attnlab. Solutions
are left out, and with --solutions also written to a directory of their own, executed.
"""

import ast
import base64
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from attnlab import __version__  # noqa: E402
from attnlab.checkup import checkup  # noqa: E402
from attnlab.checkup.checkup_report import Report  # noqa: E402
from attnlab.checkup.findings import Status  # noqa: E402
from attnlab.plotting.drawing import panels, pixels, png, styled  # noqa: E402
from docs.chapters.build import CHAPTERS, execute_all, for_jupyter, read  # noqa: E402
from docs.exercises import statements  # noqa: E402
from tests.faults import in_gpt  # noqa: E402
from tests.faults.planted import FAULTS, PlantedFault  # noqa: E402

# OWNER/attnlab on GitHub: notebooks then install from there, and pages have links to Colab, which
# opens notebooks from the branch `notebooks`. Without it, they install the wheel beside them.
REPOSITORY = os.environ.get("ATTNLAB_REPOSITORY", "")
WHEEL = f"attnlab-{__version__}-py3-none-any.whl"
PACKAGE = f"git+https://github.com/{REPOSITORY}" if REPOSITORY else WHEEL
COLAB = f"https://colab.research.google.com/github/{REPOSITORY}/blob/notebooks/"
INSTALL = f"""\
try:
    import attnlab
except ImportError:
    %pip install -q "{PACKAGE}\""""
GRADER = """
import sys

from attnlab.installation import lab_path

sys.path.append(str(lab_path("docs")))
from exercises import grade, grade_all, grade_statements, points, scored, statements"""
EXERCISES = sorted(ROOT.glob("docs/exercises/sheets/[0-9]_*.py"))
SOLUTION = re.compile(r"^( *)### BEGIN SOLUTION\n.*?### END SOLUTION$", re.DOTALL | re.MULTILINE)
# The planted faults that a reader can find in the code, by their names in tests/faults.
SHOWN = (
    *("double_scale", "zero_fill", "softmax_over_queries", "post_softmax_mask", "added_bool"),
    *("naive_softmax", "unmerged_heads", "dropout_on", "next_value"),
    *("flipped", "peek_one", "window", "causal_up_to_32"),
)
INTRODUCTION = """\
# Exercises 5: find the error

Each function has one mistake. attnlab's tests contain all of these mistakes, and many were found
in published code. The text above each function lists the findings of the checkup in a GPT with two
layers that uses it. Fix the function and grade it; `grade(..., hint=True)` names the mistake.

A kernel takes q, k, v (B, H, T, D), a mask (T, T) in which True means "may attend", a scale that
multiplies the scores, and a dropout probability, which is 0 in evaluation. A mask is a function
of the positions of a query and a key.

Prerequisites: chapters 3 and 4."""
# A correct kernel and mask, from the argument list on.
REPAIRED = {
    "kernel": """(q, k, v, *, mask, scale, dropout):
    s = scores(q, k, scale=scale).masked_fill(~mask, float("-inf"))
    return mix(s.softmax(-1), v, dropout=dropout)""",
    "mask": "(query, key):\n    return key <= query",
}
# Detectors whose headlines describe the observation without naming the mistake.
OBSERVED = {"gradient", "prefixes", "batch", "finite", "past", "same twice"}


def solved(file: Path) -> NotebookNode:
    """The exercises of a file with their solutions."""
    cells = read(file).cells
    return _sheet(file.stem, cells[0], cells[1:])


def student(file: Path) -> NotebookNode:
    """The exercises of a file with stubs instead of solutions."""
    notebook = solved(file)
    for cell in notebook.cells:
        if "exercise" in cell.metadata.get("tags", []):
            cell.source = stub(cell.source)
    return notebook


def _sheet(sheet: str, title: NotebookNode, cells: list[NotebookNode]) -> NotebookNode:
    """A notebook of exercises with a score at the end, and with nbgrader's metadata."""
    names = []
    for cell in cells:
        graded = re.search(r"^points\((?:grade\((\w+)\)|\*)", cell.source, re.MULTILINE)
        if graded:
            names += [graded[1]] if graded[1] else []
            worth = 1 if graded[1] else len(statements())
            role = {"grade": True, "locked": True, "points": worth}
            cell.metadata |= {"editable": False, "deletable": False}
            cell.metadata["nbgrader"] = _nbgrader(f"{graded[1] or sheet}_points", **role)
        elif "### BEGIN SOLUTION" in cell.source:
            defined = re.search(r"^(?:def|class) (\w+)", cell.source, re.MULTILINE)
            name = defined[1] if defined else f"{sheet}_answers"
            cell.metadata["nbgrader"] = _nbgrader(name, solution=True)
    if names:
        listed = "\n".join(textwrap.wrap(" ".join(names), 80))
        score = f'print(scored(grade_all("""\n{listed}\n""".split(), globals())))'
        cells = [*cells, new_markdown_cell("## Your score"), new_code_cell(score)]
    return _notebook([title, new_code_cell(INSTALL + "\n" + GRADER), *cells])


def _nbgrader(name: str, **role: bool | int) -> dict[str, Any]:
    plain = {"grade": False, "solution": False, "locked": False, "task": False}
    return {"schema_version": 3, "cell_type": "code", "grade_id": name} | plain | role


def stub(source: str) -> str:
    """Replace the solution of a function, or of each method of a class."""
    name = re.search(r"^(?:def|class) (\w+)", source, re.MULTILINE)
    todo = f'raise NotImplementedError("{name[1]} is not done yet")' if name else ""
    return SOLUTION.sub(rf"\1# your code\n\1{todo}", source)


def chapter(executed: NotebookNode, *, solutions: bool = False) -> NotebookNode:
    """A chapter, folded, that installs attnlab first; without solutions, unless they are asked
    for."""
    cells = []
    for cell in for_jupyter(executed).cells:
        if "solution" in cell.metadata.get("tags", []) and not solutions:
            cell = new_code_cell("# your code")
        cells.append(cell)
    return _notebook([cells[0], new_code_cell(INSTALL), *cells[1:]])


def find_the_error(*, solutions: bool = False) -> NotebookNode:
    """A notebook of planted faults: the code, the findings, and a cell that grades a fix."""
    cells = [
        new_code_cell(
            "import torch\nimport torch.nn.functional as F\n\n"
            "from attnlab.attention import kernels\n"
            "from attnlab.attention.kernels import manual, mix, scores"
        ),
    ]
    faults = {fault.name: fault for fault in FAULTS}
    for number, planted in enumerate(SHOWN, 1):
        kind = "kernel" if planted in in_gpt.KERNELS else "mask"
        wrong = anonymous((in_gpt.KERNELS | in_gpt.MASKS)[planted], f"{kind}_{number}")
        right = f"def {kind}_{number}{REPAIRED[kind]}"
        cells += [
            new_markdown_cell(f"## Error {number}\n\n{evidence(faults[planted])}"),
            new_code_cell(right if solutions else wrong),
            new_code_cell(f"points(grade({kind}_{number}))"),
        ]
    return _sheet("5_find_the_error", new_markdown_cell(INTRODUCTION), cells)


def anonymous(function: Callable[..., Tensor], name: str) -> str:
    """The source of a function under another name, without the comments that name its mistake."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(tree, ast.FunctionDef)
    tree.name, tree.returns = name, None
    tree.body = [line for line in tree.body if not _is_docstring(line)]
    for argument in [*tree.args.args, *tree.args.kwonlyargs]:
        argument.annotation = None
    return ast.unparse(tree)


def evidence(fault: PlantedFault) -> str:
    """The findings of the checkup in a model with a fault, without naming the mistake."""
    report = checkup(fault.build("ours"), vocab_size=29, block_size=fault.block_size)
    wrong = [f for f in report.findings if f.status in (Status.FAULT, Status.SUSPICIOUS)]
    tests = ", ".join(dict.fromkeys(f.detector for f in wrong))
    seen = [f.headline.partition(":")[0] for f in wrong if f.detector in OBSERVED]
    seen += [e for f in wrong if f.detector == "future" for e in f.evidence]
    seen += re.findall(r"rows sum to [\d.e-]+ to [\d.e-]+", " ".join(f.headline for f in wrong))[
        :1
    ]
    lines = [
        f"Tests that failed: {tests}.",
        *dict.fromkeys(f"{s[0].upper()}{s[1:]}." for s in seen),
    ]
    return "\n".join(f"- {line}" for line in lines) + _map(report)


def _map(report: Report) -> str:
    """A picture of which position reads which token, if a later token is read."""
    found = [f for f in report.findings if f.detector == "future" and f.status is Status.FAULT]
    if not found:
        return ""
    (reads,) = found[0].maps.values()
    with styled():
        figure, (place,) = panels(1, width=3.6, height=3.2)
        place.imshow(reads.float().clamp(0, 1).sqrt(), cmap="Blues", vmin=0, vmax=1)
        place.set(xlabel="token that was changed", ylabel="position of the logits")
        place.grid(False)
        picture = base64.b64encode(png(pixels(figure))).decode()
    alt = "Which position reads which token; above the diagonal is the future"
    return f"\n\n![{alt}](data:image/png;base64,{picture})"


def _is_docstring(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


def _notebook(cells: list[NotebookNode]) -> NotebookNode:
    """A Python notebook with reproducible cell ids."""
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})


def write_all(
    folder: Path, chapters: Mapping[str, NotebookNode], *, solutions: bool = False
) -> list[Path]:
    """Write every notebook and return the files, those with solutions last.

    Args:
        chapters: name -> executed chapter.
        solutions: also write the directory `solutions`, with executed solutions.
    """
    made = {f"exercises_{file.stem}": student(file) for file in EXERCISES}
    made["exercises_5_find_the_error"] = find_the_error()
    made |= {f"chapter_{name}": chapter(executed) for name, executed in chapters.items()}
    if solutions:
        sheets = {f"exercises_{file.stem}": solved(file) for file in EXERCISES}
        sheets["exercises_5_find_the_error"] = find_the_error(solutions=True)
        run = dict(zip(sheets, execute_all(sheets.values()), strict=True))
        run |= {f"chapter_{n}": chapter(c, solutions=True) for n, c in chapters.items()}
        made |= {f"solutions/{name}": notebook for name, notebook in run.items()}
    for name, notebook in made.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, folder / f"{name}.ipynb")
    return [folder / f"{name}.ipynb" for name in made]


def links_to(name: str) -> str:
    """Links to a notebook of the site, from a page in one of its directories."""
    links = [f'<a href="../notebooks/{name}.ipynb" download>Download this notebook</a>']
    if REPOSITORY:
        links.append(f'<a href="{COLAB}{name}.ipynb">Open in Colab</a>')
    return " · ".join(links)


if __name__ == "__main__":
    executed = execute_all(read(file) for file in CHAPTERS)
    named = {file.stem: notebook for file, notebook in zip(CHAPTERS, executed, strict=True)}
    print(*write_all(Path(sys.argv[1]), named, solutions="--solutions" in sys.argv), sep="\n")
