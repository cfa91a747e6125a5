"""What train.py adds to Hydra: one sentence for bad input, and a table for a result."""

import math
import os
import re
import shlex
import shutil
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from hydra import compose
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from attnlab.errors import DISK, BadInput, Terminated
from attnlab.files import fast_imports, make_importable, make_named_importable, training_command
from attnlab.training.comparison import compare, remarks
from attnlab.training.error_messages import in_one_sentence
from attnlab.training.run_directory import APART, RunDirectory, folder_for, last_of, variant_of
from attnlab.training.sweeps import WANTS_TRACEBACK, attempt, share_threads

if TYPE_CHECKING:
    from attnlab.training.lightning_module import TaskModule
    from attnlab.training.run import Result


def train(cfg: DictConfig) -> float:
    """Train with the configuration that Hydra composed, and show the result.

    Returns:
        the validation loss, for Hydra's sweepers; NaN if a run of a sweep failed.
    """
    hydra = HydraConfig.get()
    for source in hydra.runtime.config_sources:
        if source.provider == "command-line":  # --config-dir
            make_importable(Path(source.path))
    overrides = list(hydra.overrides.task)
    make_named_importable(overrides)
    # A configuration that was saved by a run and is given by --config-path has made no choices.
    variant = variant_of(str(hydra.runtime.choices.get("attn", "as_saved")))

    def trained() -> "Result":
        with fast_imports():  # PyTorch, and Lightning once the settings are checked
            from attnlab.training.config import read_config

            config = read_config(cfg)
            from attnlab.training.run import run
        usual = folder_for(cfg, variant, without_defaults(cfg, hydra))
        folder = directory_by_hydra(hydra, usual) or usual
        return run(config, folder, variant=variant, overrides=overrides)

    if hydra.mode == RunMode.MULTIRUN:
        share_threads(hydra)
        devices = cfg.trainer.devices
        return attempt(lambda: _one_of_many(devices, trained), hydra, arguments_of(hydra))
    try:
        result = trained()
    except BadInput as error:
        if WANTS_TRACEBACK:
            raise
        _say(error)
        raise SystemExit(2) from None
    if os.environ.get("LOCAL_RANK", "0") == "0":
        show(result, arguments_of(hydra))
    return float(result.metrics["val_loss"])


def directory_by_hydra(hydra: HydraConf, folder: Path) -> Path | None:
    """The run directory that `hydra.run.dir=` or `hydra.sweep.dir=` names; None without them.

    Args:
        hydra: Hydra's own configuration.
        folder: what the run is called otherwise. Its last two parts name it inside a sweep.

    Raises:
        BadInput: `hydra.sweep.subdir` is changed.
    """
    keys = {override.lstrip("+").partition("=")[0] for override in hydra.overrides.hydra}
    if "hydra.sweep.subdir" in keys:
        raise BadInput(
            "hydra.sweep.subdir is not supported: runs of a sweep are named by their settings "
            "and their seed; use hydra.sweep.dir"
        )
    if hydra.mode == RunMode.MULTIRUN:
        sweeps_there = "hydra.sweep.dir" in keys
        return Path(hydra.runtime.output_dir, *folder.parts[-2:]) if sweeps_there else None
    # "." is conf/train.yaml's, and what Lightning's launcher gives to its other processes.
    return Path(hydra.runtime.output_dir) if hydra.run.dir != "." else None


def without_defaults(cfg: DictConfig, hydra: HydraConf) -> list[str]:
    """The overrides that change something: spelling out a default gives the same run directory.

    Args:
        cfg: the configuration that Hydra composed from all of them.
        hydra: Hydra's own configuration.
    """
    overrides = last_of(hydra.overrides.task)
    choices = {key: o for key, o in overrides.items() if key in hydra.runtime.choices}
    values = {key: o for key, o in overrides.items() if key not in choices and key not in APART}

    def composed(*chosen: str) -> DictConfig:
        everything = [*hydra.overrides.hydra, *chosen]
        return compose(hydra.job.config_name, everything, return_hydra_config=True)

    changing = []
    for key, override in choices.items():
        others = [o for o in choices.values() if o != override]
        if key in APART or composed(*others).hydra.runtime.choices != hydra.runtime.choices:
            changing.append(override)
    if values:
        plain = composed(*choices.values())
        for key, override in values.items():
            if OmegaConf.select(plain, key, default=MISSING) != OmegaConf.select(cfg, key):
                changing.append(override)
    return changing


