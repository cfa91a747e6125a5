"""How far a sweep is: a line for each run that ends, with the number of runs and the time left."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob

from attnlab.files import read_json, write_json

PLAN = "plan.json"  # in the sweep's own directory, which is not that of its runs


def count_runs(typed: Sequence[str], params: Mapping[str, str]) -> int | None:
    """The number of runs of Hydra's basic sweeper: all combinations of the values.

    `typed` are the overrides of the command line, `params` those of `hydra.sweeper.params`, which
    apply to keys that were not typed. None for a glob, whose values only the sweeper knows.
    """
    parser = OverridesParser.create()
    in_files = [f"{key}={values}" for key, values in params.items()]
    swept = {}
    for override in parser.parse_overrides([*in_files, *typed]):
        swept[override.key_or_group] = override
    runs = 1
    for override in swept.values():
        if isinstance(override.value(), Glob):
            return None
        if override.is_sweep_override():
            runs *= len(list(override.sweep_string_iterator()))
    return runs


def begin_sweep(sweep: Path, runs: int | None, at_once: int) -> None:
    """Note when a sweep began, of how many runs (None where its sweeper decides on the way), and
    how many of them train at once."""
    write_json(sweep / PLAN, {"runs": runs, "at_once": at_once, "began": time.time()})


def note_end_of_run(sweep: Path, number: int) -> str:
    """Note that a run of a sweep ended, and say how many have: "3 of 9, 2 min left"."""
    (sweep / f"ended_{number:06}").touch()
    plan = read_json(sweep / PLAN)
    ended = len(list(sweep.glob("ended_*")))
    runs = plan["runs"]
    if runs is None:
        return f"run {ended}"
    if ended == runs or ended < plan["at_once"]:  # too early to tell how long a run takes
        return f"{ended} of {runs}"
    left = (time.time() - plan["began"]) / ended * (runs - ended)
    return f"{ended} of {runs}, {in_minutes(left)} left"


def in_minutes(seconds: float) -> str:
    """A duration in the unit that reads best."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
