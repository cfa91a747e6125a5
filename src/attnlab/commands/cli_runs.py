"""The verbs of `attnlab` for many runs: list, plot and compare them, and judge claims."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from attnlab.errors import BadInput, printable

TRUST = (
    "Allow the run to import your own classes, also from the current directory. Only use it for "
    "runs that you trust, because they can run any code."
)
HERE = "by default of this directory, or attnlab's own."
Conf = Annotated[Path | None, Option(help=f"Hydra's configuration, {HERE}")]
Jobs = Annotated[int | None, Option(help="Processes; by default one per core.")]
Minutes = Annotated[float | None, Option(help="Stop after this time; resumable.")]
ShowPlan = Annotated[bool, Option("--plan", help="Show runs and time; run nothing.")]
Trust = Annotated[bool, Option("--trust", help=TRUST)]
AsJson = Annotated[bool, Option("--json", help="Print JSON.")]
AsCsv = Annotated[bool, Option("--csv", help="Print CSV.")]
Baseline = Annotated[
    str | None,
    Option(help="Compare with unscaled, n_head=1, ...; by default with the baseline of the task."),
]
Format = Annotated[
    list[str] | None,
    Option("--format", help="png, svg or pdf; may be repeated; by default png and svg."),
]
Where = Annotated[
    list[str] | None,
    Option(help="Only runs with attn=unscaled, optim.lr<0.01, ...; may be repeated."),
]


def runs(
    directory: Annotated[Path, Argument(help="All runs, a sweep, or a run.")] = Path("outputs"),
    where: Where = None,
    sort: Annotated[str | None, Option(help="Sort by a setting or a metric.")] = None,
    descending: Annotated[bool, Option("--descending", help="Largest first.")] = False,
    columns: Annotated[
        str | None, Option(help="Settings or metrics, comma-separated; costs for all costs.")
    ] = None,
    each: Annotated[bool, Option("--each", help="One row per run, no means.")] = False,
    csv: AsCsv = False,
    json: AsJson = False,
    baseline: Baseline = None,
    parquet: Annotated[Path | None, Option(help="Write all data of each run.")] = None,
) -> None:
    """List runs with their metrics: mean and standard deviation over seeds."""
    from rich.console import Console

    from attnlab.runs import plain_rows, runs_table
    from attnlab.runs.frames import write_parquet
    from attnlab.runs.pairing import pairs
    from attnlab.runs.printing import print_table
    from attnlab.runs.reading import read_runs

    there = read_runs(directory)
    selected = runs_table.select(there, where or [])
    if parquet is not None:
        write_parquet(selected, parquet)
        print(parquet)
        return
    settings = pairs(selected, baseline)
    compared = runs_table.one_by_one(settings) if each else settings
    if sort is not None:
        compared = runs_table.sort(compared, sort, descending=descending)
    keys = runs_table.usual(compared, runs_table.USUAL)
    if columns is not None:
        keys = runs_table.named(selected, columns)
    if csv or json:
        _print_rows(plain_rows.rows(compared, keys, each=each), csv=csv)
        return
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(runs_table.title(selected, str(directory), of=len(there)))
    if selected:
        print_table(compared, keys, each=each)
        if console.is_terminal and sort is None and columns is None:
            console.print(runs_table.HINT.format(folder=directory), style="dim")


def _print_rows(rows: Sequence[dict[str, Any]], *, csv: bool) -> None:
    from attnlab.runs import plain_rows

    print(plain_rows.as_csv(rows).rstrip() if csv else plain_rows.as_json(rows))


def plot(
    directory: Annotated[Path, Argument(help="A sweep: outputs/<name>.")],
    where: Where = None,
    baseline: Baseline = None,
    out: Annotated[Path | None, Option(help="By default plots in the directory.")] = None,
    format_: Format = None,
    width: Annotated[float | None, Option(help="Inches of a printed column, such as 3.3.")] = None,
) -> None:
    """Draw losses, entropy by layer, loss by position, and the comparison with the baseline."""
    from attnlab.runs.comparison_figure import figure_data
    from attnlab.runs.figures import draw
    from attnlab.runs.pairing import pairs
    from attnlab.runs.runs_table import read_selected

    selected, plots = read_selected([directory], where or []), out or directory / "plots"
    if out is None and plots.is_symlink():
        raise BadInput(f"{plots} is a symbolic link; name a directory with --out")
    data, formats = figure_data(pairs(selected, baseline)), format_ or ("png", "svg")
    for file in draw(data, plots, formats=formats, width=width):
        print(printable(str(file)))


def compare(
    targets: Annotated[list[Path], Argument(help="Run directories, or directories of them.")],
    where: Where = None,
    baseline: Baseline = None,
    best: Annotated[
        str | None, Option(help="A setting, such as lr: compare each variant at its best value.")
    ] = None,
    html: Annotated[Path | None, Option(help="Also write a page with curves and heads.")] = None,
    csv: AsCsv = False,
    json: AsJson = False,
    trust: Trust = False,
) -> None:
    """Compare runs with the baseline of the same settings, paired by seed: table and sentences."""
    from attnlab.runs import plain_rows, runs_table
    from attnlab.runs.best_rates import compare_at_best
    from attnlab.runs.pairing import pairs
    from attnlab.runs.printing import print_comparisons, say

    if best is not None and html is not None:
        raise BadInput("--html shows all runs; leave out --best or --html")
    runs = runs_table.read_selected([target.resolve() for target in targets], where or [])
    at_best = compare_at_best(runs, best, baseline) if best is not None else None
    compared = at_best.comparisons if at_best else pairs(runs, baseline)
    if csv or json:
        columns = runs_table.usual(compared, runs_table.COMPARED + runs_table.COSTS)
        rows = plain_rows.rows(compared, columns, each=False)
        if at_best:
            rows = [row | chosen for row, chosen in zip(rows, at_best.rows(), strict=True)]
        _print_rows(rows, csv=csv)
    else:
        print_comparisons(compared)
        if at_best:
            say(str(at_best))
    if html is not None:
        from attnlab.files import write_atomically
        from attnlab.pages import compare as library

        page = library.compare(targets, where=where or [], baseline=baseline, trust=trust)
        write_atomically(html, page.encode())
        if not (csv or json):  # whose output a program reads
            print(printable(str(html)))
