"""One comparison: the terminal, CSV, JSON, the page, a notebook and the figure show this."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import pandas as pd

from attnlab.errors import BadInput
from attnlab.runs.best_rate import Best, at_best
from attnlab.runs.compare import Comparison, compare, equal_within, in_question
from attnlab.runs.document import comparison_content, document
from attnlab.runs.report import all_sentences, commands_for_ten, wrapped_for_terminal
from attnlab.runs.tables import (
    as_text,
    comparison_table,
    four_digits,
    readable_cells,
    verdict_in_a_word,
)

if TYPE_CHECKING:  # imported when something is drawn
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class ComparedRuns:
    """A comparison, as table, sentences, picture and data; a notebook shows all of it."""

    comparisons: Sequence[Comparison]
    columns: tuple[str, ...] = ()
    within: float | None = None
    best: Best | None = None  # what `best` chose
    command: Literal["compare", "judge"] = "compare"  # that answers so

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row for each setting, with all digits."""
        return comparison_table(self.comparisons, self.columns, self.within)

    @property
    def sentences(self) -> list[str]:
        """What was found, in words."""
        return [*all_sentences(self.comparisons, self.within), *self.choices]

    @property
    def choices(self) -> list[str]:
        """What `best` chose, in words."""
        return [] if self.best is None else self.best.sentences()

    @property
    def commands(self) -> str:
        """The commands for ten seeds, in lines under a first one that says why; empty if there are
        enough."""
        return commands_for_ten(self.comparisons)

    def figure(self) -> "Figure":
        """Losses by step, differences by seed, and patterns; with `best`, also losses by what was
        tried. Each call returns the same figure. BadInput if no run has a loss."""
        return self._figure

    @cached_property
    def _figure(self) -> "Figure":
        """The figure, which takes seconds for hundreds of runs."""
        from attnlab.plotting.drawing import styled
        from attnlab.runs.figure import draw_comparison

        with styled():
            return draw_comparison(self.comparisons, self.best)

    def html_figure(self) -> str:
        """The figure as SVG, or why there is none."""
        from attnlab.plotting.drawing import as_svg, styled

        try:
            with styled():
                picture = as_svg(self.figure())
        except BadInput as error:  # no run has a loss, or a file of patterns is damaged
            return f"<p>No figure: {html.escape(str(error))}.</p>"
        return picture[picture.index("<svg") :]  # without XML's head

    @property
    def exit_code(self) -> int:
        """What `--exit-code` exits with: 1 if a setting is not better than its baseline; else 3 if
        that is open for one, or there is none beside the baseline; 0 if all are better."""
        found = {self._is_better(c) for c in in_question(self.comparisons)}
        if False in found:
            return 1
        return 3 if None in found or not found else 0

    def _is_better(self, c: Comparison) -> bool | None:
        """Whether a setting is better than its baseline: by more than the margin, if there is one.
        False also for a leak. None if the seeds do not decide it, or it took more steps."""
        verdict = verdict_in_a_word(c)
        by_margin = "unequal"  # without a margin, each difference is large enough
        if self.within is not None:
            by_margin = c.decision(equal_within(self.within)).answer
        if verdict in ("worse", "leak") or by_margin == "equal":
            return False
        if verdict == "better" and by_margin == "unequal" and not c.took_more_steps:
            return True
        return None

    def to_dict(self, exit_code: int = 0) -> dict[str, object]:
        """What the command prints with `--json`."""
        content = comparison_content(self.comparisons, self.columns, self.within, self.best)
        return document(self.command, exit_code, content)

    def text(self) -> str:
        """What the command prints: the table and what it means, for the terminal."""
        return "\n\n".join(filter(None, [as_text(self.table, self.columns), self.in_words()]))

    def in_words(self) -> str:
        """The sentences and the commands, in lines of the terminal."""
        found = [*all_sentences(self.comparisons, self.within), self.commands]
        parts = ["\n".join(filter(None, found)), "\n".join(self.choices)]
        return "\n\n".join(map(wrapped_for_terminal, filter(None, parts)))

    def html_table(self) -> str:
        """The table as HTML."""
        rows = readable_cells(self.table).set_index("run").rename_axis(None)
        return rows.to_html(na_rep="", border=0, float_format=four_digits)

    def html_sentences(self) -> str:
        """The sentences as HTML, a paragraph each."""
        return "\n".join(f"<p>{html.escape(said)}</p>" for said in self.sentences)

    def __repr__(self) -> str:
        return "\n\n".join([as_text(self.table, self.columns), "\n".join(self.sentences)])

    def _repr_html_(self) -> str:
        return "\n".join([self.html_table(), self.html_sentences(), self.html_figure()])


def compared_runs(
    frame: pd.DataFrame,
    *,
    baseline: str | None = None,
    best: str | None = None,
    where: Sequence[str] = (),
    within: float | None = None,
    columns: Sequence[str] = (),
) -> ComparedRuns:
    """What `attnlab compare` with these options says of a frame of runs; BadInput where the
    command ends with an error."""
    chosen = None if best is None else at_best(frame, best)
    if chosen is None:
        compared = compare(frame, baseline, where=where)
    else:
        compared = compare(chosen.runs, baseline, chosen.may_differ, where)
    return ComparedRuns(compared, (*columns,), within, chosen)
