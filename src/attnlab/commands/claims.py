"""The commands `attnlab reproduce` and `attnlab rank`."""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from attnlab.errors import BadInput, printable

Names = Annotated[list[str] | None, Argument(help="Claims, by name or directory; by default all.")]
Variant = Annotated[
    list[str] | None,
    Argument(help="attn=gate_head, attn._target_=my_module.Layer, ...; by default all."),
]
Jobs = Annotated[int | None, Option(min=1, help="Processes; by default one for each core.")]
Minutes = Annotated[float | None, Option(help="Begin no run after so many minutes.")]
Plan = Annotated[bool, Option("--plan", help="Say how many runs are missing; train nothing.")]
Publish = Annotated[bool, Option("--publish", help="Write pages and figures from the rows.")]


def reproduce(
    claims: Names = None,
    pilots: Annotated[bool, Option("--pilots", help="Run what chooses the rates.")] = False,
    long: Annotated[bool, Option("--long", help="Also run what is marked as long.")] = False,
    fresh: Annotated[bool, Option("--fresh", help="Train the test again and compare.")] = False,
    plan: Plan = False,
    publish: Publish = False,
    jobs: Jobs = None,
    minutes: Minutes = None,
) -> None:
    """Train the missing runs of claims, and judge them. Repeat the command to continue."""
    from attnlab.claims import experiments
    from attnlab.claims.claims import needed

    sys.path.append(str(Path.cwd()))  # last, so that it replaces no installed module
    files, outputs = experiments.find_claims(claims or []), Path("outputs/claims")
    work = [experiments.open_claim(file, outputs, fresh=fresh) for file in files]
    if publish:
        print(*(printable(str(file)) for file in experiments.publish(work)), sep="\n")
    for each in work if not publish else ():
        lacks = partial(needed, each.claim, each.rows, pilots=pilots, long=long)
        carry_out(
            each, lacks, partial(each.report, pilots=pilots, fresh=fresh), plan, jobs, minutes
        )


def rank(
    attention: Variant = None,
    quick: Annotated[bool, Option("--quick", help="Three tasks, shorter length.")] = False,
    plan: Plan = False,
    publish: Publish = False,
    jobs: Jobs = None,
    minutes: Minutes = None,
) -> None:
    """Compare variants of attention, each at its best rate. Repeat the command to continue."""
    from attnlab.claims import experiments
    from attnlab.claims.ranking import needed
    from attnlab.installation import lab_path

    sys.path.append(str(Path.cwd()))
    if publish and (attention or quick):
        raise BadInput("--publish writes the page of all committed rows; remove the rest")
    own = Path("experiments/ranking")
    folder = own if own.is_dir() else lab_path("experiments") / "ranking"
    work = experiments.open_ranking(folder, Path("outputs/rank"), attention or [])
    lacks = partial(needed, work.protocol, work.rows, work.names, quick=quick)
    if publish:
        print(printable(str(work.publish())))
    else:
        carry_out(work, lacks, partial(work.report, quick=quick), plan, jobs, minutes)


def carry_out(
    work: Any, lacks: Any, report: Any, plan: bool, jobs: int | None, minutes: float | None
) -> None:
    """Train the missing runs of a claim or the ranking and print its report, or only say how many
    are missing; exit code 1 if the time was up."""
    from rich.console import Console
    from rich.markdown import Markdown

    from attnlab.claims.reproduce import run_missing, train_run

    if plan:
        print(f"{work.place.folder.name}: {len(lacks())} runs come next")
        return
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    complete = run_missing(
        lacks, work.rows, work.place, train=train_run, jobs=jobs or cores, minutes=minutes
    )
    Console(soft_wrap=True).print(Markdown(report()))
    if not complete:
        print("Time is up; repeat the command to continue.")
        raise typer.Exit(1)
