"""A report on the terminal, and as one self-contained HTML page."""

from importlib.resources import files

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from attnlab.checkup.findings import FAULT, NOT_APPLICABLE, OK, SUSPICIOUS, Report, causes
from attnlab.errors import printable

_STYLE = {OK: "green", FAULT: "bold red", SUSPICIOUS: "yellow", NOT_APPLICABLE: "dim"}
_LEAST = 1e-8  # shares below this are drawn as nothing


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
    if report.unseen:
        console.print(f"Not looked at: {escape('; '.join(report.unseen))}.", highlight=False)
    some = ", with suspicions" if report.healthy and report.diagnoses else ""
    console.print(f"{verdict}{some}; examined in {report.seconds:.1f} s.")


def page(report: Report) -> str:
    """The page, as a string."""
    from jinja2 import Environment

    template = files("attnlab.checkup").joinpath("report.html.j2").read_text(encoding="utf-8")
    pictures = [
        {"title": title, "svg": draw_map(map_, title)}
        for finding in report.findings
        for title, map_ in finding.maps.items()
    ]
    titles = {name: cause.title for name, cause in causes().items()}
    made = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(template)
    return made.render(report=report, pictures=pictures, titles=titles)


def draw_map(map_: Tensor, title: str) -> str:
    """Draw a (T, T) map of shares from 0 to 1 as SVG text, on a logarithmic scale.

    Blue and orange are those of the explorer: orange entries are above the diagonal, where a
    causal model has nothing. NaN is gray.
    """
    from matplotlib.colors import LogNorm

    from attnlab.plotting.drawing import panels, styled, svg

    values = map_.detach().cpu().double()
    seen = values.clamp_min(_LEAST)
    future = values.new_ones(values.shape).triu(1).bool()
    with styled():
        figure, (axes,) = panels(1, width=5.2, height=3.8)
        axes.set_facecolor("#dddddd")
        for part, colors, name in ((future, "Oranges", "later"), (~future, "Blues", "earlier")):
            shown = seen.masked_fill(~part, float("nan")).numpy()
            drawn = axes.imshow(shown, cmap=colors, norm=LogNorm(_LEAST, 1), interpolation="none")
            bar = figure.colorbar(drawn, shrink=0.8, pad=0.02)
            bar.ax.set_title(name, fontsize=9)
        axes.set(xlabel="key: position that is read", ylabel="query: position that reads")
        axes.grid(visible=False)
        return svg(figure, title)
