"""Read and run the chapters, which are jupytext percent scripts.

A cell's tag says how it is shown: `setup`, `drawing` and `check` (assertions) are
folded away, `say` shows only its output, and `solution` is folded with its output.
"""

import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import jupytext
from nbclient import NotebookClient
from nbformat import NotebookNode
from traitlets.config import Config

HERE = Path(__file__).parent
CHAPTERS = sorted(HERE.glob("[0-9]_*.py"))
# Tag -> how MyST-NB shows the cell, and the title of what is folded.
SHOWN = {
    "setup": ("hide-input", "Imports and helpers"),
    "drawing": ("hide-input", "Code of the picture"),
    "check": ("hide-input", "Checks"),
    "say": ("remove-input", "Code of the text"),
    "solution": ("hide-cell", "A solution"),
}


def read(file: Path) -> NotebookNode:
    """A chapter as a notebook without outputs."""
    return jupytext.read(file, fmt="py:percent")


def execute(notebook: NotebookNode, folder: Path, **options: bool) -> NotebookNode:
    """Run a notebook in a directory, and return it.

    Options are traits of `NotebookClient`.
    Raises nbclient.exceptions.CellExecutionError if a cell fails, for example an
    assertion, unless `allow_errors` is set.
    """
    with (
        tempfile.TemporaryDirectory() as sockets
    ):  # other users could connect to ports
        transport = {"transport": "ipc", "ip": f"{sockets}/kernel"}
        NotebookClient(
            notebook,
            config=Config({"KernelManager": transport}),
            kernel_name="python3",
            resources={"metadata": {"path": str(folder)}},
            startup_timeout=300,  # seconds, for a busy machine
            timeout=900,  # seconds per cell
            **options,
        ).execute()
    return notebook


def execute_empty(notebook: NotebookNode, **options: bool) -> NotebookNode:
    """Run a notebook in an empty directory, where it finds no runs of the user."""
    with tempfile.TemporaryDirectory() as empty:
        return execute(notebook, Path(empty), **options)


def execute_all(
    notebooks: Iterable[NotebookNode], **options: bool
) -> list[NotebookNode]:
    """Run notebooks, two at a time.

    Each has its own process, because the client of a Jupyter kernel needs its own
    event loop.
    """
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        return list(pool.map(partial(execute_empty, **options), notebooks))


def for_sphinx(notebook: NotebookNode) -> NotebookNode:
    """A copy with the tags of MyST-NB, and with folded solutions."""
    shown = deepcopy(notebook)
    shown.metadata["language_info"] = {"name": "python", "pygments_lexer": "python"}
    for cell in shown.cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type == "code":
            cell.metadata["tags"] = [SHOWN[tag][0] for tag in tags]
            for tag in tags:
                cell.metadata["mystnb"] = {"code_prompt_show": SHOWN[tag][1]}
        elif "solution" in tags:
            folded = (
                "<details><summary>A solution</summary>",
                cell.source,
                "</details>",
            )
            cell.source = "\n\n".join(folded)
    return shown


def for_jupyter(notebook: NotebookNode) -> NotebookNode:
    """A copy in which JupyterLab and Colab fold what the site folds."""
    shown = deepcopy(notebook)
    for cell in shown.cells:
        for tag in cell.metadata.get("tags", []):
            if cell.cell_type == "code" and tag in SHOWN:
                cell.source = f"# @title {SHOWN[tag][1]}\n{cell.source}"
                cell.metadata["cellView"] = "form"
                hidden = {"source_hidden": True}
                if tag == "solution":
                    hidden["outputs_hidden"] = True
                cell.metadata["jupyter"] = hidden
    return shown


def slides_of(notebooks: Iterable[NotebookNode]) -> dict[str, str]:
    """The pictures of executed chapters as HTML, by the name in a cell's `slide`."""
    found = {}
    for notebook in notebooks:
        for cell in notebook.cells:
            for output in (
                cell.get("outputs", []) if "slide" in cell.metadata else []
            ):
                data = output.get("data", {})
                if "image/png" in data:
                    url = f"data:image/png;base64,{data['image/png']}"
                    found[cell.metadata["slide"]] = f'<img alt="" src="{url}">'
                elif "text/html" in data:
                    found[cell.metadata["slide"]] = data["text/html"]
    return found
