"""Sweeps: a run that fails does not stop the others, and is recorded in the sweep's directory."""

import heapq
import math
import os
import shlex
import statistics
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from attnlab.errors import BadInput, first_line
from attnlab.files import read_json, write_atomically, write_json
from attnlab.installation import training_command
from attnlab.runs.pairing import Comparison, pairs
from attnlab.runs.printing import print_comparisons
from attnlab.runs.reading import read_runs
from attnlab.runs.run_directory import Busy
from attnlab.runs.settings import last_of
from attnlab.workers import threads_given

# The user's setting, read before train.py changes it for Hydra.
WANTS_TRACEBACK = os.environ.get("HYDRA_FULL_ERROR") == "1"
HEADINGS = {
    "interrupted": "error: interrupted",
    "busy": "already being trained by another process",
    "refused": "error: refused",
    "failed": "error: failed",
}


def attempt(do: Callable[[], float], hydra: HydraConf, arguments: Sequence[str]) -> float:
    """Call a function that does one run of a sweep and returns its loss. If it fails, record the
    failure with the arguments that repeat the run alone, and return NaN."""
    try:
        return do()
    except Exception as error:
        outcome, reason = "failed", first_line(error, with_class=True)
        if isinstance(error, BadInput):
            outcome, reason = "busy" if isinstance(error, Busy) else "refused", str(error)
        trace = "" if outcome == "busy" else traceback.format_exc()
    print(f"{shlex.join(arguments)}: {outcome}, {reason}", flush=True)
    folder = Path(hydra.runtime.output_dir)
    note_failure(folder, hydra.job.num, arguments, outcome, reason, trace)
    return math.nan


def note_failure(
    folder: Path, number: int, overrides: Sequence[str], outcome: str, reason: str, trace: str = ""
) -> None:
    """Write a file about a failed run into the sweep's directory."""
    note = {"outcome": outcome, "reason": reason, "traceback": trace, "overrides": [*overrides]}
    write_json(folder / f"failed_run_{number:06}.json", note)


def seed_by_seed(tasks: Sequence[tuple[int, Sequence[str]]]) -> list[tuple[int, Sequence[str]]]:
    """The runs of a sweep, (number, overrides), with all settings of a seed before the next seed,
    so that a sweep that is not complete yet has pairs to compare."""
    seeds = [last_of(overrides).get("seed", "") for _, overrides in tasks]
    order = list(dict.fromkeys(seeds))
    return [task for seed in order for task, its in zip(tasks, seeds, strict=True) if its == seed]


class Forecast:
    """When a sweep will end, by the durations of the runs that have ended.

    Args:
        runs: how many there are.
        jobs: how many of them run at once.
    """

    def __init__(self, runs: int, jobs: int) -> None:
        self.waiting, self.jobs = runs - jobs, jobs
        self.starts: list[float] = []  # of the runs that are running
        self.durations: list[float] = []

    def after(self, now: float, seconds: float | None) -> float:
        """Seconds left when a run has ended; 0 if unknown. `seconds` is what the run took without
        imports, None if it was already done or its process died."""
        if not self.starts:  # the first run to end; the others started with it
            self.starts = [now - (seconds or 0)] * self.jobs
        began = now - (seconds or 0)
        self.starts.remove(min(self.starts, key=lambda start: abs(start - began)))
        if self.waiting:
            self.starts.append(now)
            self.waiting -= 1
        self.durations += [] if seconds is None else [seconds]
        if not self.durations or not self.starts:
            return 0.0
        mean = statistics.fmean(self.durations)
        longer = [now - start for start in self.starts if now - start > mean]
        mean = statistics.fmean([*self.durations, *longer])
        free = sorted(max(now, start + mean) for start in self.starts)
        for _ in range(self.waiting):
            heapq.heapreplace(free, free[0] + mean)
        return max(free) - now


def share_threads(hydra: HydraConf) -> None:
    """Use as many threads as a launcher gives to this process: OMP_NUM_THREADS of the pool, joblib
    and Ray, or `cpus_per_task` of submitit. `basic` starts no processes."""
    import torch  # takes a second, and Hydra imports this file before it reads the command line

    if hydra.runtime.choices["hydra/launcher"] == "basic":
        return
    if threads := threads_given():
        torch.set_num_threads(threads)
    elif "cpus_per_task" in hydra.launcher:
        torch.set_num_threads(hydra.launcher.cpus_per_task or 1)


