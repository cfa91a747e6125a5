"""attnlab from Python: the runs of the command line, in a notebook or a program.

run = attnlab.train("attn=unscaled", "preset=micro", seed=0)
runs = attnlab.sweep("attn=sdpa,unscaled", "preset=micro", "seed=0,1,2")
attnlab.compare(runs)
attnlab.look(run)
"""

import contextlib
import html
import itertools
import linecache
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeGuard, runtime_checkable

import pandas as pd

from attnlab.errors import BadInput
from attnlab.files import JsonObject
from attnlab.interrupts import interrupts_wait
from attnlab.runs.compared_runs import ComparedRuns, compared_runs
from attnlab.runs.frame import read_run, read_runs
from attnlab.runs.losses import judge_table
from attnlab.settings.roles import MAIN, last_of, value_as_typed

if TYPE_CHECKING:  # imported when something is trained
    import lightning.pytorch as L

    from attnlab.model import GPT
    from attnlab.settings.source import CodeBeside
    from attnlab.training.workers import Workers

Defined = Callable[..., object]  # a class or a function


@runtime_checkable
class HasImportPath(Protocol):
    """What has a name of its own: a class or a function, but not an object of a class."""

    __qualname__: str


GROUPS = ("attn", "model", "data", "optim")  # whose `_target_` a class given for them is
# Settings of which a run has one value, so that a list is several runs.
ONE_OF = (*GROUPS, "preset", "experiment", "seed")


@dataclass(frozen=True)
class TrainedRun:
    """A run that has ended."""

    folder: Path  # the run directory
    metrics: JsonObject  # the content of its metrics.json
    fresh: bool  # False if the run had ended before, and nothing was trained

    @property
    def loss(self) -> float:
        """The validation loss in nats per prediction."""
        return float(self.metrics["val_loss"])

    def model(self) -> "GPT":
        """The trained model in evaluation mode, on the CPU. It is built by the classes of its
        settings, which are trusted."""
        from attnlab.trained.checkpoints import open_model

        return open_model(self.folder, trust=True).net

    def __repr__(self) -> str:
        status = str(self.metrics["status"])
        if not self.fresh:
            status += " before"
        name = read_run(self.folder).get("attn", self.metrics["variant"])
        return (
            f"{name} with seed {self.metrics['seed']}: {status}, validation "
            f"loss {self.loss:.4f} nats per {self.metrics['unit']}\n{self.folder}"
        )


@dataclass(frozen=True)
class Asked:
    """A run as Python asked for it: as overrides of the command line, and what these name."""

    overrides: tuple[str, ...]
    # Classes and functions of a notebook or script, by their name there.
    of_main: Mapping[str, Defined]
    config_dir: str | None = None  # as --config-dir


def train(
    *overrides: str,
    callbacks: "Sequence[L.Callback]" = (),
    config_dir: str | Path | None = None,
    **settings: object,
) -> TrainedRun:
    """Train one model as `attnlab train` does: the same directory, bits, metrics and resuming.

    Args:
        overrides: as on the command line, such as "attn=unscaled" or "optim.lr=3e-3".
        callbacks: Lightning callbacks. Their class, its source and their arguments are settings of
            the run, if the arguments can be read from attributes of the same name. A run with
            others is marked as not repeatable: it is trained once, and neither repeated nor
            resumed.
        config_dir: a directory of settings of your own, as --config-dir.
        settings: further overrides, such as seed=0 or outputs="/tmp/runs". A class or a function
            may stand where a name would: `attn=MyLayer`, `**{"attn.may_attend": my_mask}`, or
            `**{"+callbacks.mine": MyCallback}`.

    Returns the run; if it has ended before, nothing is trained. After Ctrl-C, the same call
    resumes it.

    Raises BadInput where the command would print a sentence.
    """
    _load_training()
    asked = _asked(overrides, settings, config_dir)
    _warn_of_unseen(asked.of_main)
    return _train(asked, callbacks)


