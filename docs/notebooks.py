"""Write the notebooks that students open in Jupyter or Colab.

    python docs/notebooks.py build/notebooks

The exercises are the percent scripts of docs/exercises/sheets; the lines from BEGIN SOLUTION to
END SOLUTION become a stub. "Find the error" is generated from the planted faults of tests/faults.
The chapters are those of docs/chapters, with a cell that installs attnlab.
"""

import ast
import base64
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

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
from docs.chapters.build import CHAPTERS, read  # noqa: E402
from tests.faults import in_gpt  # noqa: E402
from tests.faults.planted import FAULTS, PlantedFault  # noqa: E402

# What pip installs in a notebook: the wheel in the same directory, or the value of this variable,
# such as git+https://github.com/OWNER/attnlab. The workflow of the site sets it.
PACKAGE = os.environ.get("ATTNLAB_PACKAGE") or f"attnlab-{__version__}-py3-none-any.whl"
INSTALL = f"""\
try:
    import attnlab
except ImportError:
    %pip install -q "{PACKAGE}\""""
GRADER = """
import sys

from attnlab.installation import lab_path

sys.path.append(str(lab_path("docs")))
from exercises import {names}"""
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
# Detectors whose headlines describe the observation without naming the mistake.
OBSERVED = {"gradient", "prefixes", "batch", "finite", "past", "same twice"}


def solved(file: Path) -> NotebookNode:
    """The exercises of a file with their solutions."""
    names = "grade_statements, scored, statements" if "statements" in file.name else "grade"
    setup = INSTALL + "\n" + GRADER.format(names=names)
    notebook = read(file)
    return _notebook([notebook.cells[0], new_code_cell(setup), *notebook.cells[1:]])


def student(file: Path) -> NotebookNode:
    """The exercises of a file with stubs instead of solutions."""
    notebook = solved(file)
    for cell in notebook.cells:
        if "exercise" in cell.metadata.get("tags", []):
            cell.source = stub(cell.source)
    return notebook


def stub(source: str) -> str:
    """Replace the solution of a function, or of each method of a class."""
    name = re.search(r"^(?:def|class) (\w+)", source, re.MULTILINE)
    todo = f'raise NotImplementedError("{name[1]} is not done yet")' if name else ""
    return SOLUTION.sub(rf"\1# your code\n\1{todo}", source)


def chapter(file: Path) -> NotebookNode:
    """A chapter that installs attnlab first."""
    cells = read(file).cells
    return _notebook([cells[0], new_code_cell(INSTALL), *cells[1:]])


def find_the_error() -> NotebookNode:
    """A notebook of planted faults: the code, the findings, and a cell that grades a fix."""
    cells = [
        new_markdown_cell(INTRODUCTION),
        new_code_cell(INSTALL + "\n" + GRADER.format(names="grade")),
        new_code_cell(
            "import torch\nimport torch.nn.functional as F\n\n"
            "from attnlab.attention import kernels\n"
            "from attnlab.attention.kernels import manual, mix, scores"
        ),
    ]
    faults = {fault.name: fault for fault in FAULTS}
    for number, planted in enumerate(SHOWN, 1):
        name = f"{'kernel' if planted in in_gpt.KERNELS else 'mask'}_{number}"
        function = (in_gpt.KERNELS | in_gpt.MASKS)[planted]
        cells += [
            new_markdown_cell(f"## Error {number}\n\n{evidence(faults[planted])}"),
            new_code_cell(f"{anonymous(function, name)}\n\n\ngrade({name})"),
        ]
    return _notebook(cells)


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


def write_all(folder: Path) -> list[Path]:
    """Write every notebook and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {f"exercises_{file.stem}": student(file) for file in EXERCISES}
    made["exercises_5_find_the_error"] = find_the_error()
    made |= {f"chapter_{file.stem}": chapter(file) for file in CHAPTERS}
    for name, notebook in made.items():
        nbformat.write(notebook, folder / f"{name}.ipynb")
    return [folder / f"{name}.ipynb" for name in made]


if __name__ == "__main__":
    print(*write_all(Path(sys.argv[1])), sep="\n")
