"""`attnlab reproduce`: plan, run what is missing look by look, judge, report."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from attnlab.claims.claim import BUDGETS, Claim
from attnlab.claims.configs import ConfigResolver, hydra_conf
from attnlab.claims.criteria import EXACT
from attnlab.claims.declare import read_declared
from attnlab.claims.display import duration, print_verdicts, progress
from attnlab.claims.evaluate import evaluate, provenance, verdict
from attnlab.claims.execute import execute
from attnlab.claims.judge import LOOKS
from attnlab.claims.loading import load_claims
from attnlab.claims.paths import Paths
from attnlab.claims.plan import Counts, Plan, make_plan
from attnlab.claims.reference import pin_training_code
from attnlab.claims.results import Evidence
from attnlab.claims.rows import RowStore
from attnlab.errors import BadInput
from attnlab.files import lab_path, write_json
from attnlab.training.run_directory import now
from attnlab.workers import cores


def find_paths(experiments: Path | None, conf: Path | None, outputs: Path, budget: str) -> Paths:
    """The directories of a call.

    Without them, `experiments` and `conf` are those of the current directory, or attnlab's own
    if it holds no claims or no train.yaml.

    Raises:
        BadInput: the budget is unknown, or a directory does not exist.
    """
    if budget not in BUDGETS:
        raise BadInput(f"--budget {budget} is unknown; it must be {' or '.join(BUDGETS)}")
    if experiments is None:
        here = Path("experiments")
        experiments = here if any(here.glob("*/claim.py")) else lab_path("experiments")
    if conf is None:
        conf = Path("conf") if Path("conf", "train.yaml").is_file() else lab_path("conf")
    # Workers and run directories must not depend on the current directory.
    paths = Paths(experiments.resolve(), conf.resolve(), outputs.resolve(), budget)
    if not paths.experiments.is_dir():
        raise BadInput(f"{paths.experiments} does not exist; name the claims by --experiments")
    if not (paths.conf / "train.yaml").is_file():
        raise BadInput(f"{paths.conf} holds no train.yaml; name Hydra's directory by --conf")
    return paths


def reproduce(
    paths: Paths,
    names: Sequence[str] = (),
    *,
    seeds: int | None = None,
    jobs: int | None = None,
    fresh: bool = False,
    only_plan: bool = False,
) -> tuple[list[Evidence], bool]:
    """Run what is missing of claims, judge them, and write verdicts.json and the report.

    With `seeds`, look at this many instead of going look by look; `fresh` ignores the committed
    rows; `only_plan` prints what would be run and how long it would take, and runs nothing.
    Returns the evidence of every claim, and whether all were judged.

    Raises:
        BadInput: a name, a number, a directory or a claim is not sound, or another call is
            running.
    """
    for option, value in (("seeds", seeds), ("jobs", jobs)):
        if value is not None and value < 1:
            raise BadInput(f"--{option} {value} must be at least 1")
    claims = load_claims(paths.experiments, names)
    console = Console(soft_wrap=True)
    jobs = jobs or cores()
    with paths.lock(), hydra_conf(paths.conf):
        resolve = ConfigResolver(paths)
        store = RowStore(paths, [claim.name for claim in claims], fresh=fresh)
        declared = {claim.name: read_declared(claim, resolve) for claim in claims}
        planned = partial(make_plan, claims, store, declared, resolve)
        counts = first_look(claims, paths.budget, seeds)
        console.print(_announcement(claims, planned, counts, paths, jobs, seeds))
        if only_plan:
            return [], True
        while True:
            plan = planned(counts)
            pin_training_code(plan, claims, declared, jobs, resolve)
            _run(plan, store, paths, jobs, console)
            # What is there is judged, whichever budget ran it.
            everything = {
                (claim.name, each.name): max(
                    counts.get((claim.name, each.name), 0), len(claim.declared_seeds(each))
                )
                for claim in claims
                for each in claim.predictions
            }
            family = evaluate(claims, planned(everything), store, declared, paths.budget)
            if seeds is not None or not next_look(family, counts):
                break
        _write(family, paths)
    print_verdicts(family, paths, console)
    return family, not any(evidence.failed for evidence in family)


def first_look(claims: Sequence[Claim], budget: str, seeds: int | None) -> Counts:
    """How many seeds each prediction starts with; one that the budget omits has none."""
    return {
        (claim.name, each.name): each.seeds or seeds or LOOKS[0][0]
        for claim in claims
        for each in claim.predictions
        if budget == "full" or each.budget == "quick"
    }


def next_look(family: Sequence[Evidence], counts: Counts) -> bool:
    """Raise the counts of what is undecided and can still reach a bar; False if nothing is."""
    more = False
    for evidence in family:
        for name, result in evidence.found.items():
            key = (evidence.claim.name, name)
            if result.outcome is None or key not in counts:
                continue
            looks = [n for n, _ in LOOKS if counts[key] < n <= evidence.claim.last_look]
            if result.outcome.undecided and not result.failed and looks:
                counts[key] = looks[0]
                more = True
    return more


def _announcement(
    claims: Sequence[Claim],
    planned: Callable[[Counts], Plan],
    counts: Counts,
    paths: Paths,
    jobs: int,
    seeds: int | None,
) -> str:
    """What is about to run, and how long it may take."""
    plan = planned(counts)
    runs = sum(task.kind == "run" for task in plan.tasks.values())
    done = sum(task.done for task in plan.tasks.values())
    text = (
        f"{paths.budget}: {len(claims)} claims, {runs} runs and {len(plan.tasks) - runs} "
        f"measurements for the first look, {done} of them done"
    )
    text += f"; about {duration(plan.seconds(jobs))} on {jobs} processes" if plan.todo else ""
    if seeds is None:
        last = {
            (claim.name, each.name): claim.last_look
            for claim in claims
            for each in claim.predictions
            if each.role != "shown" and not isinstance(each.criterion, EXACT)
        }
        at_most = planned({key: max(count, last.get(key, 0)) for key, count in counts.items()})
        text += f"\nIf every prediction goes to its last look: {duration(at_most.seconds(jobs))}"
    return text if plan.todo else f"{text}; nothing to run"


def _run(plan: Plan, store: RowStore, paths: Paths, jobs: int, console: Console) -> None:
    todo = plan.todo
    if not todo:
        return
    total = sum(task.seconds for task in todo)
    began, spent = time.perf_counter(), 0.0
    with progress(console, len(todo)) as tell:
        try:
            for n, (task, rows) in enumerate(execute(todo, paths, min(jobs, len(todo))), 1):
                for row in rows:
                    owner = task.metrics.get(row["id"])
                    claims = task.claims if owner is None else {owner[0]: task.claims[owner[0]]}
                    store.add(row, claims)
                spent += task.seconds
                rest = (time.perf_counter() - began) * (total - spent) / max(spent, 1e-9)
                about = f", about {duration(rest)} left" if n < len(todo) else ""
                statuses = {str(row["status"]) for row in rows}
                status = "failed" if "failed" in statuses else str(rows[0]["status"])
                tell(f"[{n}/{len(todo)}] {task.label}: {status}{about}")
        except KeyboardInterrupt:
            console.print("\nStopped; the same command resumes.")
            raise SystemExit(130) from None


def _write(family: Sequence[Evidence], paths: Paths) -> None:
    from attnlab.claims.report import write_figures, write_report

    verdicts = {evidence.claim.name: verdict(evidence) for evidence in family}
    content = {"budget": paths.budget, "claims": verdicts, "runs": provenance(family)}
    write_json(paths.verdicts, content | {"times": {"written": now()}})
    write_report(family, write_figures(family, paths), paths)
