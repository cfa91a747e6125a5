"""The commands `attnlab reproduce` and `attnlab rank`."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from attnlab.commands.options import Json
from attnlab.errors import BadInput, printable

if TYPE_CHECKING:
    from attnlab.claims.work import Work

Names = Annotated[list[str] | None, Argument(help="Claims, by name or directory; by default all.")]
Attention = Annotated[
    list[str] | None,
    Argument(help="attn=gate_head, attn._target_=my_module.Layer, ...; by default all."),
]
Jobs = Annotated[
    int | None, Option(min=1, help="Processes; by default one for each core, at most 4 on a GPU.")
]
Minutes = Annotated[float | None, Option(help="Begin no run after so many minutes.")]
PlanOnly = Annotated[bool, Option("--plan", help="Say how many runs are missing; train nothing.")]
Again = Annotated[
    bool, Option("--again", help="Repeat what decides with another instruction set.")
]
Publish = Annotated[bool, Option("--publish", help="Write pages and figures from the rows.")]
PUBLISH_IS_NO_JSON = "--publish prints the names of the files that it writes; remove --json"


def reproduce(
    claims: Names = None,
    pilots: Annotated[bool, Option("--pilots", help="Run what chooses the rates.")] = False,
    long: Annotated[bool, Option("--long", help="Also run what is marked as long.")] = False,
    fresh: Annotated[bool, Option("--fresh", help="Train the test again and compare.")] = False,
    again: Again = False,
    plan: PlanOnly = False,
    publish: Publish = False,
    jobs: Jobs = None,
    minutes: Minutes = None,
    json: Json = False,
) -> None:
    """Train the missing runs of claims, and judge them. Repeat the command to continue."""
    from attnlab.claims.claim import find_claims
    from attnlab.claims.claim_page import claim_report, publish_claims
    from attnlab.claims.elsewhere import committed_rows
    from attnlab.claims.judged_claim import judge_claim, open_claim, warning_of_seen_seeds
    from attnlab.commands.claims_json import claim_content

    if publish and json:
        raise BadInput(PUBLISH_IS_NO_JSON)
    if again and (pilots or fresh):
        raise BadInput("--again repeats the runs of the test; remove --pilots and --fresh")
    chosen = find_claims(claims or [])
    if publish:
        for file in publish_claims(chosen):
            print(printable(str(file)))
        return
    outputs = Path("outputs/claims")
    committed = committed_rows(chosen[0].folder.parent)
    answers = []
    complete = True
    for claim in chosen:
        work = open_claim(claim, outputs, pilots=pilots, long=long, fresh=fresh, again=again)
        warning = "" if again or pilots or fresh else warning_of_seen_seeds(claim, outputs)
        if plan and not json:
            print_plan(work)
        elif json:
            complete = complete and (plan or train_missing(work, jobs, minutes, quiet=True))
            judged = judge_claim(
                claim, work.rows, pilots=pilots, again=work.again, committed=committed
            )
            answers.append(claim_content(judged, len(work.missing())))
        else:
            if warning:
                print(warning)
            report = partial(
                claim_report,
                claim,
                work.rows,
                work.again,
                committed,
                pilots=pilots,
                fresh=fresh,
                warning=warning,
            )
            carry_out(work, report, jobs, minutes)
    if json:
        print_answer("reproduce", {"claims": answers}, complete)


def rank(
    attention: Attention = None,
    quick: Annotated[bool, Option("--quick", help="Three tasks, shorter length.")] = False,
    again: Again = False,
    plan: PlanOnly = False,
    publish: Publish = False,
    jobs: Jobs = None,
    minutes: Minutes = None,
    json: Json = False,
) -> None:
    """Compare variants of attention, each at its best rate. Repeat the command to continue."""
    from attnlab.claims.ranking import (
        LONG,
        find_ranking,
        is_without_pattern,
        with_own_variant,
    )
    from attnlab.claims.ranking_page import publish_ranking, ranking_report
    from attnlab.claims.ranking_work import open_ranking
    from attnlab.commands.claims_json import ranking_content

    protocol = find_ranking()
    if publish and json:
        raise BadInput(PUBLISH_IS_NO_JSON)
    if publish and (attention or quick or again):
        raise BadInput("--publish writes the page of all committed rows; remove the rest")
    if publish:
        print(printable(str(publish_ranking(protocol))))
        return
    names = list(protocol.arms)
    own = bool(attention)
    if attention:
        protocol, name = with_own_variant(protocol, attention)
        names = [name]
    outputs = Path("outputs/rank")
    work = open_ranking(protocol, names, outputs, own=own, quick=quick, again=again)
    if quick:
        protocol = protocol.quick_tasks()  # those that --quick never runs are no open cells
    if json:
        complete = plan or train_missing(work, jobs, minutes, quiet=True)
        lengths = (1,) if quick else (1, LONG)
        content = ranking_content(protocol, names, lengths, work)
        print_answer("rank", content, complete)
        return
    if plan:
        print_plan(work)
        return
    patternless = [name for name in names if attention and is_without_pattern(protocol, name)]
    report = partial(
        ranking_report,
        protocol,
        work.rows,
        names,
        work.again,
        quick=quick,
        patternless=patternless,
    )
    carry_out(work, report, jobs, minutes)


def print_plan(work: "Work") -> None:
    """Say how many runs are missing; where it can be estimated, also how many follow."""
    print(f"{work.folder.name}: {len(work.missing())} runs come next")
    ahead = work.ahead() if work.ahead else None
    if ahead and ahead.runs:
        print(
            f"About {ahead.runs} runs are missing in all, {ahead.minutes:.0f} CPU minutes, if "
            "they come out, and take as long, as those of softmax attention."
        )


def carry_out(
    work: "Work", report: Callable[[], str], jobs: int | None, minutes: float | None
) -> None:
    """Train what is missing and print the report; exit code 1 if the time was up."""
    from rich.console import Console
    from rich.markdown import Markdown

    complete = train_missing(work, jobs, minutes)
    Console().print(Markdown(report().replace("<br>", " ")))
    if not complete:
        print("Time is up; repeat the command to continue.")
        raise typer.Exit(1)


def train_missing(
    work: "Work", jobs: int | None, minutes: float | None, *, quiet: bool = False
) -> bool:
    """Train what is missing; False if the time was up. `quiet`: what is printed meanwhile goes to
    the standard error."""
    from attnlab.claims.work import run_missing, train_run
    from attnlab.commands.claims_json import stdout_on_stderr
    from attnlab.training.sweep_progress import runs_at_once

    with stdout_on_stderr() if quiet else nullcontext():
        return run_missing(work, train_run, jobs or runs_at_once(), minutes)


def print_answer(command: str, content: Mapping[str, object], complete: bool) -> None:
    """Print the answer as JSON; exit code 1 if the time was up."""
    from attnlab.runs.document import document, json_text

    code = 0 if complete else 1
    print(json_text(document(command, code, content)))
    if code:
        raise typer.Exit(code)
