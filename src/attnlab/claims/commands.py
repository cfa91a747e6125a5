"""What `attnlab reproduce` does with its arguments."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from attnlab.claims.claim import BUDGETS
from attnlab.claims.discover import discover
from attnlab.claims.paths import Places
from attnlab.errors import BadInput


def places(experiments: Path, conf: Path, outputs: Path, budget: str) -> Places:
    """The folders.

    Raises:
        BadInput: the budget is unknown, or a folder is not there.
    """
    if budget not in BUDGETS:
        raise BadInput(f"--budget {budget} is unknown; it must be {' or '.join(BUDGETS)}")
    # Workers and run folders must not depend on the directory of the call.
    found = Places(experiments.resolve(), conf.resolve(), outputs.resolve(), budget)
    found.check()
    return found


def show(where: Places, names: Sequence[str]) -> None:
    """Print the claims of a folder, or those that are named."""
    rows = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("claim", "textbook sentence", "parts"):
        rows.add_column(column, overflow="fold")
    for claim in discover(where.experiments, names):
        parts = [
            part.name if where.budget in part.budgets else f"({part.name})" for part in claim.parts
        ]
        rows.add_row(claim.name, claim.says, ", ".join(parts))
    console = Console(soft_wrap=True)
    console.print(rows)
    console.print(f"In brackets: not judged at --budget {where.budget}.")


def judge(
    where: Places,
    names: Sequence[str],
    *,
    seeds: int | None,
    jobs: int | None,
    publish: bool,
) -> int:
    """Reproduce, and publish where asked.

    Returns:
        the exit code: 0 when every claim asked for was judged, whatever the verdict; 1 otherwise.
    """
    from attnlab.claims.reproduce import reproduce

    family, judged = reproduce(where, names, seeds=seeds, jobs=jobs)
    if publish:
        from attnlab.claims.report import publish as write

        for file in write(family, where, where.experiments.parent / "README.md"):
            print(f"written   {file}")
    return 0 if judged else 1
