"""Runs a plan with a line for each task, and keeps its rows."""

import time
from contextlib import closing

from attnlab.claims.execute import execute
from attnlab.claims.plan import ClaimSet, Plan
from attnlab.errors import BadInput


def run_plan(plan: Plan, known: ClaimSet, jobs: int, until: float | None = None) -> bool:
    """Run the tasks of a plan and keep their rows.

    At the time `until` (of time.monotonic), what runs is stopped, and resumes in the next call.
    Returns whether all tasks were run.
    """
    todo, total = plan.todo, plan.seconds(jobs=1)
    began, spent = time.perf_counter(), 0.0
    done = execute(todo, known.paths, min(jobs, len(todo)))
    try:
        with closing(done):
            for n, (task, rows) in enumerate(done, 1):
                for row in rows:
                    owner = task.metrics.get(row["id"])
                    owners = task.claims if owner is None else (owner[0],)
                    known.store.add(row, {claim: task.claims[claim] for claim in owners})
                spent += task.seconds
                rest = (time.perf_counter() - began) * (total - spent) / max(spent, 1e-9)
                about = f", about {duration(rest)} left" if n < len(todo) else ""
                statuses = {str(row["status"]) for row in rows}
                status = "failed" if "failed" in statuses else str(rows[0]["status"])
                print(f"[{n}/{len(todo)}] {task.label}: {status}{about}", flush=True)
                if until is not None and time.monotonic() > until and n < len(todo):
                    return False
    except KeyboardInterrupt:
        print("\nStopped; the same command resumes.")
        raise SystemExit(130) from None
    return True


def check_positive(**options: float | None) -> None:
    """Refuse, by BadInput, numbers of the command line that are not positive."""
    for option, number in options.items():
        if number is not None and number <= 0:
            raise BadInput(f"--{option} {number} must be positive")


def duration(seconds: float) -> str:
    """Seconds in seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
