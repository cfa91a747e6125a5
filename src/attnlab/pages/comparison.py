"""The HTML page of `attnlab compare --html`: findings, table, figure and settings."""

import html
import json
from collections.abc import Sequence

import pandas as pd

from attnlab.plotting.drawing import as_svg, styled
from attnlab.runs.compare import Comparison
from attnlab.runs.figure import draw_comparison, findings
from attnlab.runs.report import all_sentences
from attnlab.runs.tables import comparison_table, four_digits, readable_cells

STYLE = """
:root { color-scheme: light dark; }
body { margin: 0 auto; max-width: 80rem; padding: 1rem; font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin-top: 2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem 1.2rem .3rem 0; text-align: left; white-space: nowrap;
         border-bottom: 1px solid #8886; }
th:first-child { position: sticky; left: 0; background: Canvas; }
svg { display: block; max-width: max(100%, 56rem); height: auto; margin-top: 2rem; }
@media (prefers-color-scheme: dark) { svg { filter: invert(.93) hue-rotate(180deg); } }
@media (max-width: 480px) {
  h1 { font-size: 1.2rem; }
  td, th { font-size: .9rem; padding-right: .8rem; }
  th:first-child { min-width: 7rem; max-width: 40vw; white-space: normal;
                   overflow-wrap: anywhere; }
}
"""


def comparison_page(comparisons: Sequence[Comparison], within: float | None = None) -> str:
    """One HTML page without a script, which loads nothing: findings, sentences, table, figure,
    patterns of the first seed, and the settings that differ. BadInput if no run has a loss."""
    title = (findings(comparisons) or [f"{len(comparisons)} settings"])[0]
    sound = [c for c in comparisons if not c.group.is_damaged]
    settings = pd.DataFrame({c.label: c.group.settings for c in sound})
    settings = settings.map(lambda x: x if isinstance(x, str) else json.dumps(x))
    settings = settings.replace("NaN", "-")  # not a setting of this variant
    settings = settings[settings.nunique(axis=1) > 1]
    table = readable_cells(comparison_table(comparisons, within=within))
    rows = table.set_index("run").rename_axis(None)
    parts = [
        *(f"<p>{html.escape(text)}</p>" for text in all_sentences(comparisons, within)),
        scrollable(rows.to_html(na_rep="", border=0, float_format=four_digits)),
        scrollable(picture_of(comparisons)),
    ]
    if len(settings):
        with pd.option_context("display.max_colwidth", None):  # by default it cuts long values
            parts += ["<h2>Settings that differ</h2>", scrollable(settings.to_html(border=0))]
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; img-src data:\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>"
    )
    body = f"<h1>{html.escape(title)}</h1>" + "\n".join(parts)
    return f'{head}<body data-ready="true">{body}</body></html>\n'


def picture_of(comparisons: Sequence[Comparison]) -> str:
    """The figure of comparisons as SVG, for a page; BadInput if no run has a loss."""
    with styled():
        picture = as_svg(draw_comparison(comparisons))
    return picture[picture.index("<svg") :]  # without XML's head


def scrollable(content: str) -> str:
    """A part of the page that a narrow screen scrolls."""
    return f'<div class="scroll">{content}</div>'
