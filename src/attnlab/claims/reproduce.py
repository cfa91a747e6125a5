"""`attnlab reproduce`: plan, run what is missing, judge, report."""

import os
import sys
import time
from collections.abc import Iterable, Sequence

from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from attnlab.claims.claim import Claim
from attnlab.claims.collect import declare, gather, provenance, verdicts
from attnlab.claims.discover import discover
from attnlab.claims.evidence import Evidence
from attnlab.claims.paths import Places
from attnlab.claims.plan import Plan, Task, make_plan
from attnlab.claims.resolve import hydra_conf
from attnlab.claims.worker_pool import work
from attnlab.errors import BadInput
from attnlab.files import write_json
from attnlab.training.run_directory import now


def reproduce(
    places: Places,
    names: Sequence[str] = (),
    *,
    seeds: int | None = None,
    jobs: int | None = None,
) -> tuple[list[Evidence], bool]:
    """Run what is missing of claims, judge them, and write verdicts.json and the report.

    Args:
        places: the folders, with the budget.
        names: of claims; empty for all.
        seeds: instead of each claim's own number.
        jobs: processes; None for one a core.

    Returns:
        the evidence of every claim whose runs are there, and whether all asked for were judged.

    Raises:
        BadInput: a name, a number, a folder or a claim is not sound, or another call is at work.
    """
    _check(seeds, jobs)
    places.check()
    asked = discover(places.experiments, names)
    console = Console(soft_wrap=True)
    with _lock(places), hydra_conf(places.conf):
        plan = make_plan(asked, places, seeds=seeds, gpu=_gpu(places))
        jobs = min(jobs or cores(), max(1, len(plan.todo)))
        console.print(announcement(plan, asked, places, jobs))
        for claim in asked:
            declare(claim, plan, places)
        _work(plan, places, jobs, console)
        everything = _with_the_others(asked, places)
        if len(everything) > len(asked):
            plan = make_plan(everything, places, seeds=seeds, gpu=_gpu(places))
        family = gather(everything, plan, places)
        _write(family, places)
    console.print(table(family))
    judged = _name_failures(family, asked, console)
    console.print(f"report    {places.report}\nverdicts  {places.verdicts}")
    return family, judged


def announcement(plan: Plan, claims: Sequence[Claim], places: Places, jobs: int) -> str:
    """What is about to be done, and how long it may take."""
    runs = [task for task in plan.tasks.values() if task.message["kind"] == "run"]
    done = sum(task.done for task in plan.tasks.values())
    text = (
        f"{places.budget}: {len(claims)} claims, {len(runs)} runs and "
        f"{len(plan.tasks) - len(runs)} measurements, {done} of them done"
    )
    if not plan.todo:
        return f"{text}; nothing to run"
    return f"{text}; about {duration(plan.seconds(jobs))} on {jobs} processes"


def table(family: Sequence[Evidence]) -> Table:
    """The verdicts, a row a prediction."""
    rows = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("claim", "prediction", "verdict", "what was found"):
        rows.add_column(column, overflow="fold")
    for evidence in family:
        color = {"supported": "green", "refuted": "red"}.get(evidence.verdict, "yellow")
        rows.add_row(
            f"[bold]{evidence.claim.name}[/]",
            f"[bold]{evidence.claim.says}[/]",
            f"[bold {color}]{evidence.verdict}[/]",
            evidence.line,
        )
        for name, found in evidence.found.items():
            verdict = found.outcome.verdict if found.outcome else "-"
            shown = f"({verdict})" if not found.part.counts else verdict
            line = found.outcome.line if found.outcome else found.remark
            rows.add_row("", f"  {name}: {found.part.says}", shown, line)
    return rows


def cores() -> int:
    """The cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _check(seeds: int | None, jobs: int | None) -> None:
    for name, value in (("seeds", seeds), ("jobs", jobs)):
        if value is not None and value < 1:
            raise BadInput(f"--{name} {value} must be at least 1")


def _work(plan: Plan, places: Places, jobs: int, console: Console) -> None:
    todo = plan.todo
    if not todo:
        return
    left = sum(task.seconds for task in todo)
    began, promised = time.perf_counter(), left
    try:
        for n, (task, status) in enumerate(_shown(todo, places, jobs, console), 1):
            left -= task.seconds
            spent = time.perf_counter() - began
            rest = spent / max(promised - left, 1e-9) * left
            if not console.is_terminal:
                about = f", about {duration(rest)} left" if n < len(todo) else ""
                print(f"[{n}/{len(todo)}] {task.label}: {status}{about}", flush=True)
    except KeyboardInterrupt:
        console.print("\nStopped; the same command goes on where this one was.")
        raise SystemExit(130) from None


def _shown(
    todo: Sequence[Task], places: Places, jobs: int, console: Console
) -> Iterable[tuple[Task, str]]:
    if not console.is_terminal:
        yield from work(todo, places, jobs)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        total = sum(task.seconds for task in todo)
        line = bar.add_task("starting", total=len(todo))
        began = time.perf_counter()
        spent = 0.0
        for task, status in work(todo, places, jobs):
            spent += task.seconds
            rest = (time.perf_counter() - began) * (total - spent) / max(spent, 1e-9)
            text = f"about {duration(rest)} left; {task.label}: {status}"
            bar.update(line, advance=1, description=text)
            yield task, status


def _lock(places: Places) -> FileLock:
    """Hold the budget's folder for this process; the lock of a dead one is free at once."""
    lock = FileLock(places.root / ".lock", timeout=0)
    try:
        places.root.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise BadInput(f"another `attnlab reproduce` is at work in {places.root}") from error
    except OSError as error:
        raise BadInput(f"{places.root} cannot be written: {error.strerror}") from error
    return lock


def _gpu(places: Places) -> bool:
    if places.budget == "quick":
        return False
    import torch

    return torch.cuda.is_available()


def _with_the_others(asked: Sequence[Claim], places: Places) -> list[Claim]:
    """All claims that can be loaded: the family is corrected for as a whole."""
    names = {claim.name for claim in asked}
    claims = list(asked)
    for file in sorted(places.experiments.glob("*/claim.py")):
        if file.parent.name not in names and places.declared(file.parent.name).exists():
            try:
                claims += discover(places.experiments, [file.parent.name])
            except BadInput:
                continue  # not asked for; its own call will say what is wrong with it
    return sorted(claims, key=lambda claim: (claim.order, claim.name))


def _write(family: Sequence[Evidence], places: Places) -> None:
    from attnlab.claims.report import write_figures, write_report

    content = {"budget": places.budget, "claims": verdicts(family), "runs": provenance(family)}
    write_json(places.verdicts, content | {"times": {"written": now()}})
    figures = write_figures(family, places)
    write_report(family, figures, places)


def _name_failures(family: Sequence[Evidence], asked: Sequence[Claim], console: Console) -> bool:
    by_name = {evidence.claim.name: evidence for evidence in family}
    judged = True
    for claim in asked:
        evidence = by_name.get(claim.name)
        if evidence is None:
            judged = False
            console.print(f"[bold red]{claim.name} was not judged[/]: runs are missing")
            continue
        for name in evidence.failed:
            judged = False
            remark = evidence.found[name].remark
            console.print(f"[bold red]{claim.name} was not judged[/]: {name}: {remark}")
    return judged
