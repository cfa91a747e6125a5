"""The verbs `attnlab reproduce` and `attnlab rank`."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from attnlab.errors import BadInput, printable
from attnlab.installation import lab_path

Jobs = Annotated[int | None, Option(min=1, help="Processes; by default one for each core.")]
Minutes = Annotated[float | None, Option(help="Begin no run after this; a new call continues.")]
Plan = Annotated[bool, Option("--plan", help="Say how many runs are missing; run nothing.")]
Outputs = Annotated[Path, Option(help="For run directories, and rows that are not committed.")]
Publish = Annotated[bool, Option("--publish", help="Write pages and figures from the rows.")]
ConfigDir = Annotated[Path | None, Option(help="Your configuration, with attn/NAME.yaml.")]


def reproduce(
    claims: Annotated[list[str] | None, Argument(help="Names or directories; or all.")] = None,
    pilots: Annotated[bool, Option("--pilots", help="Choose rates, before declaring.")] = False,
    long: Annotated[bool, Option("--long", help="Also run what takes long.")] = False,
    fresh: Annotated[bool, Option("--fresh", help="Train the test again and compare.")] = False,
    plan: Plan = False,
    publish: Publish = False,
    jobs: Jobs = None,
    minutes: Minutes = None,
    config_dir: ConfigDir = None,
    outputs: Outputs = Path("outputs/claims"),
) -> None:
    """Run what claims lack, and judge them; the same command continues."""
    from rich.console import Console
    from rich.markdown import Markdown

    from attnlab.claims import experiments

    sys.path.append(str(Path.cwd()))  # last, so that it replaces no installed module
    work = [
        experiments.open_claim(file, outputs, fresh=fresh, config_dir=config_dir)
        for file in experiments.find_claims(claims or [])
    ]
    if publish:
        for file in experiments.publish(work):
            print(printable(str(file)))
        return
    complete = True
    for each in work:
        left = len(each.needed(pilots=pilots, long=long))
        if plan:
            print(f"{each.claim.name}: {left} runs come next" if left else f"{each.claim.name}: 0")
            continue
        if left and (note := each.exploratory):
            print(note)
        complete &= each.run(pilots=pilots, long=long, jobs=jobs or cores(), minutes=minutes)
        Console(soft_wrap=True).print(Markdown(each.report(pilots=pilots)))
    if not complete:
        print("Time is up; the same command continues.")
    raise typer.Exit(0 if complete else 1)


def rank(
    attention: Annotated[
        list[str] | None,
        Argument(help="attn=gate_head, attn._target_=my_module.Layer, ...; by default all."),
    ] = None,
    quick: Annotated[bool, Option("--quick", help="Three tasks, n steps.")] = False,
    plan: Plan = False,
    publish: Publish = False,
    jobs: Jobs = None,
    minutes: Minutes = None,
    config_dir: ConfigDir = None,
    outputs: Outputs = Path("outputs/rank"),
) -> None:
    """Compare variants of attention, each at its best rate; the same command continues."""
    from rich.console import Console
    from rich.markdown import Markdown

    from attnlab.claims import experiments

    sys.path.append(str(Path.cwd()))
    if publish and (attention or quick):
        raise BadInput("--publish writes the page of all committed rows; leave out the rest")
    folder = Path("experiments/ranking")
    folder = folder if folder.is_dir() else lab_path("experiments") / "ranking"
    work = experiments.open_ranking(folder, outputs, attention or [], config_dir)
    if publish:
        for file in work.publish():
            print(printable(str(file)))
        return
    if plan:
        print(f"{len(work.needed(quick=quick))} runs come next")
        return
    complete = work.run(quick=quick, jobs=jobs or cores(), minutes=minutes)
    Console(soft_wrap=True).print(Markdown(work.report(quick=quick)))
    if not complete:
        print("Time is up; the same command continues.")
    raise typer.Exit(0 if complete else 1)


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