def arguments_of(hydra: HydraConf) -> list[str]:
    """The command line that repeats a single run."""
    added = [s.path for s in hydra.runtime.config_sources if s.provider == "command-line"]
    return [f"--config-dir={path}" for path in added] + list(hydra.overrides.task)


def arrange_arguments() -> None:
    """Let -m stand among the overrides, and a run directory be typed as it is called.

    Hydra's parser takes flags before or after all overrides, and its grammar takes a value with
    "=" or "," only in quotes.
    """
    typed = sys.argv[1:]
    flags = [word for word in typed if word in ("-m", "--multirun")]
    overrides = [word for word in typed if word not in flags]
    quoted = [re.sub(r"^(continue_from)=([^'\"]+)$", r"\1='\2'", word) for word in overrides]
    sys.argv[1:] = flags + quoted


def _one_of_many(devices: int | str, trained: Callable[[], "Result"]) -> float:
    if devices not in (1, "1"):
        # Lightning would start its other processes with the command line of the whole sweep.
        raise BadInput(
            f"trainer.devices = {devices}: runs on several devices cannot be "
            "swept in one process; start them one by one, or sweep with trainer.devices=1"
        )
    result = trained()
    loss = f"val loss {result.metrics['val_loss']:.4f} on {result.metrics['corpus']['name']}"
    print(f"{result.folder}: {_outcome(result)}, {loss}", flush=True)
    return float(result.metrics["val_loss"])


@contextmanager
def one_sentence() -> Iterator[None]:
    """Report an error that the user can fix in one sentence, with exit code 2.

    HYDRA_FULL_ERROR=1 shows the traceback instead.
    """
    if WANTS_TRACEBACK:
        yield
        return
    os.environ["HYDRA_FULL_ERROR"] = "1"  # otherwise Hydra prints its own page and exits with 1
    signal.signal(signal.SIGTERM, _terminate)
    python_format, warnings.formatwarning = warnings.formatwarning, _warning
    hook, threading.excepthook = threading.excepthook, _thread_failed
    try:
        yield
    except Terminated:
        print("\nTerminated; the same command resumes.")
        raise
    except KeyboardInterrupt:
        print("\nInterrupted; the same command resumes.")
        raise SystemExit(130) from None
    except BrokenExecutor as error:  # joblib's; it gives up what had not begun
        print(
            f"error: a process of the sweep was killed; the same command resumes. ({error})",
            file=sys.stderr,
        )
        raise SystemExit(1) from None
    except (BadInput, HydraException, OmegaConfBaseException, OSError) as error:
        _say(error)
        raise SystemExit(2) from None
    except Exception as error:
        *_, (frame, _line) = traceback.walk_tb(error.__traceback__)
        # Hydra itself fails by a plain ValueError (probes=null) or otherwise (attn=[1]).
        if frame.f_globals["__name__"].partition(".")[0] not in ("hydra", "omegaconf"):
            raise
        _say(error)
        raise SystemExit(2) from None
    finally:
        warnings.formatwarning = python_format
        threading.excepthook = hook
        del os.environ["HYDRA_FULL_ERROR"]


