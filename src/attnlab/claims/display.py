"""What `attnlab reproduce` prints."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from attnlab.claims.loading import load_claims
from attnlab.claims.paths import Paths
from attnlab.claims.results import Evidence

COLORS = {"holds": "green", "does not hold": "red", "holds only if": "cyan"}


def list_claims(paths: Paths, names: Sequence[str]) -> None:
    """Print the claims of a directory, or those that are named."""
    rows = _table("claim", "textbook sentence", "predictions")
    for claim in load_claims(paths.experiments, names):
        known = [
            each.name if each.budget == "quick" or paths.budget == "full" else f"({each.name})"
            for each in claim.predictions
        ]
        rows.add_row(claim.name, claim.says, ", ".join(known))
    console = Console(soft_wrap=True)
    console.print(rows)
    console.print(f"In parentheses: not run at --budget {paths.budget}.")


def print_verdicts(family: Sequence[Evidence], paths: Paths, console: Console) -> None:
    """Print the verdicts, one row per prediction, and what failed."""
    rows = _table("claim", "prediction", "verdict", "evidence")
    for evidence in family:
        color = COLORS.get(evidence.verdict, "yellow")
        version = f"version {evidence.version}" if not evidence.exploratory else "exploratory"
        rows.add_row(
            f"[bold]{evidence.claim.name}[/]",
            f"[bold]{evidence.claim.says}[/]",
            f"[bold {color}]{evidence.verdict}[/]",
            f"{evidence.line} ({version})",
        )
        for name, result in evidence.found.items():
            role = result.prediction.role
            told = result.outcome.line if result.outcome else ""
            line = "; ".join(part for part in (told, result.remark) if part)
            rows.add_row("", f"  {name} ({role}): {result.prediction.says}", result.verdict, line)
    console.print(rows)
    for evidence in family:
        for name in evidence.failed:
            told = f"{name}: {evidence.found[name].remark}"
            console.print(f"[bold red]{evidence.claim.name} was not judged[/]: {told}")
    console.print(f"report    {paths.report}\nverdicts  {paths.verdicts}")


def _table(*columns: str) -> Table:
    rows = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        rows.add_column(column, overflow="fold")
    return rows


def duration(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def progress(console: Console, count: int) -> Iterator[Callable[[str], None]]:
    """A bar on a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield lambda text: print(text, flush=True)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        line = bar.add_task("starting", total=count)
        yield lambda text: bar.update(line, advance=1, description=text.partition("] ")[2])
