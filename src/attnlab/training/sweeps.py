"""Sweeps: a run that fails does not stop the others, and is recorded in the sweep's directory."""

import math
import os
import shlex
import statistics
import sys
import traceback
from collections.abc import Callable, Sequence
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
from attnlab.runs.pairing import pairs
from attnlab.runs.printing import log_sentences, print_comparisons
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
    seeds = {number: last_of(overrides).get("seed", "") for number, overrides in tasks}
    order = list(seeds.values())
    return sorted(tasks, key=lambda task: order.index(seeds[task[0]]))


class Forecast:
    """When a sweep of so many runs, of which `jobs` run at once, will end, by the durations of the
    runs that have ended."""

    def __init__(self, runs: int, jobs: int) -> None:
        self.left, self.jobs, self.began = runs, jobs, 0.0
        self.durations: list[float] = []

    def after(self, now: float, seconds: float | None) -> float:
        """Seconds left when a run has ended; 0 if unknown. `seconds` is what the run took without
        imports, None if it was already done or its process died."""
        self.left -= 1
        if seconds is not None:
            self.began = self.began if self.durations else now - seconds
            self.durations.append(seconds)
        if not self.durations or not self.left:
            return 0.0
        # No process waits, so what they have worked beyond the durations belongs to other runs,
        # until they wait for the last run: each for half a run on average.
        begun = self.jobs * (now - self.began) - sum(self.durations)
        work = (self.left + (self.jobs - 1) / 2) * statistics.fmean(self.durations) - begun
        return max(work, 0.0) / self.jobs


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
        notes = [read_json(file) | {"file": file} for file in _notes(config.hydra.sweep.dir)]
        for outcome, heading in HEADINGS.items():
            those = [note for note in notes if note["outcome"] == outcome]
            lines = [f"{heading}, {len(those)} of this sweep's runs; to repeat each one:"]
            for note in those:
                lines.append(f"  {training_command()} {shlex.join(note['overrides'])}")
                lines.append(f"    # {' '.join(note['reason'].split())}")
                if WANTS_TRACEBACK:
                    lines.append(note["traceback"])
                elif note["traceback"] and outcome == "failed":
                    lines.append(f"    # the traceback is in {note['file']}")
            if those:
                print("\n".join(lines), file=sys.stderr)
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
    log_sentences([run for c in comparisons for run in c.setting.runs], comparisons)
    try:
        from attnlab.plotting.drawing import encoded, styled
        from attnlab.runs.comparison_figure import comparison, figure_data

        with styled():
            if figure := comparison(figure_data(comparisons)):
                content = encoded(figure, "comparison", "png")
                write_atomically(root / "comparison.png", content)
                print(f"\nPicture: {root / 'comparison.png'}")
    except Exception as error:  # the runs are done, and a picture can be drawn again
        reason = first_line(error, with_class=True)
        print(f"\nwarning: no picture was drawn, {reason}", file=sys.stderr)
    page = shlex.join([str(root), "--html", str(root / "comparison.html")])
    print(f"More:    attnlab compare {page}")
    print(f"         attnlab runs {shlex.quote(str(root))}")
