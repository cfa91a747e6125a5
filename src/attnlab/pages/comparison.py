"""The HTML page of `attnlab compare --html`: findings, table, figure and settings."""

import html
import json
import re
from collections.abc import Sequence

import pandas as pd

from attnlab.plotting.drawing import as_svg, styled
from attnlab.runs.compare import Comparison
from attnlab.runs.figure import draw_comparison
from attnlab.runs.report import all_sentences, commands_for_ten
from attnlab.runs.tables import comparison_table, four_digits, readable_cells

NAMED_IN_TITLE = 4  # settings in a title
LEGEND = (
    "val_loss is the mean over the seeds (n of them, standard deviation sd), difference the "
    "median of the differences between runs with the same seed. A difference of two means is "
    "another number. A verdict of “open” means that the seeds so far do not decide."
)
STYLE = """
:root { color-scheme: light dark; }
body { margin: 0 auto; max-width: 80rem; padding: 1rem; font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin-top: 2rem; }
/* A shadow at an edge says that there is more; the ends of the content cover it. */
.scroll { overflow-x: auto;
          background: linear-gradient(to right, Canvas 2rem, #0000) local,
                      linear-gradient(to left, Canvas 2rem, #0000) 100% 0 local,
                      linear-gradient(to right, #8888, #0000) 0 0 / .8rem 100% scroll,
                      linear-gradient(to left, #8888, #0000) 100% 0 / .8rem 100% scroll;
          background-repeat: no-repeat; }
.hint { display: none; margin: 1.5rem 0 0; font-size: .9rem; opacity: .75; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0 0 1rem; padding: .5rem .8rem;
      background: #8882; border-radius: .4rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem 1.2rem .3rem 0; text-align: left; white-space: nowrap;
         border-bottom: 1px solid #8886; }
th:first-child { position: sticky; left: 0; background: Canvas; }
svg { display: block; max-width: max(100%, 56rem); height: auto; margin-top: 2rem; }
@media (prefers-color-scheme: dark) { svg { filter: invert(.93) hue-rotate(180deg); } }
@media (max-width: 480px) {
  h1 { font-size: 1.2rem; }
  .hint { display: block; }
  td, th { font-size: .9rem; padding-right: .8rem; }
  th:first-child { min-width: 7rem; max-width: 40vw; white-space: normal;
                   overflow-wrap: anywhere; }
}
"""


def comparison_page(
    comparisons: Sequence[Comparison],
    columns: Sequence[str] = (),
    within: float | None = None,
    chosen: str = "",
) -> str:
    """One HTML page without a script, which loads nothing: sentences, commands for more seeds,
    table, figure, patterns of the first seed, and the settings that differ. BadInput if no run has
    a loss. Columns of the table and `within` are those of `comparison_table`; `chosen` are the
    lines of `at_best`."""
    title = title_of(comparisons)
    sound = [c for c in comparisons if not c.group.is_damaged]
    settings = pd.DataFrame({c.label: c.group.settings for c in sound})
    settings = settings.map(lambda x: x if isinstance(x, str) else json.dumps(x))
    settings = settings.replace("NaN", "-")  # not a setting of this variant
    settings = settings[settings.nunique(axis=1) > 1]
    table = readable_cells(comparison_table(comparisons, columns, within))
    rows = table.set_index("run").rename_axis(None)
    parts = [f"<p>{html.escape(text)}</p>" for text in all_sentences(comparisons, within)]
    parts += [f"<p>{html.escape(line)}</p>" for line in chosen.split("\n") if line]
    few, *commands = commands_for_ten(comparisons).split("\n")
    if few:
        typed = "\n".join(command.strip() for command in commands)
        parts.append(f"<p>{html.escape(few)}:</p><pre>{html.escape(typed)}</pre>")
    parts += [
        scrollable(breakable(rows.to_html(na_rep="", border=0, float_format=four_digits))),
        f"<p>{html.escape(LEGEND)}</p>",
        scrollable(picture_of(comparisons)),
    ]
    if len(settings):
        with pd.option_context("display.max_colwidth", None):  # by default it cuts long values
            parts += [
                "<h2>Settings that differ</h2>",
                scrollable(breakable(settings.to_html(border=0))),
            ]
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; img-src data:\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>"
    )
    body = f"<h1>{html.escape(title)}</h1>" + "\n".join(parts)
    return f'{head}<body data-ready="true">{body}</body></html>\n'


def title_of(comparisons: Sequence[Comparison]) -> str:
    """What is compared with what, such as "none and unscaled, compared with sdpa"."""
    baselines = [c.label for c in comparisons if c.is_baseline]
    others = [c.label for c in comparisons if not c.is_baseline]
    if len(baselines) != 1 or not 0 < len(others) <= NAMED_IN_TITLE:
        return f"{len(comparisons)} settings of attention, compared"
    *first, last = others
    named = f"{', '.join(first)} and {last}" if first else last
    return f"{named}, compared with {baselines[0]}"


def picture_of(comparisons: Sequence[Comparison]) -> str:
    """The figure of comparisons as SVG, for a page; BadInput if no run has a loss."""
    with styled():
        picture = as_svg(draw_comparison(comparisons))
    return picture[picture.index("<svg") :]  # without XML's head


def breakable(table: str) -> str:
    """An HTML table whose headings may be broken after a sign, instead of within a word."""

    def with_breaks(heading: re.Match[str]) -> str:
        return re.sub(r"([_=.,/])", r"\1<wbr>", heading[0])

    return re.sub(r"(?<=<th>)[^<]+", with_breaks, table)


def scrollable(content: str) -> str:
    """A part of the page that a narrow screen scrolls."""
    hint = '<p class="hint">Scroll sideways to see all of it →</p>'
    return f'{hint}<div class="scroll" tabindex="0">{content}</div>'