class SweepSummary(Callback):
    """Ends a sweep with a table of paired differences, `<outputs>/<name>/comparison.png`, and the
    commands that repeat failed runs.

    The exit code is 1 if a run failed, and 2 if runs were only refused.
    """

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        if sentence := _refusal(config):
            print(f"error: {sentence}", file=sys.stderr)
            raise SystemExit(2)  # Hydra turns other exceptions of a callback into warnings
        for file in _notes(config.hydra.sweep.dir):  # of an earlier sweep in the same directory
            file.unlink()

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        _compare(config)
        say = partial(print, file=sys.stderr)
        notes = [read_json(file) | {"file": file} for file in _notes(config.hydra.sweep.dir)]
        for outcome, heading in HEADINGS.items():
            those = [note for note in notes if note["outcome"] == outcome]
            if those:
                say(f"{heading}, {len(those)} of this sweep's runs; to repeat each one:")
            for note in those:
                say(f"  {training_command()} {shlex.join(note['overrides'])}")
                say(f"    # {' '.join(note['reason'].split())}")
                if WANTS_TRACEBACK:
                    say(note["traceback"])
                elif note["traceback"] and outcome == "failed":
                    say(f"    # the traceback is in {note['file']}")
        outcomes = {note["outcome"] for note in notes}
        if outcomes - {"busy"}:
            raise SystemExit(2 if outcomes <= {"busy", "refused"} else 1)


def _refusal(config: DictConfig) -> str | None:
    """Why a sweep cannot start; None if it can."""
    typed = last_of(config.hydra.overrides.hydra).keys()
    if misplaced := typed & {"hydra.run.dir", "hydra.sweep.subdir"}:
        reason = "its runs are named by their settings and seed; use hydra.sweep.dir"
        return f"{min(misplaced)} is not for a sweep: {reason}"
    target = str(OmegaConf.select(config, "hydra.launcher._target_"))
    if "attnlab_submitit" in target and find_spec("submitit") is None:
        return "submitit is not installed; install it with: pip install hydra-submitit-launcher"
    for override in OverridesParser.create().parse_overrides(list(config.hydra.overrides.task)):
        values = [*override.sweep_string_iterator()] if override.is_discrete_sweep() else []
        if twice := [value for value in values if values.count(value) > 1]:
            return f"{override.input_line} has {twice[0]} twice; name each value once"
    return None


def _notes(sweep_dir: str) -> list[Path]:
    """The files about failed runs in a sweep's directory."""
    files = Path(sweep_dir).glob("failed_run_[0-9][0-9][0-9][0-9][0-9][0-9].json")
    return sorted(file for file in files if file.is_file() and not file.is_symlink())


def _compare(config: DictConfig) -> None:
    """Print the paired differences between the variants of the sweep, if any, and draw them."""
    typed = OverridesParser.create().parse_overrides(list(config.hydra.overrides.task))
    if any(o.is_sweep_override() and o.key_or_group in ("name", "outputs") for o in typed):
        return  # the runs are in several directories
    root = Path(str(config.outputs)) / str(config.name)
    if "hydra.sweep.dir" in last_of(config.hydra.overrides.hydra):
        root = Path(str(config.hydra.sweep.dir))
    if not any(root.rglob("status.json")):
        return
    comparisons = pairs(read_runs(root))
    if not any(c.pairs for c in comparisons):
        return
    print(f"\nAll runs in {root}:")
    print_comparisons(comparisons)
    try:
        if picture := _draw(comparisons):
            write_atomically(root / "comparison.png", picture)
            print(f"\nPicture: {root / 'comparison.png'}")
    except Exception as error:  # the runs are done, and a picture can be drawn again
        reason = first_line(error, with_class=True)
        print(f"\nwarning: no picture was drawn, {reason}", file=sys.stderr)
    page = shlex.join([str(root), "--html", str(root / "comparison.html")])
    print(f"More:    attnlab compare {page}")
    print(f"         attnlab runs {shlex.quote(str(root))}")


def _draw(comparisons: Sequence[Comparison]) -> bytes | None:
    """The comparison as a PNG file; None if there is nothing to draw."""
    from attnlab.plotting.comparisons import comparison
    from attnlab.plotting.drawing import pixels, png, styled
    from attnlab.runs.figure_data import figure_data

    with styled():
        figure = comparison(figure_data(comparisons))
        return None if figure is None else png(pixels(figure))
