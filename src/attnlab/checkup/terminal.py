"""Print a report to the terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from attnlab.checkup.diagnoses import causes
from attnlab.checkup.findings import FAULT, NOT_APPLICABLE, OK, SUSPICIOUS, Report
from attnlab.errors import printable

_STYLE = {
    OK: "green",
    FAULT: "bold red",
    SUSPICIOUS: "yellow",
    NOT_APPLICABLE: "dim",
}


def text(report: Report) -> str:
    """What `show` prints, in 100 columns without colors."""
    console = Console(width=100, color_system=None)
    with console.capture() as captured:
        show(report, console)
    return captured.get()


def show(report: Report, console: Console | None = None) -> None:
    """Print the findings of all detectors, then one paragraph per diagnosis."""
    console = Console() if console is None else console
    settings = ", ".join(f"{name} {value}" for name, value in report.settings.items())
    console.print(f"[bold]{escape(printable(report.subject))}[/]  ({escape(settings)})")
    table = Table("detector", "result", "what was found", show_edge=False, pad_edge=False)
    table.columns[0].no_wrap = table.columns[1].no_wrap = True
    for finding in report.findings:
        result = f"[{_STYLE[finding.status]}]{finding.status.value}[/]"
        table.add_row(finding.detector, result, escape(finding.headline))
    console.print(table)
    for number, diagnosis in enumerate(report.diagnoses, 1):
        style, title = _STYLE[diagnosis.status], causes()[diagnosis.cause].title
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
