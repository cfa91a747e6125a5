"""`attnlab reproduce`: plan, run what is missing, judge, report."""

import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from attnlab.claims.claim import BUDGETS, Claim, Prediction, Trained
from attnlab.claims.configs import hydra_conf
from attnlab.claims.criteria import EXACT
from attnlab.claims.evaluate import evaluate
from attnlab.claims.judge import family_error
from attnlab.claims.loading import load_claims
from attnlab.claims.paths import Paths
from attnlab.claims.plan import ClaimSet, Counts, make_plan
from attnlab.claims.progress import check_positive, duration, run_plan
from attnlab.claims.reference import pin_training_code
from attnlab.claims.results import Evidence
from attnlab.claims.rows import read_rows, score
from attnlab.errors import BadInput, counted
from attnlab.installation import lab_path
from attnlab.runs.seed_statistics import LOOKS
from attnlab.runs.sentences import at_most
from attnlab.workers import cores

COLORS = {"holds": "green", "does not hold": "red", "holds only if": "cyan"}


def find_paths(
    experiments: Path | None,
    conf: Path | None,
    outputs: Path,
    budget: str,
    config_dir: Path | None = None,
) -> Paths:
    """The directories of a call; BadInput if one does not exist, or the budget is unknown.

    By default, `experiments` and `conf` are those of the current directory if it has claims and a
    train.yaml, and attnlab's own otherwise.
    """
    if budget not in BUDGETS:
        raise BadInput(f"--budget {budget} is unknown; it must be {' or '.join(BUDGETS)}")
    if experiments is None:
        here = any(Path().glob("experiments/*/claim.py"))
        experiments = Path("experiments") if here else lab_path("experiments")
    if conf is None:
        conf = Path("conf") if Path("conf", "train.yaml").is_file() else lab_path("conf")
    # Workers and run directories must not depend on the current directory.
    added = None if config_dir is None else config_dir.resolve()
    paths = Paths(experiments.resolve(), conf.resolve(), outputs.resolve(), budget, added)
    if not paths.experiments.is_dir():
        raise BadInput(f"{paths.experiments} does not exist; name another --experiments")
    if not (paths.conf / "train.yaml").is_file():
        raise BadInput(f"{paths.conf} has no train.yaml; name another --conf")
    if added is not None and not added.is_dir():
        raise BadInput(f"{added} does not exist; name another --config-dir")
    return paths


def reproduce(
    paths: Paths,
    names: Sequence[str] = (),
    *,
    seeds: int | None = None,
    jobs: int | None = None,
    fresh: bool = False,
    only_plan: bool = False,
    minutes: float | None = None,
) -> tuple[list[Evidence], bool]:
    """Run what claims still need, judge the claims, and write verdicts.json and the report.

    With `seeds`, use this many seeds instead of going from look to look; `fresh` ignores the
    committed rows; `only_plan` prints how much there is to run. After `minutes`, runs are stopped,
    and the same call continues. Returns the evidence of every claim, and whether all were judged.
    Raises BadInput if an argument or a claim is invalid, or another call is running.
    """
    check_positive(seeds=seeds, jobs=jobs, minutes=minutes)
    claims, jobs = load_claims(paths.experiments, names), jobs or cores()
    console = Console(soft_wrap=True)
    until = time.monotonic() + 60 * minutes if minutes else None
    with nullcontext() if only_plan else paths.lock(), hydra_conf(paths.conf):
        known = ClaimSet(paths, claims, fresh=fresh)
        counts = first_look(known, seeds)
        console.print(_announcement(known, counts, jobs, to_last_look=seeds is None))
        if only_plan:
            return [], True
        while True:
            plan = make_plan(known, counts)
            pin_training_code(plan, known, jobs, console)
            complete = run_plan(plan, known, jobs, until)
            family = evaluate(known, counts)
            if seeds is not None or not complete or not next_look(family, counts):
                break
        from attnlab.claims.report import write_report  # imports Matplotlib

        write_report(family, paths)
    print_verdicts(family, paths, console)
    if not complete:
        console.print("Time is up; the same command continues.")
    if fresh:
        print_agreement(known, console)
    return family, not any(evidence.failed for evidence in family)


def first_look(known: ClaimSet, seeds: int | None) -> Counts:
    """How many seeds each prediction starts with; predictions outside the budget are omitted."""
    return {
        (claim.name, each.name): each.seeds or seeds or LOOKS[0][0]
        for claim, each in known.predictions
        if known.paths.budget == "full" or is_quick(claim, each)
    }


def is_quick(claim: Claim, prediction: Prediction) -> bool:
    """Whether --budget quick includes a prediction. Beside trained ones that decide the verdict,
    one that does not is left out if it needs runs of its own."""
    if prediction.budget != "quick" or not isinstance(prediction, Trained):
        return prediction.budget == "quick"
    deciding = [x for x in claim.predictions if x.role in ("primary", "control")]
    trained = [x for x in deciding if x.budget == "quick" and isinstance(x, Trained)]
    shared = {arm for each in trained for arm in each.arms}
    return not trained or prediction in trained or shared.issuperset(prediction.arms)


