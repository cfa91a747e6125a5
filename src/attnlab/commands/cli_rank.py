"""The verb `attnlab rank`."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from attnlab.commands.cli_runs import HERE
from attnlab.errors import BadInput, printable
from attnlab.imports import fast_imports
from attnlab.installation import lab_path


def rank(
    attention: Annotated[
        list[str] | None,
        Argument(help="attn=gate_head, attn._target_=my_package.Layer, attn=[a,b]; all if none."),
    ] = None,
    quick: Annotated[bool, Option("--quick", help="Three tasks, n steps only.")] = False,
    plan: Annotated[bool, Option("--plan", help="Show runs and time; run nothing.")] = False,
    publish: Annotated[
        bool, Option("--publish", help="Write the pages of committed rows.")
    ] = False,
    minutes: Annotated[float | None, Option(help="Stop after this time; resumable.")] = None,
    jobs: Annotated[int | None, Option(help="Processes; by default one per core.")] = None,
    experiments: Annotated[Path | None, Option(help=f"With ranking/, {HERE}")] = None,
    conf: Annotated[Path | None, Option(help=f"Hydra's configuration, {HERE}")] = None,
    outputs: Annotated[Path, Option(help="For runs and pages.")] = Path("outputs/rank"),
) -> None:
    """Compare variants of attention, each at its best learning rate; the same command resumes.

    With settings of attn, only that variant is run, and all others are read from committed rows.
    """
    for option, number in (("jobs", jobs), ("minutes", minutes)):
        if number is not None and number <= 0:
            raise BadInput(f"--{option} {number} must be positive")
    with fast_imports():
        from attnlab.claims.reproduce import find_paths
        from attnlab.files import write_atomically
        from attnlab.ranking import page
        from attnlab.ranking import rank as library

    if experiments is None and Path("experiments", "ranking").is_dir():
        experiments = Path("experiments")
    # Rows of one's own are kept apart from those that are missing in the published table.
    place = outputs / "own" if attention else outputs
    paths = find_paths(experiments or lab_path("experiments"), conf, place, "full")
    if publish and (attention or quick or plan or paths.fixed):
        raise BadInput("--publish is for the committed rows of a clone, without other arguments")
    ranking, complete = library.rank(
        paths, attention or [], quick=quick, jobs=jobs, minutes=minutes, only_plan=plan or publish
    )
    if publish:
        for file in page.publish(ranking):
            print(f"written   {file}")
    elif not plan:
        page.print_table(ranking)
        file = outputs / "ranking.html"
        write_atomically(file, page.html(ranking).encode())
        print(printable(str(file)))
    raise typer.Exit(0 if complete else 1)
