"""Run what is missing and keep its rows: what `attnlab reproduce` and `attnlab rank` do."""

import json
import math
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from attnlab.claims.rows import Rows, machine
from attnlab.claims.trials import Row, Run, is_measurement, without_rate
from attnlab.errors import BadInput
from attnlab.files import write_json
from attnlab.processor import SMALLER_SETS, instruction_set
from attnlab.settings.roles import flat, in_present_words
from attnlab.training.workers import THREADS, WorkerDied, Workers

if TYPE_CHECKING:
    from attnlab.training.config import RunConfig

DEFAULTS = ("train_loss=false",)  # of a run of claims; an arm may turn it on
ARM_GROUPS = ("attn", "model", "data", "optim", "trainer")  # of the settings of an arm
# Numbers of metrics.json that rows leave out: they are settings, or differ from time to time.
NOT_IN_ROWS = ("wall_seconds", "tokens_per_second", "seed", "devices", "threads")


@dataclass(frozen=True)
class RunsAhead:
    """About how many runs are still to come in all, and their CPU minutes."""

    runs: int
    minutes: float


@dataclass(frozen=True)
class Work:
    """What a command does for a claim or the ranking."""

    folder: Path  # of claim.yaml or ranking.yaml
    outputs: Path  # contains the run directories, `runs/<n>`, and rows that are not committed
    rows: Rows  # of its test
    commit: str  # of new rows, with a + if files differ from it
    missing: Callable[[], Sequence[Run]]  # runs that can be made now
    # Functions that read a finished run, by its overrides without the learning rate.
    reads: Mapping[tuple[str, ...], Sequence[str]] = field(default_factory=dict)
    again: Rows | None = None  # of its repetition, which `--again` adds to; None if it has none
    smaller_set: str = ""  # the instruction set of `--again`; by default, the processor's own
    ahead: Callable[[], RunsAhead | None] | None = None  # an estimate, where there is one

    @property
    def new_rows(self) -> Rows:
        """The rows to which new ones are added: those of the repetition if `--again` runs, which
        alone sets the instruction set; or else those of the test."""
        return self.again if self.again is not None and self.smaller_set else self.rows


@dataclass
class Progress:
    """How many runs ended, of how many, as far as is known."""

    ended: int = 0
    of: str = ""

    def begin_round(self, work: Work, runs: int) -> None:
        """Print how many runs come next; and, where there is an estimate, of how many in all, as
        rounds follow that depend on their results."""
        ahead = work.ahead() if work.ahead else None
        if ahead:
            self.of = f"about {self.ended + ahead.runs}"
            print(f"{runs} runs come next, of about {ahead.runs}", flush=True)
        else:
            self.of = str(self.ended + runs)
            print(f"{runs} runs come next", flush=True)

    def end_run(self, run: Run) -> None:
        """Count a run that ended, and print it."""
        self.ended += 1
        print(f"{self.ended} of {self.of}: {run}", flush=True)


def run_missing(work: Work, train: Callable[..., Row], jobs: int, minutes: float | None) -> bool:
    """Run what is missing, with `train` in so many processes, until nothing is missing. False if
    the minutes were over before (None: no limit); the same call then continues.

    What is missing follows from the rows so far, so it is asked for again after each round: the
    best rates are known only when all rates were tried. After a run that fails no other begins;
    the rows of those that are running are kept, and its error is raised.
    """
    until = time.monotonic() + 60 * minutes if minutes else math.inf
    if not work.missing():
        return True
    if work.commit.endswith("+"):
        print(
            f"Files differ from {work.commit[:8]}, so the verdict will be exploratory; commit "
            "them before a test."
        )
    # One thread each, so that rounding has one order.
    environment = dict.fromkeys(THREADS, "1") | SMALLER_SETS.get(work.smaller_set, {})
    with Workers(jobs, environment) as workers:
        progress = Progress()
        while runs := list(work.missing()):
            progress.begin_round(work, len(runs))
            if not run_round(work, train, runs, workers, until, progress):
                return False
    return True


def run_round(
    work: Work,
    train: Callable[..., Row],
    runs: Sequence[Run],
    workers: Workers,
    until: float,
    progress: Progress,
) -> bool:
    """Run some runs and keep their rows, with commit and machine. False if the clock passed
    `until`, as time.monotonic() tells it, before all had begun. After an error no other run
    begins; it is raised when those that are running have ended. It is an error, too, if a run of
    `--again` did not use the instruction set that it is for."""
    left = list(runs)[::-1]  # reversed, so that pop takes the first
    errors: list[BaseException] = []

    def arguments_of_runs() -> Iterator[tuple[Run, Path, Path, Sequence[str]]]:
        """The arguments of `train` for each run that still may begin."""
        while left and not errors and time.monotonic() < until:
            run = left.pop()
            reads = work.reads.get(without_rate(run.overrides), ())
            yield run, directory_of(run, work.outputs, work.commit), work.folder, reads

    for (run, *_), future in workers.each(train, arguments_of_runs()):
        if error := future.exception():
            # A process that died does not say in which run.
            errors.append(BadInput(f"{run}: {error}") if isinstance(error, WorkerDied) else error)
            continue
        row = future.result()
        row["commit"] = work.commit
        row["machine"] = machine()
        if work.smaller_set and row["instruction_set"] != work.smaller_set:
            used = f"torch used {row['instruction_set']} instead of {work.smaller_set}"
            needs = (
                "--again needs an x86 processor, and CUDA_VISIBLE_DEVICES= where there is a GPU"
            )
            errors.append(BadInput(f"{used}; {needs}"))
            continue
        progress.end_run(work.new_rows.add(row))
    if errors:
        raise errors[0]
    return not left


