"""Prints comparisons in the terminal: the table, the sentences, and what the seeds decide."""

import shutil
import textwrap
from collections.abc import Sequence

from rich.console import Console

from attnlab.errors import printable
from attnlab.runs import runs_table
from attnlab.runs.pairing import Comparison
from attnlab.runs.sentences import alone, sentence, too_few, verdict


def print_comparisons(comparisons: Sequence[Comparison]) -> None:
    """Print the table of a sweep, a sentence for each setting, and what the seeds decide."""
    columns = runs_table.usual(comparisons, runs_table.COMPARED)
    Console(highlight=False).print(runs_table.table(comparisons, columns, each=False))
    baselines = [alone(c.setting) for c in comparisons if c.is_baseline]
    say(*baselines, *map(sentence, comparisons), *map(verdict, comparisons), too_few(comparisons))


def say(*texts: str) -> None:
    """Print texts, wrapped at the width of the terminal; indented lines are commands and stay."""
    width = min(shutil.get_terminal_size().columns, 100)
    for line in (line for text in texts for line in text.splitlines()):
        print(line if line.startswith("  ") else textwrap.fill(printable(line), width))
