"""Settings of Sphinx for the pages that docs/build.py collects."""

from importlib.metadata import version as version_of

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

project = "attnlab"
author = copyright = "the attnlab authors"
version = release = version_of("attnlab")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
nb_execution_mode = "off"  # docs/build.py has run the chapters
nb_merge_streams = True
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
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"attnlab {version}"
html_extra_path = ["extra"]
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False


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
