"""The HTML page of `attnlab compare --html`: findings, table, figure and settings."""

import html
import json
import re
from collections.abc import Sequence

import pandas as pd

from attnlab.runs.compare import Comparison
from attnlab.runs.compared_runs import ComparedRuns

NAMED_IN_TITLE = 4  # settings in a title
# What the words of the table mean, by column.
WORDS = {
    "val_loss": "the mean loss on validation data over the seeds (n of them, standard deviation "
    "sd). Lower is better.",
    "difference": "the median of the differences between runs with the same seed. A difference of "
    "two means is another number.",
    "low": "with high, an exact 95 % interval of that median.",
    "seeds": "how many seeds are on the side of the median.",
    "verdict": "by counting seeds: 10 of 10 must agree, or 17 of 20, or 31 of 40. “open” means "
    "that the seeds so far do not decide, not that both are equal.",
    "within": "whether the losses are equal within the margin, by the same count.",
    "holm": "whether a verdict stands if the chance that any of them is wrong may be 5 % at most.",
    "keeps": "the share of what attention gives: 0 % is as good as none, in which each position "
    "sees itself alone, 100 % as good as sdpa, ordinary attention.",
}
NATS = (
    "the unit of a loss: the mean of -ln p, where p is the probability that the model gave to "
    "what came next."
)
# What is said of the models, by the column of the runs that has it.
SAID_OF_MODELS = {
    "layers": "model.n_layer",
    "heads": "model.n_head",
    "channels": "model.n_embd",
    "positions": "model.block_size",
    "parameters": "parameters",
    "start of queries and keys": "model.init",
    "data": "corpus.name",
    "steps": "trainer.max_steps",
    "learning rate": "optim.lr",
    "seeds": "seed",
    "attnlab": "versions.attnlab",
    "commit": "git",
    "processor": "processor",
    "instruction set": "instruction_set",
}
MOST_VALUES = 6  # that stand in a list
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
dt { font-weight: 600; float: left; clear: left; margin-right: .6rem; }
dd { margin: 0 0 .3rem; }
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


def comparison_page(found: ComparedRuns) -> str:
    """One HTML page without a script, which loads nothing: all that the terminal says, figure,
    patterns of the first seed, and the settings that differ."""
    title = title_of(found.comparisons)
    parts = [
        found.html_sentences(),
        commands_in_html(found.commands),
        scrollable(breakable(found.html_table())),
        words_of(found),
        scrollable(found.html_figure()),
        what_was_trained(found.comparisons),
        settings_that_differ(found.comparisons),
    ]
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; img-src data:\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>"
    )
    body = f"<h1>{html.escape(title)}</h1>" + "\n".join(filter(None, parts))
    return f'{head}<body data-ready="true">{body}</body></html>\n'


def commands_in_html(said: str) -> str:
    """The commands for more seeds, as a part of the page; empty if there are none."""
    if not said:
        return ""
    few, *commands = said.split("\n")
    typed = "\n".join(command.strip() for command in commands)
    return f"<p>{html.escape(few)}:</p><pre>{html.escape(typed)}</pre>"


def words_of(found: ComparedRuns) -> str:
    """What the words of the table mean, as a part of the page."""
    said = {name: meaning for name, meaning in WORDS.items() if name in found.table}
    if found.comparisons[0].unit == "nats":
        said["nats"] = NATS
    parts = [f"<dt>{html.escape(x)}</dt><dd>{html.escape(y)}</dd>" for x, y in said.items()]
    return f"<dl>{''.join(parts)}</dl>"


def what_was_trained(comparisons: Sequence[Comparison]) -> str:
    """Sizes, steps, rate, data and version of all runs, as a part of the page; empty where none of
    it is known."""
    runs = pd.concat([c.runs for c in comparisons if not c.group.is_damaged])
    known = {}
    for name, column in SAID_OF_MODELS.items():
        if column in runs and runs[column].notna().any():
            known[name] = different_values(runs[column].dropna())
    if "layers" not in known:
        return ""
    rows = [
        f"<tr><th>{html.escape(x)}</th><td>{html.escape(y)}</td></tr>" for x, y in known.items()
    ]
    return f"<h2>What was trained</h2><table>{''.join(rows)}</table>"


def different_values(values: pd.Series) -> str:
    """The values of a column, in a list or, if there are many numbers, from the first to the last
    one."""
    every = sorted({*values})
    if len(every) > MOST_VALUES:
        return f"{every[0]} to {every[-1]}, {len(every)} values"
    return ", ".join(f"{x:g}" if isinstance(x, float) else str(x) for x in every)


def settings_that_differ(comparisons: Sequence[Comparison]) -> str:
    """The settings in which groups differ, as a part of the page; empty if there are none."""
    sound = [c for c in comparisons if not c.group.is_damaged]
    settings = pd.DataFrame({c.label: c.group.settings for c in sound})
    settings = settings.map(lambda x: x if isinstance(x, str) else json.dumps(x))
    settings = settings.replace("NaN", "-")  # not a setting of this variant
    settings = settings[settings.nunique(axis=1) > 1]
    if settings.empty:
        return ""
    with pd.option_context("display.max_colwidth", None):  # by default it cuts long values
        rows = scrollable(breakable(settings.to_html(border=0)))
    return f"<h2>Settings that differ</h2>\n{rows}"


def title_of(comparisons: Sequence[Comparison]) -> str:
    """What is compared with what, such as "none and unscaled, compared with sdpa"."""
    baselines = [c.label for c in comparisons if c.is_baseline]
    others = [c.label for c in comparisons if not c.is_baseline]
    if len(baselines) != 1 or not 0 < len(others) <= NAMED_IN_TITLE:
        return f"{len(comparisons)} settings of attention, compared"
    *first, last = others
    named = f"{', '.join(first)} and {last}" if first else last
    return f"{named}, compared with {baselines[0]}"


def breakable(table: str) -> str:
    """An HTML table whose headings may be broken after a sign, instead of within a word."""

    def with_breaks(heading: re.Match[str]) -> str:
        return re.sub(r"([_=.,/])", r"\1<wbr>", heading[0])

    return re.sub(r"(?<=<th>)[^<]+", with_breaks, table)


def scrollable(content: str) -> str:
    """A part of the page that a narrow screen scrolls."""
    hint = '<p class="hint">Scroll sideways to see all of it →</p>'
    return f'{hint}<div class="scroll" tabindex="0">{content}</div>'
