"""Reference values: one whole run of each arm and one of each measurement, before a declaration.

They show changes of the training code: a machine that adds rows repeats them first.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from rich.console import Console

from attnlab.claims.claim import Claim, Measured, Trained
from attnlab.claims.declare import Declared
from attnlab.claims.execute import execute
from attnlab.claims.plan import ClaimSet, Plan, make_plan, pilots_of, tasks_of
from attnlab.claims.provenance import machine, sources_digest
from attnlab.claims.rows import Row, score
from attnlab.errors import BadInput
from attnlab.files import read_json, write_json
from attnlab.runs.sentences import at_most

EQUAL = 1e-4  # relative to values above 1: one thread on the same processor, the same versions
CHAOTIC = 2e-2  # others: rounding errors grow while a model trains
Values = dict[str, float]  # "arm <name>" -> final loss; "measurement <prediction>" -> value
Places = dict[str, tuple[str, str]]  # the same keys -> id of a row, and the key of its number


def reference_plan(pilots: ClaimSet) -> tuple[Plan, Places]:
    """The runs and measurements of one seed, and where each reference value stands in them.

    Predictions that are only shown have none.
    """
    judged = [(claim, each) for claim, each in pilots.predictions if each.role != "shown"]
    plan = make_plan(pilots, {(claim.name, each.name): 1 for claim, each in judged})
    places: Places = {}
    for claim, each in judged:
        for arm, task in tasks_of(pilots, claim, each, claim.first_seed).items():
            if isinstance(each, Trained):
                places[f"arm {arm}"] = task.id, "val_loss"
            elif isinstance(each, Measured) and not each.timed:
                places[f"measurement {each.name}"] = task.id, each.value
    return plan, places


def read_reference(places: Places, rows: Mapping[str, Row], seed: int) -> dict[str, Any]:
    """The reference values of a declaration, and the machine (or machines) that made them."""
    values = {key: score(rows[id_], number) for key, (id_, number) in places.items()}
    made: dict[str, list[Any]] = {key: [] for key in machine()}
    for (id_, _), (key, seen) in product(places.values(), made.items()):
        if rows[id_][key] not in seen:
            seen.append(rows[id_][key])
    where = {key: seen[0] if len(seen) == 1 else seen for key, seen in made.items()}
    return {"seed": seed, "values": values, **where}


def pin_training_code(plan: Plan, known: ClaimSet, jobs: int, console: Console) -> None:
    """Repeat the reference values of what is about to be run; a change makes runs exploratory."""
    for claim in known.claims:
        mine = known.declared[claim.name]
        needed = _needed(plan, known, claim)
        if mine.exploratory or not needed or known.store.fresh:
            continue
        reference = mine.content["reference"]
        values = _repeat(known, claim, int(reference["seed"]), needed, jobs)
        changed = changed_values(mine, values)
        mine.changed += changed
        for task in plan.tasks.values():
            if mine.exploratory and claim.name in task.claims:
                task.claims[claim.name] = False
        largest = max(_distance(reference["values"][key], x) for key, x in values.items())
        said = f"repeat to {at_most(largest)}" if largest else "repeat to the last bit"
        said = f"were repeated; {len(changed)} of them changed" if changed else said
        console.print(f"{claim.name}: {len(values)} reference values {said}")


def _needed(plan: Plan, known: ClaimSet, claim: Claim) -> set[str]:
    """The reference values of the runs and measurements that are still to be done."""
    left = {task.id for task in plan.tasks.values() if not task.done}
    needed = set()
    for each, seed in product(claim.predictions, {task.seed for task in plan.tasks.values()}):
        for arm, task in tasks_of(known, claim, each, seed).items():
            if task.id in left and each.role != "shown" and not each.timed:
                needed.add(f"arm {arm}" if arm else f"measurement {each.name}")
    return needed


def _repeat(
    known: ClaimSet, claim: Claim, seed: int, needed: Collection[str], jobs: int
) -> Values:
    """Values of the code as it is now, kept in the outputs until a source file changes."""
    code = sources_digest(known.paths, claim.name)
    file = known.paths.outputs / "references" / f"{claim.name}-{code}.json"
    kept: Values = read_json(file) if file.exists() else {}
    plan, places = reference_plan(pilots_of([claim], known.paths, known.resolve, seed))
    wanted = {key: place for key, place in places.items() if key in needed}
    ids = {id_ for key, (id_, _) in wanted.items() if key not in kept}
    scratch = known.paths.outputs / "references" / code
    tasks = [
        replace(
            task, label=f"{task.label}, for reference", directory=str(scratch / id_), metrics={}
        )
        for id_, task in plan.tasks.items()
        if id_ in ids
    ]
    for task, (row, *_) in execute(tasks, known.paths, min(jobs, len(tasks))) if tasks else ():
        if row["status"] == "failed":
            raise BadInput(f"{task.label}, failed: {row['reason']}")
        kept |= {key: score(row, name) for key, (id_, name) in wanted.items() if id_ == task.id}
        write_json(file, kept)
    return {key: kept[key] for key in wanted}


def changed_values(declared: Declared, values: Mapping[str, float]) -> list[str]:
    """Reference values that differ from the declared ones by more than rounding can explain."""
    reference = declared.content["reference"]
    here = machine()
    same = all(reference.get(key) == here[key] for key in here)
    return [
        f"reference value of {key}: {reference['values'][key]:.6g} -> {value:.6g}"
        for key, value in values.items()
        if key in reference["values"]
        and _distance(reference["values"][key], value) > (EQUAL if same else CHAOTIC)
    ]


def _distance(then: float, now: float) -> float:
    """The difference of two values, relative to those above 1; 0 for equal infinities, and
    infinite if only one of them is finite."""
    if then == now or (math.isnan(then) and math.isnan(now)):
        return 0.0
    if not (math.isfinite(then) and math.isfinite(now)):
        return math.inf
    return abs(then - now) / max(1.0, abs(then))