def sweep(
    *overrides: str,
    jobs: int | None = None,
    config_dir: str | Path | None = None,
    **settings: object,
) -> pd.DataFrame:
    """Train all combinations of comma-separated values, as `attnlab train -m` does.

    Args:
        overrides, config_dir, settings: as for `train`; "seed=0,1,2" and "seed=range(3)" are
            three runs, and so is a list for `seed`, `attn`, `model`, `data`, `optim`, `preset` or
            `experiment`: `attn=[MyLayer, "sdpa"]`. A list that has a class or a function is
            several runs for other settings, too, and any other list is one value.
        jobs: processes; by default as many as `attnlab train -m` has. With 1, the runs follow each
            other in this process.

    Returns the runs of the sweep as a frame, one row a run, as `read_runs` does. Raises BadInput
    with the first reason if a run failed; the others are trained first.
    """
    with interrupts_wait():
        from attnlab.settings import source  # noqa: F401  # and with it torch
        from attnlab.settings.words import explanation  # noqa: F401  # and with it Hydra
        from attnlab.training.sweep_progress import runs_at_once
        from attnlab.training.workers import Workers

    each = []
    for given in _of_each_run(settings):
        asked = _asked(overrides, given, config_dir)
        each += [replace(asked, overrides=typed) for typed in _combinations(asked.overrides)]
    of_main = {name: defined for one in each for name, defined in one.of_main.items()}
    _warn_of_unseen(of_main)
    devices = last_of(each[0].overrides).get("trainer.devices", "=1").partition("=")[2]
    jobs = min(jobs or runs_at_once(devices), len(each))
    folders = []
    reasons = []
    with Workers(jobs) as workers:
        in_order = map(_train_or_say_why, each)
        ended = in_order if jobs == 1 else _train_in_workers(workers, of_main, each)
        for n, (folder, reason) in enumerate(ended, start=1):
            print(f"{n} of {len(each)}: {folder or reason}", flush=True)
            if reason:
                reasons.append(reason)
            else:
                folders.append(folder)
    if reasons:
        raise BadInput(f"{len(reasons)} of {len(each)} runs failed, the first one: {reasons[0]}")
    return read_runs(*folders)


def compare(
    *runs: pd.DataFrame | str | Path,
    baseline: str | None = None,
    best: str | None = None,
    where: Sequence[str] = (),
    within: float | None = None,
    columns: Sequence[str] = (),
) -> ComparedRuns:
    """Compare runs with their baseline, seed by seed, as `attnlab compare` does.

    Args:
        runs: a frame of `read_runs` or `sweep`, or directories.
        baseline, best, where, within, columns: the options of the command.

    Raises BadInput where the command would print a sentence.
    """
    with interrupts_wait():
        import attnlab.runs.figure  # noqa: F401  # which a notebook shows next

    return compared_runs(
        _frame_of(runs),
        baseline=baseline,
        best=best,
        where=[where] if isinstance(where, str) else where,
        within=within,
        columns=columns,
    )


def judge(
    frame: pd.DataFrame, baseline: str | None = None, within: float | None = None
) -> ComparedRuns:
    """Judge the losses of any training script by the rule of `compare`, as `attnlab judge` does.

    Args:
        frame: a row for each run and seed, with the columns `run` (what was run), `seed` (a whole
            number) and `value` (a loss, so lower is better; NaN or infinite if the run diverged).
            Of a column `step`, the last one of each run and seed counts. `unit` names the unit.
            Other columns are not read.
        baseline: what the others are compared with; by default what the first row names.
        within: also judge whether two losses are equal within so much.

    Raises BadInput for a table that cannot be judged, such as one without seeds.
    """
    return judge_table(frame, baseline, within)


def look(
    *runs: TrainedRun | str | Path, text: str | None = None, trust: bool = False
) -> "AttentionMaps":
    """Show the attention maps of trained models in a notebook, with tokens to hover, as the page
    of `attnlab explore` does.

    Args:
        runs: one or several, to see side by side: runs, their directories, checkpoints, or "hf:"
            and a model of transformers.
        text: what the models read; by default, the history of a run on its validation text.
        trust: as for `load_model`; classes of a run that this process trained are trusted.

    Raises BadInput if there is no such model, or the text does not fit it.
    """
    from attnlab.pages.explorer import explore

    trained = any(isinstance(run, TrainedRun) for run in runs)
    targets = [run.folder if isinstance(run, TrainedRun) else run for run in runs]
    return AttentionMaps(explore(*targets, text=text, trust=trust or trained))


@dataclass(frozen=True)
class AttentionMaps:
    """The page of `attnlab explore`, which a notebook shows in a cell."""

    page: str  # HTML, which loads nothing

    def __repr__(self) -> str:
        return "attention maps: show them in a notebook, or write .page to a file"

    def _repr_html_(self) -> str:
        # A frame of its own: neither styles nor scripts of page and notebook meet.
        frame = "width: 100%; height: 860px; border: 0; resize: vertical"
        content = html.escape(self.page)
        return f'<iframe sandbox="allow-scripts" style="{frame}" srcdoc="{content}"></iframe>'


