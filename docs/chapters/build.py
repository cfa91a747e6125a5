"""Run the chapters and write them as pages: `make docs`, or this file with an output directory.

A chapter is a jupytext percent script. It runs in an empty directory, separate from your own runs,
and its page works offline and without JavaScript.
"""

import sys
import tempfile
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from nbformat import NotebookNode
from pygments.formatters import HtmlFormatter
from traitlets.config import Config

HERE = Path(__file__).parent
CHAPTERS = sorted(HERE.glob("[0-9]_*.py"))


def read(file: Path) -> NotebookNode:
    """A chapter as a notebook that has not run."""
    return jupytext.read(file, fmt="py:percent")


def execute(file: Path, folder: Path) -> NotebookNode:
    """Run a chapter in a directory.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell fails, for example an assertion.
    """
    notebook = read(file)
    with tempfile.TemporaryDirectory() as sockets:  # not ports, which others can reach
        transport = {"transport": "ipc", "ip": f"{sockets}/kernel"}
        NotebookClient(
            notebook,
            config=Config({"KernelManager": transport}),
            kernel_name="python3",
            resources={"metadata": {"path": str(folder)}},
            startup_timeout=300,  # seconds; a busy machine needs them
            timeout=900,  # seconds per cell
        ).execute()
    return notebook


def title(notebook: NotebookNode) -> str:
    """The heading of the first cell."""
    return str(notebook.cells[0].source).splitlines()[0].removeprefix("# ")


def page(notebook: NotebookNode, name: str) -> str:
    """A notebook as HTML, with links to its neighbors; `name` is the stem of its file."""
    exporter = HTMLExporter(
        template_name="page",
        extra_template_basedirs=[str(HERE)],
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        exclude_anchor_links=True,
    )
    names = ["index", *(file.stem for file in CHAPTERS)]
    place = names.index(name)
    extras = {
        "title": title(notebook),
        "code_style": HtmlFormatter(style="xcode").get_style_defs(".highlight"),
        "before": names[place - 1] if place > 0 else "",
        "after": names[place + 1] if place + 1 < len(names) else "",
    }
    body, _ = exporter.from_notebook_node(notebook, resources=extras)
    return body


def index() -> NotebookNode:
    """README.md as a notebook of one cell, with links to the pages."""
    text = (HERE / "README.md").read_text(encoding="utf-8").replace(".py)", ".html)")
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "html"
    folder.mkdir(parents=True, exist_ok=True)
    for file in CHAPTERS:
        with tempfile.TemporaryDirectory() as empty:
            notebook = execute(file, Path(empty))
        (folder / f"{file.stem}.html").write_text(page(notebook, file.stem), encoding="utf-8")
        print(folder / f"{file.stem}.html", flush=True)
    (folder / "index.html").write_text(page(index(), "index"), encoding="utf-8")
    print(folder / "index.html")


if __name__ == "__main__":
    main()
