"""Print a report to the terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from attnlab.checkup.diagnoses import CAUSES
from attnlab.checkup.findings import Report, Status
from attnlab.errors import printable

_STYLE = {
    Status.OK: "green",
    Status.FAULT: "bold red",
    Status.SUSPICIOUS: "yellow",
    Status.NOT_APPLICABLE: "dim",
}


def show(report: Report, console: Console | None = None) -> None:
    """Print the findings of all detectors, then one paragraph per diagnosis."""
    console = Console() if console is None else console
    settings = ", ".join(f"{name} {value}" for name, value in report.settings.items())
    console.print(f"[bold]{escape(printable(report.subject))}[/]  ({escape(settings)})")
    console.print(_table(report))
    for number, diagnosis in enumerate(report.diagnoses, 1):
        style, title = _STYLE[diagnosis.status], CAUSES[diagnosis.cause].title
        console.print(f"\n[{style}]{number}. {title}[/]: {escape(diagnosis.headline)}")
        for sentence in diagnosis.evidence[:4]:
            console.print(f"   evidence: {escape(sentence)}", highlight=False)
        console.print(f"   [bold]fix:[/] {escape(diagnosis.advice)}", highlight=False)
    verdict = "[bold green]Healthy[/]" if report.healthy else "[bold red]Faulty[/]"
    if report.error:
        verdict = "[bold red]The examination failed[/]"
        console.print(f"\n{escape(report.error)}", highlight=False, soft_wrap=True)
    some = ", with suspicions" if report.healthy and report.diagnoses else ""
    console.print(f"{verdict}{some}; examined in {report.seconds:.1f} s.")


def _table(report: Report) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("detector", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("what was found")
    for finding in report.findings:
        style = _STYLE[finding.status]
        result = f"[{style}]{finding.status.value}[/]"
        table.add_row(finding.detector, result, escape(finding.headline))
    return table
