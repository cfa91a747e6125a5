"""A sweep: its runs, how many train at once, and how far it is."""

import itertools
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob

from attnlab.files import read_json, write_json

PLAN = "plan.json"  # in the sweep's own directory, which is not that of its runs


def runs_of(typed: Sequence[str], params: Mapping[str, str]) -> list[tuple[str, ...]] | None:
    """The runs of Hydra's basic sweeper in its order, each as the overrides of its command: all
    combinations of the values.

    `typed` are the overrides of the command line, `params` those of `hydra.sweeper.params`, which
    apply to keys that were not typed. None for a glob, whose values only the sweeper knows.
    """
    words = [*(f"{key}={values}" for key, values in params.items()), *typed]
    choices: dict[str, list[str]] = {}
    for word, override in zip(words, OverridesParser.create().parse_overrides(words), strict=True):
        if isinstance(override.value(), Glob):
            return None
        key = override.get_key_element()
        choices[key.lstrip("+")] = [word]
        if override.is_sweep_override():
            values = override.sweep_string_iterator()
            choices[key.lstrip("+")] = [f"{key}={value}" for value in values]
    return list(itertools.product(*choices.values()))


def runs_at_once(devices: int | str = 1) -> int:
    """How many runs train at once: one a core, as far as this process may use them, and at most
    four where there is a GPU; one where a run has several devices, because Lightning starts their
    processes by the command of the run."""
    from loky import cpu_count  # it knows the quota of a container

    if devices not in (1, "1", "auto"):
        return 1
    has_gpu = shutil.which("nvidia-smi") and os.environ.get("CUDA_VISIBLE_DEVICES") != ""
    return min(cpu_count(), 4) if has_gpu else cpu_count()


def begin_sweep(sweep: Path, runs: int | None, at_once: int) -> None:
    """Write to the directory of a sweep when it began, how many runs it has (None where its
    sweeper decides on the way), and how many of them train at once."""
    plan = {"runs": runs, "at_once": at_once, "began": time.time()}
    write_json(sweep / PLAN, plan)


def note_begin_of_run(sweep: Path, number: int) -> None:
    """Note that the run `number` of a sweep begins, by an empty file in the sweep's directory."""
    (sweep / f"begun_{number:06}").touch()


def what_is_left(sweep: Path, runs: Sequence[tuple[str, ...]] | None) -> str:
    """How far an interrupted sweep came, and a line for each run that had not begun, by those of
    its overrides that not all runs share. None for `runs`: they are not known."""
    ended = len(list(sweep.glob("ended_*")))
    begun = {int(file.name.removeprefix("begun_")) for file in sweep.glob("begun_*")}
    lines = [f"Stopped; {ended} runs had ended, {len(begun) - ended} had begun."]
    shared = set.intersection(*map(set, runs)) if runs else set()
    for number, run in enumerate(runs or []):
        if number not in begun:
            lines.append(f"not begun: {' '.join(word for word in run if word not in shared)}")
    return "\n".join([*lines, "Repeat the command to train what is missing."])


def note_end_of_run(sweep: Path, number: int) -> str:
    """Note that the run `number` of a sweep has ended, by an empty file, and return how many have:
    "3 of 9, 2 min left"."""
    (sweep / f"ended_{number:06}").touch()
    plan = read_json(sweep / PLAN)
    ended = len(list(sweep.glob("ended_*")))
    runs = plan["runs"]
    if runs is None:  # nobody knows how many
        return f"run {ended}"
    if ended == runs or ended < plan["at_once"]:  # too early to tell how long a run takes
        return f"{ended} of {runs}"
    left = (time.time() - plan["began"]) / ended * (runs - ended)
    return f"{ended} of {runs}, {readable_duration(left)} left"


def readable_duration(seconds: float) -> str:
    """A duration in the unit that reads best."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
