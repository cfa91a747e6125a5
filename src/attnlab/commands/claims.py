"""The commands `attnlab reproduce` and `attnlab rank`."""

import os
import sys
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

    found = experiments.find_claims(claims or [])
    if publish:
        for file in experiments.publish(found):
            print(printable(str(file)))
        return
    outputs, which = Path("outputs/claims"), {"pilots": pilots, "long": long, "fresh": fresh}
    for work in [experiments.open_claim(claim, outputs, **which) for claim in found]:
        carry_out(work, plan, jobs, minutes)


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

    protocol = experiments.find_ranking()
    if publish and (attention or quick):
        raise BadInput("--publish writes the page of all committed rows; remove the rest")
    if publish:
        print(printable(str(experiments.publish_ranking(protocol))))
        return
    work = experiments.open_ranking(protocol, attention or [], Path("outputs/rank"), quick=quick)
    carry_out(work, plan, jobs, minutes)


def carry_out(work: Any, plan: bool, jobs: int | None, minutes: float | None) -> None:
    """Train what is missing and print the report, or only say how much is missing; exit code 1 if
    the time was up."""
    from rich.console import Console
    from rich.markdown import Markdown

    from attnlab.claims.reproduce import run_missing, train_run

    if plan:
        print(f"{work.folder.name}: {len(work.needed())} runs come next")
        return
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    complete = run_missing(work, train_run, jobs or cores, minutes)
    Console(soft_wrap=True).print(Markdown(work.report().replace("<br>", " ")))
    if not complete:
        print("Time is up; repeat the command to continue.")
        raise typer.Exit(1)
