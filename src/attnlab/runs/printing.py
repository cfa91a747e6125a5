"""Says what comparisons found, in the terminal and in TensorBoard's tab Text."""

import shutil
import textwrap
from collections.abc import Sequence

from rich.console import Console

from attnlab.errors import printable
from attnlab.runs import runs_table
from attnlab.runs.event_files import write_text
from attnlab.runs.pairing import Comparison, Setting
from attnlab.runs.reading import Run
from attnlab.runs.sentences import alone, sentence, too_few, verdict


def print_comparisons(comparisons: Sequence[Comparison]) -> None:
    """Print the table of a sweep, a sentence for each setting, and what the seeds decide."""
    for wanted in (runs_table.COMPARED, runs_table.COSTS):
        if columns := runs_table.usual(comparisons, wanted):
            print_table(comparisons, columns)
    say(note_on_costs(comparisons))
    unpaired = [alone(c.setting) for c in comparisons if not c.pairs]
    say(*unpaired, *map(sentence, comparisons), *map(verdict, comparisons), too_few(comparisons))


def print_table(
    comparisons: Sequence[Comparison], columns: Sequence[str], *, each: bool = False
) -> None:
    """Print the table with as many of the columns as the terminal has room for."""
    console = Console(highlight=False)
    unlimited = console.options.update(width=10**6)
    ways = [(len(columns), 40), *((count, 16) for count in range(len(columns), -1, -1))]
    for count, room in ways:
        table = runs_table.table(comparisons, columns[:count], each=each, room=room)
        if console.measure(table, options=unlimited).minimum <= console.width:
            break
    console.print(table)
    if left_out := ", ".join(columns[count:]):
        say(f"The terminal is too narrow for {left_out}; a wider one shows more.")


def note_on_costs(comparisons: Sequence[Comparison]) -> str:
    """What the columns of `COSTS` count; empty if no run has them."""
    of_runs = [c.setting.first.values for c in comparisons]
    lengths = sorted({str(x["costs.length"]) for x in of_runs if "costs.length" in x})
    if not lengths:
        return ""
    missed = {name for x in of_runs for name in str(x.get("costs.not_counted", "")).split(", ")}
    return (
        f"FLOPs and cache: of attention at T = {' and '.join(lengths)}. FLOPs are those of matrix "
        f"products, forward: of the algorithm, and counted in this implementation. Not counted: "
        f"{', '.join(['elementwise operators', *sorted(missed - {''})])}. The time of a "
        "step also depends on what else the machine did."
    )


def said_of(run: Run, comparisons: Sequence[Comparison]) -> list[str]:
    """What comparisons say of one run, which may be of the baseline, or else its measures."""
    return [sentence(c) for c in comparisons if c.has(run)] or [alone(Setting((run,)))]


def log_sentences(runs: Sequence[Run], comparisons: Sequence[Comparison]) -> None:
    """Write what comparisons say of each run into its TensorBoard events, if it has some."""
    for run in runs:
        text = "\n\n".join(said_of(run, comparisons))
        if text and run.has_result and any(run.folder.glob("events.out.tfevents.*")):
            write_text(run.folder, "result", text, run.step)


def say(*texts: str) -> None:
    """Print texts, wrapped at the width of the terminal; indented lines are commands and stay."""
    width = min(shutil.get_terminal_size().columns, 100)
    for line in (line for text in texts for line in text.splitlines()):
        print(line if line.startswith("  ") else textwrap.fill(printable(line), width))