def _frame_of(runs: Sequence[pd.DataFrame | str | Path]) -> pd.DataFrame:
    """Frames and directories as one frame."""
    if not runs:
        raise BadInput("compare takes runs: a frame, or directories")
    parts = [x if isinstance(x, pd.DataFrame) else read_runs(x) for x in runs]
    return pd.concat(parts, ignore_index=True)


def _asked(
    overrides: Sequence[str], settings: Mapping[str, object], config_dir: str | Path | None
) -> Asked:
    """Overrides and settings as overrides alone; BadInput for a value that is none."""
    typed = []
    of_main: dict[str, Defined] = {}
    for override in overrides:
        if not isinstance(override, str):
            raise BadInput(f"{override!r} must be an override such as 'attn=unscaled'")
        typed.append(override)
    for key, value in settings.items():
        if _is_several_runs(value, key):
            raise BadInput(f"{key} = {value} is several runs: train makes one, sweep takes a list")
        named = _named(key, value, of_main)
        is_part = key in GROUPS or re.fullmatch(r"\+?callbacks\.\w+", key)
        path = f"{key}._target_" if is_part and callable(value) else key
        typed.append(f"{path}={_as_typed(key, named)}")
    for override in typed:
        name = override.partition("=")[2].removeprefix(MAIN)
        if f"={MAIN}{name}" in override and name in vars(sys.modules["__main__"]):
            of_main.setdefault(name, vars(sys.modules["__main__"])[name])
    main = vars(sys.modules["__main__"])
    for name, value in of_main.items():
        # The class of a class is found by the name of that.
        if "." not in name and main.setdefault(name, value) is not value:
            raise BadInput(f"{name} was defined again since; give the one that has this name now")
    return Asked(tuple(typed), of_main, None if config_dir is None else str(config_dir))


def _of_each_run(settings: Mapping[str, object]) -> list[dict[str, object]]:
    """The settings of each run of a sweep: all combinations of the lists."""
    choices = []
    for key, value in settings.items():
        several = value if _is_several_runs(value, key) else [value]
        choices.append([(key, one) for one in several])
    return [dict(given) for given in itertools.product(*choices)]


def _is_several_runs(value: object, key: str) -> TypeGuard[Sequence[object]]:
    """Whether a value is one for each run of a sweep. `_target_` may be a list of classes."""
    if not isinstance(value, list | tuple | range):
        return False
    return key in ONE_OF or (not key.endswith("_target_") and any(map(callable, value)))


def _named(key: str, value: object, of_main: dict[str, Defined]) -> object:
    """A value with import paths for classes and functions; those of a notebook go to `of_main`."""
    if isinstance(value, list | tuple):
        return [_named(key, one, of_main) for one in value]
    if not callable(value):
        return value
    name = _name_of(key, value)
    if name.startswith(MAIN):
        of_main[name.removeprefix(MAIN)] = value
    return name


def _name_of(key: str, value: Defined) -> str:
    """The import path of a class or function; BadInput if it cannot be found by one."""
    if not isinstance(value, HasImportPath):
        kind = type(value).__name__
        raise BadInput(f"{key} = an object of {kind}: give the class, or a function that makes it")
    name = value.__qualname__
    if "<" in name:  # <locals>, <lambda>
        raise BadInput(f"{key} = {name}: define it by name at the top of a cell or a module")
    return f"{value.__module__}.{name}"


