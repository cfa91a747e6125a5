"""What precedes a declared test: pilots, which choose learning rates, and the declaration."""

import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from statistics import fmean, stdev

from rich.console import Console

from attnlab.claims.claim import Claim, Trained
from attnlab.claims.conditions import check_fairness, parameters_of
from attnlab.claims.configs import ConfigResolver, hydra_conf
from attnlab.claims.criteria import Happens, Proof
from attnlab.claims.declare import check_seeds, declare
from attnlab.claims.evaluate import evaluate
from attnlab.claims.loading import load_claims
from attnlab.claims.paths import Paths
from attnlab.claims.plan import ClaimSet, Counts, make_plan, pilots_of, unmet
from attnlab.claims.progress import check_positive, duration, run_plan
from attnlab.claims.reference import read_reference, reference_plan
from attnlab.claims.results import PredictionResult
from attnlab.claims.rows import Row
from attnlab.claims.trial import (
    PILOT_SEED,
    PILOTS,
    SELECTION,
    at_rate,
    next_rates,
    rates_tried,
)
from attnlab.errors import BadInput, counted
from attnlab.runs.best_rates import Choice
from attnlab.workers import cores


def select(
    paths: Paths,
    names: Sequence[str],
    jobs: int | None = None,
    minutes: float | None = None,
    *,
    only_plan: bool = False,
) -> bool:
    """Run the pilots of claims: every arm at each of its rates, then at the best one.

    Rows are appended to pilots.jsonl. After `minutes`, no new run starts, and the same call
    continues; `only_plan` runs nothing and prints what comes next. Returns whether all pilots are
    there. Raises BadInput if a run fails.
    """
    check_positive(jobs=jobs, minutes=minutes)
    console = Console(soft_wrap=True)
    until = time.monotonic() + 60 * minutes if minutes else None
    jobs = jobs or cores()
    with nullcontext() if only_plan else paths.lock(), hydra_conf(paths.conf):
        resolve = ConfigResolver(paths)
        while True:  # chosen rates, and rates beyond an edge, follow from the rows so far
            pilots = pilots_of(load_claims(paths.experiments, names), paths, resolve)
            known, counts = _rates_to_try(pilots)
            if not counts:
                known, counts = pilots, _counts(pilots)
            plan = make_plan(known, counts)
            if not plan.todo:
                break
            if only_plan:
                about = f"{duration(plan.seconds(jobs))} on {counted(jobs, 'process', 'es')}"
                console.print(f"{len(plan.todo)} runs and measurements come next; about {about}.")
                console.print("Rates beyond an edge and seeds at the best rates follow.")
                return False
            if not run_plan(plan, known, jobs, until):
                console.print("Time is up; the same command continues.")
                return False
            _check_failed(known)
        _print_pilots(pilots, console)
    return True


def _print_pilots(pilots: ClaimSet, console: Console) -> None:
    """Arms with their rates, and the pilot of each prediction."""
    for claim in pilots.claims:
        _print_arms(claim, pilots, console)
    for evidence in evaluate(pilots, _counts(pilots)):
        for name, result in evidence.found.items():
            if len(result.values) > 1:
                console.print(f"{evidence.claim.name}.{name}: {_pilot(result)}")


def _pilot(result: PredictionResult) -> str:
    """What to write into the claim; values of diverged runs are only counted."""
    criterion, values = result.prediction.criterion, result.values
    if isinstance(criterion, Happens | Proof):
        share = fmean(criterion.answer(value) == "yes" for value in values)
        return f"pilot=Pilot({share:.3g})"
    finite = [value for value in values if math.isfinite(value)]
    lost = f"{len(values) - len(finite)} of {len(values)} values are not finite"
    if len(finite) < 2:
        return f"no pilot: {lost}"
    pilot = f"pilot=Pilot({fmean(finite):.3g}, {stdev(finite):.2g})"
    return pilot if len(finite) == len(values) else f"{pilot}; {lost}"