def directory_of(run: Run, outputs: Path, commit: str) -> Path:
    """The directory of a run, `runs/<n>`: the one in which this commit began it, or the next
    number. Which run has which number is written in `<n>.json` beside it, as overrides may be too
    long for the name of a directory."""
    key = {"overrides": list(run.overrides), "seed": run.seed, "commit": commit}
    files = sorted((outputs / "runs").glob("*.json"))
    for file in files:
        if json.loads(file.read_bytes()) == key:
            return file.with_suffix("")
    number = int(files[-1].stem) + 1 if files else 1
    file = outputs / "runs" / f"{number:05}.json"
    write_json(file, key)
    return file.with_suffix("")


def train_run(run: Run, directory: Path, folder: Path, reads: Iterable[str] = ()) -> Row:
    """Train one run in a directory as `train.py` does, and read it with the functions `reads`; or
    call the measurement that it names. `folder` is that of the claim, which holds these functions.
    The result, with the processor's time for all of it."""
    began = time.process_time()
    if is_measurement(run.overrides):
        status = "finished"
        used = instruction_set_used("cpu", instruction_set())
        values = dict(import_beside(folder, run.overrides[0])(run.seed))
    else:
        from attnlab.training.train import train  # Lightning takes seconds to import

        words = [*DEFAULTS, *run.overrides, f"seed={run.seed}"]
        own = own_settings_dir(folder.parent)
        metrics = train(words, config_dir=own, folder=directory).metrics
        status = metrics["status"]
        used = instruction_set_used(metrics["device"], metrics["instruction_set"])
        values = values_of(metrics)
        if status != "diverged":
            for name in reads:
                values |= import_beside(folder, name)(directory)
    return {
        "overrides": list(run.overrides),
        "seed": run.seed,
        "status": status,
        "values": values,
        "cpu_seconds": round(time.process_time() - began, 1),
        "instruction_set": used,
    }


def instruction_set_used(device: str, capability: str) -> str:
    """The instruction set of a run as pages name it; on a GPU, the kind of the device.
    `capability` is PyTorch's word: DEFAULT where it uses no AVX, which on x86 is SSE4.2."""
    if device != "cpu":
        return device
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return "SSE4.2" if capability == "DEFAULT" and is_x86 else capability


def values_of(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """What a row keeps of metrics.json: its numbers, without those that are settings or times.

    The curve of `probes=curve`, as of the ranking, is kept as well; and with it the costs and,
    where several lengths of sequences are evaluated, the accuracy at the longest.
    """
    values: dict[str, Any] = {}
    for key, x in metrics.items():
        if isinstance(x, int | float) and key not in NOT_IN_ROWS:
            values[key] = x
    if curve := metrics["probes"].get("curve"):
        values |= {"curve": curve, "costs": metrics["costs"]}
        if lengths := metrics.get("by_length"):
            values["accuracy_at_length"] = lengths[max(lengths, key=int)]["accuracy"]
    return values


def import_beside(folder: Path, name: str) -> Callable[..., Any]:
    """The function `module.function`, of a module in `folder`, beside claim.yaml; BadInput if it
    cannot be imported."""
    try:
        return resolve_name(f"{folder.parent.name}.{folder.name}.{name}")
    except (ModuleNotFoundError, AttributeError) as error:
        raise BadInput(f"{name} of {folder} cannot be imported: {error}") from error


def composed(overrides: Sequence[str], experiments: Path) -> tuple["RunConfig", str]:
    """The checked configuration of a run of claims, and the name of its variant. Settings in
    `conf` of the directory of claims count, too. BadInput, in the words of the command line, if
    the overrides are wrong."""
    from attnlab.settings.words import composed_from
    from attnlab.training.config import read_config

    cfg, variant = composed_from([*DEFAULTS, *overrides], own_settings_dir(experiments))
    return read_config(cfg), variant


@cache
def arm_settings(overrides: tuple[str, ...], experiments: Path) -> dict[str, Any]:
    """The settings with which an arm is trained, under dotted keys: its overrides, and what they
    leave as it is by default; of a measurement, its name alone. They are not checked, which would
    take longer and import code."""
    if is_measurement(overrides):
        return {"the measurement": overrides}
    from omegaconf import OmegaConf

    from attnlab.settings.words import composed_from

    cfg, _ = composed_from([*DEFAULTS, *overrides], own_settings_dir(experiments))
    settings = {group: OmegaConf.to_container(cfg[group], resolve=True) for group in ARM_GROUPS}
    return flat(in_present_words(settings))


def own_settings_dir(experiments: Path) -> str | None:
    """The path of the directory `conf` beside the claims, whose settings claims alone use; None if
    there is none."""
    own = experiments.resolve() / "conf"
    return str(own) if own.is_dir() else None