def next_look(family: Sequence[Evidence], counts: Counts) -> bool:
    """Raise the counts of predictions that later looks can decide; False if there are none."""
    more = False
    for evidence in family:
        for name, result in evidence.found.items():
            count = counts.get((evidence.claim.name, name), 0)
            looks = [n for n, _ in LOOKS if count < n <= evidence.claim.last_look]
            few = result.prediction.seeds is not None  # its number of seeds is fixed
            if count and looks and not few and result.outcome and result.outcome.undecided:
                counts[evidence.claim.name, name] = looks[0]
                more = True
    return more


def _announcement(known: ClaimSet, counts: Counts, jobs: int, *, to_last_look: bool) -> str:
    """What will be run, and roughly how long it takes."""
    plan = make_plan(known, counts)
    runs = sum(task.kind == "run" for task in plan.tasks.values())
    done = sum(task.done for task in plan.tasks.values())
    text = f"{known.paths.budget}: {counted(len(known.claims), 'claim')}, {counted(runs, 'run')} "
    text += f"and {counted(len(plan.tasks) - runs, 'measurement')} for the first look, "
    text += f"{done} of them done"
    if plan.todo:
        text += f"; about {duration(plan.seconds(jobs))} on {counted(jobs, 'process', 'es')}"
    if to_last_look:
        last = {
            (claim.name, each.name): claim.last_look
            for claim, each in known.predictions
            if each.seeds is None
            and each.role != "shown"
            and not isinstance(each.criterion, EXACT)
        }
        at_most = {key: max(count, last.get(key, 0)) for key, count in counts.items()}
        whole = make_plan(known, at_most).seconds(jobs)
        text += f"\nIf every prediction needs its last look: {duration(whole)}"
    return text if plan.todo else f"{text}; nothing to run"


def list_claims(paths: Paths, names: Sequence[str]) -> None:
    """Print all claims of a directory, or the named ones."""
    rows = _table("claim", "textbook sentence", "predictions")
    for claim in load_claims(paths.experiments, names):
        known = [
            each.name if paths.budget == "full" or is_quick(claim, each) else f"({each.name})"
            for each in claim.predictions
        ]
        rows.add_row(claim.name, escape(claim.says), escape(", ".join(known)))
    Console(soft_wrap=True).print(rows)
    print(f"Predictions in parentheses are not run with --budget {paths.budget}.")


def print_verdicts(family: Sequence[Evidence], paths: Paths, console: Console) -> None:
    """Print the verdicts with one row per prediction, and what failed."""
    rows = _table("claim", "prediction", "verdict", "evidence")
    for evidence in family:
        color = COLORS.get(evidence.verdict, "yellow")
        version = f"version {evidence.version}" if not evidence.exploratory else "exploratory"
        rows.add_row(
            f"[bold]{evidence.claim.name}[/]",
            f"[bold]{escape(evidence.claim.says)}[/]",
            f"[bold {color}]{evidence.verdict}[/]",
            escape(f"{evidence.line} ({version})"),
        )
        for name, result in evidence.found.items():
            line = "; ".join(filter(None, (result.line, result.remark)))
            says = escape(f"  {name} ({result.prediction.role}): {result.prediction.says}")
            rows.add_row("", says, result.verdict, escape(line))
    console.print(rows)
    for evidence in family:
        for name in evidence.failed:
            why = escape(f"{name}: {evidence.found[name].remark}")
            console.print(f"[bold red]{evidence.claim.name} was not judged[/]: {why}")
    console.print(family_error(paths.experiments), soft_wrap=False)
    console.print(f"report    {paths.results / 'report.html'}")
    console.print(f"verdicts  {paths.results / 'verdicts.json'}")


def _table(*names: str) -> Table:
    columns = (Column(name, overflow="fold") for name in names)
    return Table(*columns, box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))


def print_agreement(known: ClaimSet, console: Console) -> None:
    """How far the losses of this machine agree with the published ones, claim by claim."""
    for claim in known.claims:
        published = read_rows(known.paths.experiments / claim.name / "rows.jsonl")
        then, here = {row["id"]: row for row in published}, known.store.committed(claim.name)
        shared = [id_ for id_, row in here.items() if id_ in then and "val_loss" in row["values"]]
        both = [(score(here[id_], "val_loss"), score(then[id_], "val_loss")) for id_ in shared]
        finite = [abs(a - b) for a, b in both if math.isfinite(a) and math.isfinite(b)]
        diverged = sum(math.isfinite(a) != math.isfinite(b) for a, b in both)
        most = max(finite, default=0.0)
        exact = f"to {at_most(most)} nats" if most else "exactly"
        also = f"; {diverged} more diverged on one machine only" if diverged else ""
        if both:
            console.print(
                f"{claim.name}: {len(both) - diverged} losses of this machine agree with the "
                f"published ones {exact}{also}"
            )