def show(result: "Result", overrides: Sequence[str]) -> None:
    """Print the table that a run ends with, and what to do next.

    Args:
        result: of the run.
        overrides: as typed; the suggested comparison repeats those that are not of attention.
    """
    metrics, folder = result.metrics, str(result.folder)
    loss = f"{metrics['val_loss']:.4f} nats per {result.module.unit} over all validation data"
    if "val_floor" in metrics:
        loss += f"; the text's exact entropy is {metrics['val_floor']:.4f}"
    rows = Table(show_header=False, box=SIMPLE, pad_edge=False)
    rows.add_column(no_wrap=True)
    rows.add_column(overflow="fold")
    rows.add_row("status", _outcome(result))
    if metrics["status"] == "diverged":
        rows.add_row("reason", str(RunDirectory(result.folder).status()["reason"]))
    rows.add_row("corpus", metrics["corpus"]["name"])
    rows.add_row("validation loss", loss)
    notes = compare(result.folder, variant_of(result.module.baseline)) | remarks(metrics)
    for name, text in (result.module.summary_rows(metrics) | notes).items():
        rows.add_row(name, text)
    speed = f"{metrics['tokens_per_second']:,.0f} tokens/s on {metrics['device']}"
    if metrics["precision"] != "32-true":
        speed += f", {metrics['precision']}"
    rows.add_row("speed", speed)
    print(f"\n run directory     {folder}")  # never broken, so that it can be copied
    Console(highlight=False, markup=False).print(rows)
    by_name = result.folder.name.startswith("seed=")  # and not by hydra.run.dir
    outputs = shlex.quote(str(result.folder.parents[2] if by_name else result.folder))
    print("Next:")  # in plain lines, which can be copied however narrow the terminal is
    print(f"  {_command('tensorboard')} --logdir {outputs}")
    print(f"  {_command('attnlab')} runs {shlex.quote(str(result.folder.parents[1]))}")
    last = result.folder / "checkpoints" / "last.ckpt"
    if last.exists() and "val_accuracy" not in metrics:  # the symbols of a task are not a text
        for verb in result.module.verbs:
            print(f"  {_command('attnlab')} {verb} {shlex.quote(folder)}")
    program, first = training_command().split()
    print(f"  {_command(program)} {first} {shlex.join(_contrast(overrides, result.module))}")


def _contrast(typed: Sequence[str], module: "type[TaskModule]") -> list[str]:
    """The run to compare this one with: the baseline, or for the baseline a common ablation."""
    settings = last_of(typed)
    attn = [o for key, o in settings.items() if key.split(".")[0] == "attn"]
    once = ("force", "continue_from")
    rest = [o for key, o in settings.items() if o not in attn and key not in once]
    other = module.baseline if set(attn) - {module.baseline} else module.contrast
    return sorted([other, *rest], key=lambda word: not word.startswith("--"))  # as Hydra parses


def _terminate(number: int, frame: FrameType | None) -> None:
    """Raise an exception on SIGTERM, as on Ctrl-C: locks are released, partial files removed."""
    raise Terminated


def _command(name: str) -> str:
    """A command of this environment; its path if the shell would not find it by name."""
    ours = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if found is not None and Path(found).samefile(ours):
        return name
    return os.path.relpath(ours)


def _outcome(result: "Result") -> str:
    metrics = result.metrics
    outcome = str(metrics["status"])
    if outcome == "diverged":
        outcome += f" at step {metrics['diverged_at_step']}"
        last = metrics["last_finite_loss"]
        outcome += f", last finite loss {last:.4f}" if math.isfinite(last) else ", from the start"
    if outcome == "stopped":
        status = RunDirectory(result.folder).status()
        outcome += f" at step {status['step']} of {status['max_steps']}, {status['reason']}"
    if not result.fresh:
        outcome += "; already done, use force=true to rerun"
    return outcome


def _thread_failed(told: threading.ExceptHookArgs) -> None:
    """TensorBoard's thread passes the error of a full disk on to the main one, which prints it."""
    if not (isinstance(told.exc_value, OSError) and told.exc_value.errno in DISK):
        threading.__excepthook__(told)


def _warning(
    message: Warning | str, category: object, filename: str, lineno: int, line: object = None
) -> str:
    """A warning in one line, without the place in the code."""
    return f"warning: {message}\n"


def _say(error: BaseException) -> None:
    print(f"error: {in_one_sentence(error)}", file=sys.stderr)