def _counts(pilots: ClaimSet) -> Counts:
    """Pilots of each prediction: none to show something, and one where few seeds are used."""
    return {
        (claim.name, each.name): PILOTS if each.seeds is None else 1
        for claim, each in pilots.predictions
        if (pilots.paths.budget == "full" or each.budget == "quick")
        and (each.role != "shown" or (isinstance(each, Trained) and each.rates))
    }


def _rates_to_try(pilots: ClaimSet) -> tuple[ClaimSet, Counts]:
    """Claims with a prediction for each arm and rate that is to be tried next."""
    counts, claims = _counts(pilots), []
    for claim in pilots.claims:
        rows = list(pilots.store.committed(claim.name).values())
        tries = [
            replace(each, name=f"{each.name}, {arm.name}, {rate:g}", arms=(at_rate(arm, rate),),
                    chosen={arm.name: Choice(rate, {}, at_edge=False)}, metric="val_loss")
            for each in claim.predictions
            if isinstance(each, Trained) and not each.chosen and (claim.name, each.name) in counts
            for arm in each.arms
            for rate in (next_rates(each.rates, rates_tried(arm, rows)) if each.rates else ())
        ]  # fmt: skip
        claims.append(replace(claim, predictions=tuple(tries)))
    known = pilots_of(claims, pilots.paths, pilots.resolve)
    return known, {(claim.name, each.name): SELECTION for claim, each in known.predictions}


def _check_failed(pilots: ClaimSet) -> None:
    for row in pilots.store.failed.values():
        raise BadInput(f"{row['label']} failed: {row['reason']}")


def _print_arms(claim: Claim, pilots: ClaimSet, console: Console) -> None:
    """Parameters and chosen rate of each arm."""
    rows = pilots.store.committed(claim.name)
    for each in claim.predictions:
        for arm, config in pilots.resolve.arms(claim, each).items():
            row = rows.get(f"run-{config.digest}-s{PILOT_SEED}")
            text = f"{parameters_of(row):,} parameters" if row else "no pilot"
            if choice := each.chosen.get(arm):
                tried = ", ".join(f"{rate:g}" for rate in choice.losses)
                text += f", best rate {choice.rate:g} of {tried}"
                text += ", at the edge" if choice.at_edge else ""
            console.print(f"{claim.name}: {arm}: {text}")


def declare_claims(paths: Paths, names: Sequence[str], jobs: int | None = None) -> None:
    """Write a new version of declared.json for each claim in which something changed.

    Raises BadInput if a claim compares unfairly, learning rates are not chosen, a seed was used,
    or a reference run fails.
    """
    check_positive(jobs=jobs)
    console = Console(soft_wrap=True)
    with paths.lock(), hydra_conf(paths.conf):
        known = ClaimSet(paths, load_claims(paths.experiments, names))
        for claim in known.claims:
            old = known.declared[claim.name]
            if old.version and not old.changed:
                console.print(f"{claim.name}: version {old.version}, nothing changed")
                continue
            check_seeds(claim, paths.experiments / claim.name, "*.jsonl")
            pilots = pilots_of([claim], paths, known.resolve)
            plan, places = reference_plan(pilots)
            for each in pilots.claims[0].predictions:
                if isinstance(each, Trained) and (reason := unmet(pilots, claim, each)):
                    raise BadInput(f"{claim.name}: {each.name}: {reason}")
            run_plan(plan, pilots, jobs or cores())
            rows: dict[str, Row] = pilots.store.committed(claim.name)
            _check_failed(pilots)
            check_fairness(claim, rows.values())
            _print_arms(claim, pilots, console)
            declared = declare(claim, known.resolve, read_reference(places, rows, PILOT_SEED))
            console.print(f"{claim.name}: version {declared.version} is declared")
            for line in declared.content["changed"]:
                console.print(f"    {line}")
    console.print("Commit the declarations and pilots before you run them.")
