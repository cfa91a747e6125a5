"""What train.py adds to Hydra: names of run directories, and errors in one sentence."""

import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache, partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

from hydra import compose
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attnlab.errors import DISK, BadInput, Terminated, disk_message, missing_package
from attnlab.imports import fast_imports, make_importable, make_named_importable
from attnlab.installation import training_command
from attnlab.runs.run_directory import folder_for, variant_of
from attnlab.runs.settings import flat, last_of, settings_with
from attnlab.training.slurm import USER_SIGNALS, requeue, terminate
from attnlab.training.summary import outcome_in_words, show
from attnlab.training.sweeps import WANTS_TRACEBACK, attempt, share_threads

if TYPE_CHECKING:
    from attnlab.training.run import Result

# Plugins of Hydra and the packages that bring them.
PLUGINS = {f"hydra/launcher={kind}": f"hydra-{kind}-launcher" for kind in ("joblib", "ray")}
MOST_NAMED = 10  # options, beside the one that was probably meant


def train(cfg: DictConfig) -> float:
    """Train with the configuration that Hydra composed, and show the result. Returns the loss on
    the validation data, for Hydra's sweepers; NaN if a run of a sweep failed."""
    hydra = HydraConfig.get()
    for source in hydra.runtime.config_sources:
        if source.provider == "command-line":  # --config-dir
            make_importable(Path(source.path))
    make_named_importable(hydra.overrides.task)
    if hydra.mode == RunMode.MULTIRUN:
        share_threads(hydra)
        return attempt(lambda: _train_one_of_many(cfg, hydra), hydra, arguments_of(hydra))
    try:
        result = _train(cfg, hydra)
    except BadInput as error:
        if WANTS_TRACEBACK:
            raise
        _say(error)
        raise SystemExit(2) from None
    from lightning.pytorch.utilities import rank_zero_only

    # Of all nodes; only this process has the whole result.
    if rank_zero_only.rank == 0:  # type: ignore[attr-defined]
        show(result, arguments_of(hydra))
    return float(result.metrics["val_loss"])


def _train(cfg: DictConfig, hydra: HydraConf) -> "Result":
    # With --config-path, a configuration that a run has saved is used without config groups.
    named = last_of(hydra.overrides.task).get("attn")
    if named is not None and "attn" not in hydra.runtime.choices:  # Hydra would merge a list
        raise BadInput(f"{named} is a list; where this comes from, write the variants as a+b")
    variant = variant_of(str(hydra.runtime.choices.get("attn", "as_saved")))
    with fast_imports():  # PyTorch, and Lightning once the settings are checked
        from attnlab.training.config import read_config

        config = read_config(cfg)
        from attnlab.training.run import run
    usual = folder_for(cfg, variant, without_defaults(cfg, hydra))
    folder = directory_by_hydra(hydra, usual) or usual
    for above in folder.absolute().parents:
        if (above / "status.json").exists():
            raise BadInput(f"{folder} lies inside the run directory {above}")
    return run(config, folder, variant=variant, overrides=hydra.overrides.task)


def _train_one_of_many(cfg: DictConfig, hydra: HydraConf) -> float:
    if cfg.trainer.devices not in (1, "1"):
        # Lightning would start its other processes with the command line of the whole sweep.
        raise BadInput(
            f"trainer.devices = {cfg.trainer.devices}: runs on several devices cannot be "
            "swept in one process; start them one by one, or sweep with trainer.devices=1"
        )
    result = _train(cfg, hydra)
    loss = f"val loss {result.metrics['val_loss']:.4f} on {result.metrics['corpus']['name']}"
    print(f"{result.folder}: {outcome_in_words(result)}, {loss}", flush=True)
    return float(result.metrics["val_loss"])


def directory_by_hydra(hydra: HydraConf, folder: Path) -> Path | None:
    """The run directory that `hydra.run.dir=` or `hydra.sweep.dir=` names, if any. In a sweep, the
    last two parts of `folder`, the usual run directory, are kept."""
    keys = last_of(hydra.overrides.hydra)
    if hydra.mode == RunMode.MULTIRUN:
        sweeps_there = "hydra.sweep.dir" in keys
        return Path(hydra.runtime.output_dir, *folder.parts[-2:]) if sweeps_there else None
    if misplaced := keys.keys() & {"hydra.sweep.dir", "hydra.sweep.subdir"}:
        raise BadInput(f"{min(misplaced)} is for a sweep (-m); use hydra.run.dir")
    # "." is the default in conf/train.yaml, and what Lightning passes to its other processes.
    return Path(hydra.runtime.output_dir) if hydra.run.dir != "." else None


