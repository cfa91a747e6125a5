"""Settings of Sphinx: `make docs` builds the site from the pages where they lie."""

import re
import shutil
from importlib.metadata import version as version_of
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

DOCS = Path(__file__).parent

project = "attnlab"
author = copyright = "the attnlab authors"
version = release = version_of("attnlab")

root_doc = "README"
include_patterns = [
    *("README.md", "CONTRIBUTING.md", "docs/*.md", "docs/*/README.md", "benchmarks/*.md"),
    *("docs/chapters/[0-9]*_*.py", "experiments/README.md", "experiments/*/README.md"),
]
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "force"
nb_execution_in_temp = True  # where it finds no runs of the user
nb_execution_raise_on_error = True
nb_execution_timeout = 900  # seconds a cell
nb_merge_streams = True
nb_output_stderr = "remove"  # a progress bar's warning, which names a path of this machine
nb_render_markdown_format = "myst"  # the default, CommonMark, has no tables
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]
html_math_renderer = "mathml"  # which browsers typeset without a script
default_role = "code"  # of docstrings, which mark code as Markdown does

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_preserve_defaults = True
add_module_names = False

html_theme = "furo"
html_title = f"attnlab {version}"
html_static_path = ["site"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False

NUMBERED = {int(file.stem.split("_")[0]): file.stem for file in DOCS.glob("chapters/[0-9]*_*.py")}
CHAPTERS = [f"docs/chapters/{NUMBERED[number]}" for number in sorted(NUMBERED)]
MENU = {
    "Course": [
        *("docs/chapters/README", *CHAPTERS, "docs/exercises/README"),
        *("docs/reading-results", "docs/textbook", "docs/teach", "docs/handout", "docs/quiz"),
    ],
    "How to": [
        *("docs/variants", "docs/own", "docs/training", "docs/measuring", "docs/tasks"),
        *("docs/outside", "docs/library", "docs/checkup", "docs/json", "docs/agents"),
    ],
    "Evidence": [
        *("docs/claims", "All claims <experiments/README>", "docs/ranking"),
        *("docs/disputes", "docs/checkup-results", "benchmarks/RESULTS"),
    ],
    "Reference": ["docs/api", "docs/decisions", "CONTRIBUTING"],
}


def add_menu(app: Sphinx, name: str, source: list[str]) -> None:
    """Give the front page and the page of all claims their toctrees, which GitHub cannot show."""
    menu = MENU if name == root_doc else {}
    if name == "experiments/README":
        claims = sorted(DOCS.parent.glob("experiments/*/README.md"))
        menu = {"Claims": [f"{file.parent.name}/README" for file in claims]}
    folder = Path(app.srcdir, name).parent
    for caption, listed in menu.items():
        pages = [page for page in listed if "<" in page or list(folder.glob(f"{page}.*"))]
        lines = ["", "```{toctree}", f":caption: {caption}", ":hidden:", "", *pages, "```", ""]
        source[0] += "\n".join(lines)


def keep_places(app: Sphinx, name: str, source: list[str]) -> None:
    """Write links to a place in an HTML page as HTML: MyST would drop the place."""
    source[0] = re.sub(r"\[([^\]]+)\]\((\S+\.html#[\w-]+)\)", r'<a href="\2">\1</a>', source[0])


def unlink_code(app: Sphinx, name: str, source: list[str]) -> None:
    """Make a link to a Python file that is no page plain text: MyST would look for the page."""
    folder = Path(app.srcdir, name).parent

    def replaced(link: re.Match[str]) -> str:
        page = (folder / link[2]).resolve().relative_to(Path(app.srcdir).resolve())
        return link[0] if str(page.with_suffix("")) in app.env.found_docs else f"`{link[1]}`"

    source[0] = re.sub(r"\[([^\]`]+)\]\(([^)\s:]+\.py)\)", replaced, source[0])


def link_files(app: Sphinx, tree: nodes.document, name: str) -> None:
    """A link to an HTML page opens it; one to another file of the repository is plain text."""
    for node in list(tree.findall(addnodes.download_reference)):
        file = (Path(app.srcdir, name).parent / node["reftarget"]).resolve()
        target = file.relative_to(Path(app.srcdir).resolve())
        if target.suffix == ".html":
            Path(app.outdir, target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, Path(app.outdir, target))
            up = "../" * name.count("/")
            node.replace_self(nodes.reference("", "", *node.children, refuri=f"{up}{target}"))
        else:
            node.replace_self(node.children)


def copy_pages(app: Sphinx, error: Exception | None) -> None:
    """Copy docs/*.html, where names of pages of the site become links: a file that is opened alone
    has no such pages. Copy the front page, because a server shows index.html."""
    if error is None:
        for page in DOCS.glob("*.html"):
            text = page.read_text(encoding="utf-8")
            text = re.sub(
                r'<span data-page="([^"]+)">(.*?)</span>', r'<a href="\1.html">\2</a>', text
            )
            Path(app.outdir, "docs", page.name).write_text(text, encoding="utf-8")
        shutil.copy(Path(app.outdir, f"{root_doc}.html"), Path(app.outdir, "index.html"))


def inline(writer: HTML5Translator, node: nodes.math) -> None:
    """Write a formula of a sentence as MathML."""
    writer.body.append(convert(node.astext()))
    raise nodes.SkipNode


def block(writer: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula on a line of its own as MathML."""
    writer.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.connect("source-read", add_menu)
    app.connect("source-read", keep_places)
    app.connect("source-read", unlink_code)
    app.connect("doctree-resolved", link_files)
    app.connect("build-finished", copy_pages)