def _as_typed(key: str, value: object) -> str:
    """The value of a setting as an override has it; BadInput if it has none."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    elif isinstance(value, str) and re.fullmatch(r"[\[{'\"].*|.*,.*|\w+\(.*\)|", value):
        return value  # as on the command line: a list, a quoted text, the values of a sweep
    try:
        return value_as_typed(value)
    except TypeError:
        kinds = "a text, a number, a list, a class or a function"
        raise BadInput(f"{key} = {value!r} is no setting: give {kinds}") from None


def _combinations(overrides: Sequence[str]) -> list[tuple[str, ...]]:
    """The overrides of each run of a sweep; BadInput for wrong grammar."""
    from hydra.errors import HydraException

    from attnlab.settings.typed import for_hydra
    from attnlab.settings.words import explanation
    from attnlab.training.sweep_progress import runs_of

    try:
        runs = runs_of([*map(for_hydra, overrides)], {})
    except HydraException as error:
        raise BadInput(explanation(error, overrides)) from error
    if runs is None:
        raise BadInput("glob(...) names no values in Python; give them, as in attn=sdpa,unscaled")
    return runs


def _load_training() -> None:
    """Import the packages that training needs, in one piece."""
    with interrupts_wait():
        import attnlab.probes.history
        import attnlab.probes.patterns
        import attnlab.training.train  # noqa: F401


def _train(
    asked: Asked, callbacks: "Sequence[L.Callback]" = (), quiet: bool = False
) -> TrainedRun:
    """Train what was asked for, and leave the process as it was."""
    _load_training()
    from attnlab.training.train import train as train_words

    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.append(str(Path.cwd()))  # the user's own modules, as the command does
    with process_as_before():
        result = train_words(
            asked.overrides, config_dir=asked.config_dir, callbacks=callbacks, quiet=quiet
        )
    return TrainedRun(result.folder, result.metrics, result.fresh)


def _train_or_say_why(asked: Asked) -> tuple[str, str]:
    """The directory of a run of a sweep, or the reason why it failed."""
    try:
        return str(_train(asked, quiet=True).folder), ""
    except Exception as error:  # of the user's code; the other runs go on
        return "", _why_failed(asked, error)


def _why_failed(asked: Asked, error: BaseException) -> str:
    """The words of a run of a sweep, and why it failed."""
    reason = str(error) if isinstance(error, BadInput) else repr(error)
    return f"{' '.join(asked.overrides)}: {reason}"


def _train_in_workers(
    workers: "Workers", of_main: Mapping[str, Defined], each: Sequence[Asked]
) -> Iterator[tuple[str, str]]:
    """The same for each run, as they end."""
    in_worker = partial(_train_in_worker, lines=_lines_of(of_main), path=sys.path)
    for (asked,), future in workers.each(in_worker, ((asked,) for asked in each)):
        error = future.exception()  # the process itself ended
        yield ("", _why_failed(asked, error)) if error else future.result()


def _train_in_worker(
    asked: Asked, lines: Mapping[str, Sequence[str]], path: list[str]
) -> tuple[str, str]:
    """The same in a process of its own, with the source of the notebook's cells."""
    sys.path[:] = path
    # A worker that has trained before may have another class of this name.
    vars(sys.modules["__main__"]).update(asked.of_main)
    for file, of in lines.items():
        text = "".join(of)
        linecache.cache[file] = (len(text), None, [*of], file)
    return _train_or_say_why(asked)


def _lines_of(of_main: Mapping[str, Defined]) -> dict[str, list[str]]:
    """The lines of the cells in which classes and functions are defined, and what these use, by
    their file names."""
    beside = _beside(of_main)
    return {file: linecache.getlines(file) for file in beside.files}


def _beside(of_main: Mapping[str, Defined]) -> "CodeBeside":
    """What classes and functions of a notebook compute with."""
    from attnlab.settings.source import CodeBeside

    beside = CodeBeside("__main__")
    for value in of_main.values():
        beside.read(value)
    return beside


def _warn_of_unseen(of_main: Mapping[str, Defined]) -> None:
    """Say which values of a notebook are no part of the run, though its code reads them."""
    unseen = sorted({*_beside(of_main).unseen})
    if unseen:
        warnings.warn(
            f"{' and '.join(of_main)} read {', '.join(unseen)}, whose changes are not seen: only "
            "numbers, texts, and lists and dicts of them are part of a run; after a change, use "
            "another name=, or force=True",
            stacklevel=3,
        )


@contextlib.contextmanager
def process_as_before() -> Iterator[None]:
    """Undo what training changes in its process: warnings, random numbers, deterministic
    algorithms, and the answer to Ctrl-C, which Lightning turns off when it was pressed once."""
    import signal
    import threading

    import torch

    handler = signal.getsignal(signal.SIGINT)
    random = torch.get_rng_state()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    try:
        with warnings.catch_warnings():
            yield
    except SystemExit as stop:
        if stop.code == 128 + signal.SIGINT:  # for a command; it would end a notebook's kernel
            raise KeyboardInterrupt from None
        raise
    finally:
        torch.set_rng_state(random)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)