def without_defaults(cfg: DictConfig, hydra: HydraConf) -> list[str]:
    """The overrides that change something; an override with the default value does not."""
    overrides = last_of(hydra.overrides.task)
    choices = {key: o for key, o in overrides.items() if key in hydra.runtime.choices}
    named = settings_with("named")
    values = {key: o for key, o in overrides.items() if key not in choices and key not in named}
    sources = tuple((source.provider, source.path) for source in hydra.runtime.config_sources)
    composed = partial(_composed, hydra.job.config_name, sources, *hydra.overrides.hydra)
    changing = []
    for key, override in choices.items():
        others = [o for o in choices.values() if o != override]
        if key in named or composed(*others).hydra.runtime.choices != hydra.runtime.choices:
            changing.append(override)
    if values:
        plain = composed(*choices.values())
        for key, override in values.items():
            value = OmegaConf.select(cfg, key)
            if OmegaConf.select(plain, key, default=MISSING) != value:
                if isinstance(value, int | float):  # 1e-2 is 0.01, and True is true
                    number = f"{value:.15g}" if isinstance(value, float) else str(value).lower()
                    override = f"{key}={number}"
                changing.append(override)
    return changing


@cache  # the runs of a sweep ask for the same
def _composed(name: str, sources: tuple[tuple[str, str], ...], *overrides: str) -> DictConfig:
    return compose(name, list(overrides), return_hydra_config=True)


def arguments_of(hydra: HydraConf) -> list[str]:
    """The arguments of the command that repeats this run."""
    sources = hydra.runtime.config_sources
    added = [f"--config-dir={s.path}" for s in sources if s.provider == "command-line"]
    return added + list(hydra.overrides.task)


def arrange_arguments() -> None:
    """Accept -m among the overrides, where Hydra does not, a list of variants, and without the
    quotes of Hydra's grammar a run directory with "=" and ",", and other letters than ASCII."""
    run = r"(?:continue_from|init_from|hydra\.run\.dir)=[^'\"]+"
    letters = r"[\w./]+=[^'\"(){}\[\],]*[^\x00-\x7f][^'\"(){}\[\],]*"
    # Hydra would make a directory named ~.
    home = re.compile(r"^(outputs|hydra\.(?:run|sweep)\.dir)=~(?=/|$)")
    arguments = [home.sub(lambda x: f"{x[1]}={Path.home()}", word) for word in sys.argv[1:]]
    words = [re.sub(f"^(?={run}$|{letters}$)(.*?)=(.*)", r"\1='\2'", x) for x in arguments]
    sys.argv[1:] = sorted(
        variants_in_turn(words), key=lambda word: word not in ("-m", "--multirun")
    )


def variants_in_turn(words: list[str]) -> list[str]:
    """attn=[a,b] as attn=a+b, which `PeriodSource` composes; Hydra would merge a and b. Then keys
    of attn are added beside the layers, and `read_config` hands them on."""
    of_attn = re.compile(r"\[([^][]*)\]")
    changed = [
        of_attn.sub(lambda found: found[1].replace(" ", "").replace(",", "+"), word)
        if word.startswith("attn=")
        else word
        for word in words
    ]
    if not any(word.startswith("attn=") and "+" in word for word in changed):
        return changed
    return [re.sub(r"^attn\.(?!layers\.)", "++attn.", word) for word in changed]


@contextmanager
def one_sentence() -> Iterator[None]:
    """Print an error that users can fix as a sentence, and exit with 2; HYDRA_FULL_ERROR=1 shows
    the traceback."""
    if WANTS_TRACEBACK:
        yield
        return
    os.environ["HYDRA_FULL_ERROR"] = "1"  # otherwise Hydra prints its own page and exits with 1
    for number in (signal.SIGTERM, *USER_SIGNALS):
        signal.signal(number, terminate)
    # Until the first step, so that a job with a short time limit makes progress.
    signal.pthread_sigmask(signal.SIG_BLOCK, USER_SIGNALS)
    python_format = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"  # in one line
    # Our files of conf/hydra/launcher have the names of the plugin's, which they replace.
    warnings.filterwarnings("ignore", "(?s).*is validated against ConfigStore schema")
    hook, threading.excepthook = threading.excepthook, _thread_failed
    try:
        yield
    except Terminated as end:
        again = "the job is requeued and" if requeue(end) else "the same command"
        print(f"\nTerminated; {again} resumes.")
        raise
    except KeyboardInterrupt:
        print("\nInterrupted; the same command resumes.")
        raise SystemExit(130) from None
    except BrokenExecutor as error:  # of joblib, which then starts no more runs
        sentence = "a process of the sweep was killed; the same command resumes"
        print(f"error: {sentence}. ({error})", file=sys.stderr)
        raise SystemExit(1) from None
    except Exception as error:
        *_, (frame, _line) = traceback.walk_tb(error.__traceback__)
        # Hydra itself fails by a plain ValueError (probes=null) or otherwise (attn=[1]).
        in_hydra = frame.f_globals["__name__"].partition(".")[0] in ("hydra", "omegaconf")
        expected = isinstance(error, BadInput | HydraException | OmegaConfBaseException | OSError)
        missing = isinstance(error, ModuleNotFoundError) and missing_package(error)
        if not (expected or in_hydra or missing):
            raise
        _say(error)
        raise SystemExit(2) from None
    finally:
        warnings.formatwarning = python_format
        threading.excepthook = hook
        signal.pthread_sigmask(signal.SIG_UNBLOCK, USER_SIGNALS)
        del os.environ["HYDRA_FULL_ERROR"]


def _thread_failed(failure: threading.ExceptHookArgs) -> None:
    # TensorBoard's thread passes the error of a full disk on to the main thread, which prints it.
    if not (isinstance(failure.exc_value, OSError) and failure.exc_value.errno in DISK):
        threading.__excepthook__(failure)


def _say(error: BaseException) -> None:
    print(f"error: {in_a_sentence(error)}", file=sys.stderr)


def in_a_sentence(error: BaseException) -> str:
    """What an error of Hydra, OmegaConf or the disk means, and what to do; others as they are."""
    sentence = " ".join(str(error).split())
    # Hydra advises to add the misspelled key, which attnlab would refuse as well.
    unknown = re.match(r"Could not override '(\S+)'\. To append ", sentence)
    if isinstance(error, MissingConfigException) and error.options:
        sentence = missing_file(str(error.missing_cfg_file), list(error.options))
    elif isinstance(error, OSError) and error.strerror:
        sentence = disk_message(error)
    elif isinstance(error, ModuleNotFoundError):
        sentence = missing_package(error) or sentence
    elif not isinstance(error, ValueError | HydraException | OmegaConfBaseException | OSError):
        sentence = f"Hydra cannot compose these settings ({type(error).__name__}: {sentence})"
    elif isinstance(error, OverrideParseException) and "evaluating" not in sentence:
        form = "KEY=VALUE, or KEY=A,B without spaces; quote brackets and texts, as in 'KEY=[1,2]'"
        sentence = f"{error.override} cannot be read; write {form}"
    elif re.search(r"BasicSweeper does not support|interval\(.* requires --multirun", sentence):
        sentence = "interval(...) is for a search: add -m hydra/sweeper=optuna, or list the values"
    elif unknown is not None:
        sentence = _unknown_setting(unknown[1], error.__cause__)
    elif values := re.match(r"Ambiguous value for argument '(\S+)'", sentence):
        sentence = f"{values[1]} has several values: add -m for a sweep over them, or quote a text"
    return sentence


def _unknown_setting(name: str, cause: BaseException | None) -> str:
    """The message for a dotted setting; OmegaConf's error holds the known keys beside it."""
    advice = f"{training_command()} --cfg job shows them all"
    if name.startswith("attn."):
        advice += f"; a setting of your own layer needs a plus: +{name}=..."
    if name.startswith("trainer."):
        from lightning.pytorch import Trainer

        if name.removeprefix("trainer.") in signature(Trainer).parameters:
            return f"{name} is not in conf/trainer; add it with a plus: +{name}=..."
    names = settings_with("bundle")
    if isinstance(cause, OmegaConfBaseException) and isinstance(cause.parent_node, DictConfig):
        known = cause.parent_node._get_root()
        names += [*map(str, known), *flat(OmegaConf.to_container(known))]  # type: ignore[arg-type]
    near = [x for x in names if x.endswith(f".{name}")] or get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]}? ({advice})" if near else advice
    return f"{name} is not a setting; {hint}"


def missing_file(path: str, options: list[str]) -> str:
    """The message for an option, such as attn/unscald, that its config group does not have."""
    parts = path.split("/")
    depth = 2 if parts[0] == "hydra" else 1  # a name may have a directory: attn=cross/dot
    group, name = "/".join(parts[:depth]), "/".join(parts[depth:])
    if package := PLUGINS.get(f"{group}={name}"):
        return f"{group}={name} is not installed; install it with: pip install {package}"
    near, there = get_close_matches(name.lower(), options, n=1), ", ".join(sorted(options))
    hint = f"there are {there}"
    if near:
        few = f" ({hint})" if len(options) <= MOST_NAMED else ""
        hint = f"did you mean {group}={near[0]}?{few}"
    return f"there is no {group}={name}; {hint}"
