"""One run, from a configuration to a trained model and its run directory."""

import logging
import math
import platform
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from lightning.pytorch.utilities.exceptions import SIGTERMException

from attnlab.data.corpora import to_plain
from attnlab.errors import DISK, BadInput, Terminated, first_line
from attnlab.files import write_json
from attnlab.probes.base import Probe
from attnlab.probes.capture import eval_mode
from attnlab.training import resume
from attnlab.training.callbacks import (
    AtomicCheckpointIO,
    Clock,
    Divergence,
    Lines,
    Progress,
    RunCheckpoints,
    Scalars,
    outcome,
)
from attnlab.training.config import RunConfig
from attnlab.training.initial_weights import InitialWeights, read_initial_weights
from attnlab.training.lightning_module import TaskData, TaskModule
from attnlab.training.loggers import close_services, log_results, log_settings
from attnlab.training.resume import EarlierRun
from attnlab.training.run_directory import RunDirectory, Settings, fingerprint, variant_of
from attnlab.training.stacking import StackedRun

NO_MEMORY = "can't allocate memory"  # of PyTorch's RuntimeError on a CPU


@dataclass
class Result:
    """What a run left."""

    folder: Path  # the run directory
    metrics: dict[str, Any]  # the content of metrics.json
    module: type[TaskModule]  # the class of the task
    settings: Settings  # of its command
    fresh: bool = True  # False if the run had ended before, and nothing was done


def run(config: RunConfig, folder: Path, *, variant: str, overrides: Iterable[str] = ()) -> Result:
    """Train one model, or resume an interrupted run, or return what a finished run left.

    The run is recorded in `folder` as one of a `variant`, the file of conf/attn, and of overrides
    as typed. Raises BadInput if the configuration cannot be run; nothing was written then.
    """
    corpus, force = _load_data(config), config.settings["force"]
    origin = _read_origin(config.settings, corpus, folder)
    inputs = [corpus.sha256, *([] if origin is None else [origin.sha256])]
    directory, digest = RunDirectory(folder), fingerprint(config.settings, *inputs)
    if done := _earlier_result(config, directory, inputs):
        return done

    lit = make_module(config, corpus)
    if isinstance(origin, InitialWeights):
        origin.fill(lit)
    if isinstance(thread := threading.current_thread(), StackedRun):
        thread.enter(lit, overrides)
    checkpoint = resume_step = None
    if not force and directory.last_checkpoint.exists():
        checkpoint = resume.read_resumable(directory, config.settings, corpus)
        resume_step = checkpoint["global_step"]
    if config.settings["compile"]:
        lit.compile_training()
    clock, divergence = Clock(), Divergence()
    every = config.settings["checkpoint_every"]
    keeper = RunCheckpoints(folder / "checkpoints", every, divergence)
    trainer = make_trainer(config, folder, [clock, divergence, keeper], resume_step)
    lit.check_device(trainer.strategy.root_device)
    if checkpoint is None and isinstance(origin, EarlierRun):
        checkpoint = resume.continued(origin, lit, trainer)
    if checkpoint is not None:
        resume.prepare_resume(checkpoint, lit, trainer)
    start = None if checkpoint is None else directory.last_checkpoint
    probes = [c for c in trainer.callbacks if isinstance(c, Probe)]  # type: ignore[attr-defined]
    for probe in probes:
        probe.check(lit.net)
    if not trainer.is_global_zero:  # another process of a distributed run; the first one records
        _fit(trainer, lit, start)
        return Result(folder, measured(trainer, lit, clock), config.module, config.settings)

    with directory.locked(), _failures_recorded(directory, digest, trainer, keeper, force):
        # Again: another process may have used the directory meanwhile.
        if done := _earlier_result(config, directory, inputs):
            return done
        directory.begin(config.settings, overrides, digest, resumes=resume_step is not None)
        if resume_step is None and checkpoint is not None and isinstance(origin, EarlierRun):
            resume.begin_continued(checkpoint, origin, directory, trainer.max_steps)
        log_settings(trainer, config.settings, folder, variant, resume_step)
        _fit(trainer, lit, start)
        told, status = outcome(trainer, divergence, keeper)
        metrics: dict[str, Any] = {"variant": variant, "seed": lit.seed, "unit": lit.unit}
        metrics["baseline"] = variant_of(lit.baseline)
        metrics |= ({} if origin is None else origin.record) | told
        metrics |= measured(trainer, lit, clock) | provenance(trainer, corpus)
        metrics["compiled"] = config.settings["compile"]
        metrics["probes"] = {key: x for probe in probes for key, x in probe.record.items()}
        write_json(directory.metrics_file, metrics)
        log_results(trainer, metrics)
        directory.set_status(metrics["status"], digest, status)
    return Result(folder, metrics, config.module, config.settings)


def _load_data(config: RunConfig) -> TaskData:
    """The data of a run; BadInput if they are of another task."""
    corpus = config.data()
    if isinstance(corpus, config.module.data_class):
        return corpus
    target, module = config.settings["data"]["_target_"], config.settings["module"]
    raise BadInput(
        f"data._target_ = {target} is not for module = {module}, which needs {config.module.needs}"
    )


def _read_origin(
    settings: Settings, corpus: TaskData, folder: Path
) -> EarlierRun | InitialWeights | None:
    """What a run starts from instead of drawn weights; it may not be what force=true deletes."""
    named = Path(settings["continue_from"] or settings["init_from"] or "hf:")
    if folder.resolve() in ((place := named.expanduser().resolve()), *place.parents):
        raise BadInput(f"{folder} is the run to start from; use another name= or hydra.run.dir=")
    if settings["continue_from"] is not None:
        return resume.read_earlier_run(settings, corpus)
    if settings["init_from"] is not None:
        return read_initial_weights(settings["init_from"])
    return None


def _earlier_result(
    config: RunConfig, directory: RunDirectory, inputs: Sequence[str]
) -> Result | None:
    """What the same run left when it ended before; None if it did not, or with force=true."""
    directory.check_holds_no_other_files()
    if config.settings["force"]:
        return None
    directory.check_is_ours(config.settings, *inputs)
    if not directory.is_done():
        return None
    resume.check_checkpoints(directory)
    return Result(directory.path, directory.metrics(), config.module, config.settings, fresh=False)


def make_module(config: RunConfig, corpus: TaskData) -> TaskModule:
    """The LightningModule of a run, its model with the initial weights; BadInput if the model
    cannot be built, or the data are too few for it."""
    recipe = {"config": config.settings, "alphabet": to_plain(corpus.alphabet)}
    recipe |= {"corpus": corpus.name, "corpus_sha256": corpus.sha256}
    net = config.model(len(corpus.alphabet))
    lit = config.module(net, corpus, config.optimizer, recipe=recipe)
    lit.check_data()
    return lit


def make_trainer(
    config: RunConfig, folder: Path, callbacks: list[L.Callback], resume_step: int | None = None
) -> L.Trainer:
    """Lightning's Trainer with all callbacks and loggers; BadInput if Lightning refuses, for
    example since a device is missing."""
    _silence_lightning()
    bar = config.trainer.keywords.get("enable_progress_bar", True) and sys.stderr.isatty()
    shown: L.Callback = Progress(refresh_rate=10) if bar else Lines()
    users = [make() for make in config.callbacks]
    own_bar = any(isinstance(callback, ProgressBar) for callback in users)
    for callback in users:
        if isinstance(callback, ModelCheckpoint) and callback.dirpath is None:
            callback.dirpath = str(folder / "checkpoints")
    probes = [make() for make in config.probes]
    try:
        return config.trainer(
            enable_progress_bar=bar or own_bar,
            callbacks=[*callbacks, Scalars(), *([] if own_bar else [shown]), *probes, *users],
            logger=[make(folder, resume_step) for make in config.loggers],
            plugins=[AtomicCheckpointIO()],
            default_root_dir=str(folder),
            use_distributed_sampler=False,  # our batches know their rank
        )
    except BadInput:
        raise
    except (MisconfigurationException, ValueError, TypeError, RuntimeError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise BadInput(f"the trainer cannot be made: {reason}") from error


def _fit(trainer: L.Trainer, lit: TaskModule, start: Path | None) -> None:
    """Train, and validate at the last step if that was not due."""
    deterministic: Any = torch.utils.deterministic
    before = deterministic.fill_uninitialized_memory
    # Deterministic mode fills new memory with NaN, for operations that read memory before it is
    # written. None of ours does, and filling takes up to a tenth of a step of many small tensors.
    deterministic.fill_uninitialized_memory = False
    try:
        trainer.fit(lit, ckpt_path=start)
        if trainer.global_step not in lit.val_losses:
            trainer.validate(lit, verbose=False)
    finally:
        deterministic.fill_uninitialized_memory = before


@contextmanager
def _failures_recorded(
    directory: RunDirectory, digest: str, trainer: L.Trainer, keeper: RunCheckpoints, force: bool
) -> Iterator[None]:
    """Record why a run failed in its directory; an interrupted run can be resumed."""
    try:
        yield
    except SystemExit as end:  # SIGTERM, or Lightning's answer to Ctrl-C
        will = "starts over"
        if not force and directory.last_checkpoint.exists():
            # A run may be interrupted before it resumed.
            will = "resumes" + (f" from step {keeper.saved_step}" if keeper.saved_step else "")
        with suppress(OSError, BadInput):  # "running" without a lock means the same
            if not directory.is_done():
                directory.set_status("interrupted", digest, {"step": trainer.global_step})
        print(f"\nInterrupted at step {trainer.global_step}; the same command {will}.")
        raise SystemExit(143 if isinstance(end, Terminated | SIGTERMException) else 130) from None
    except Exception as error:
        try:
            why = {"step": trainer.global_step, "reason": traceback.format_exc()}
            directory.set_status("failed", digest, why)
        except OSError as refused:  # the disk that made the run fail; the run's error is raised
            print(f"{directory.status_file} could not be written: {refused}", file=sys.stderr)
        *_, (frame, _line) = traceback.walk_tb(error.__traceback__)
        in_callback = frame.f_globals["__name__"].startswith("lightning.pytorch.callbacks")
        if in_callback and isinstance(error, MisconfigurationException | RuntimeError):
            raise BadInput(first_line(error)) from error  # it refuses its settings only now
        if isinstance(error, OSError) and error.errno in DISK:
            raise BadInput(f"{directory.path} cannot be written: {error.strerror}") from error
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or NO_MEMORY in str(error):
            raise BadInput(
                "out of memory; use a smaller data.batch_size, model.block_size or model "
                f"({first_line(error)})"
            ) from error
        raise
    finally:
        close_services(trainer)


def _silence_lightning() -> None:
    """Turn off messages and warnings of Lightning about what we want as it is."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("lightning.pytorch.profilers").setLevel(logging.INFO)  # their report
    for message in (
        ".*does not have many workers.*",
        ".*IterableDataset.*has `__len__`.*",
        ".*resuming from a checkpoint that ended before the epoch ended.*",
        ".*smaller than the logging interval.*",
        ".*callbacks used to create the checkpoint need to be provided.*",  # probes need not
        ".*Experiment logs directory .* exists and is not empty.*",
        ".*isinstance\\(treespec, LeafSpec\\).*",
    ):
        warnings.filterwarnings("ignore", message)


def measured(trainer: L.Trainer, lit: TaskModule, clock: Clock) -> dict[str, Any]:
    """The metrics: losses in nats per prediction, over the whole data or a fixed piece of it."""
    batches = trainer.global_step * trainer.accumulate_grad_batches
    finite = [x for x in lit.val_losses.values() if math.isfinite(x)]
    figures: dict[str, Any] = {"val_loss": lit.val_losses[trainer.global_step]}
    if lit.recipe["config"]["train_loss"]:
        figures["train_loss"] = evaluate(trainer, lit, lit.train_piece())
    figures["best_val_loss"] = min(finite, default=math.nan)
    with eval_mode(lit.net), trainer.precision_plugin.forward_context():
        figures |= lit.extra_metrics(clock.seconds_a_batch)
    return figures | {
        "steps": trainer.global_step,
        "tokens": lit.tokens(batches),
        "tokens_per_second": lit.tokens(batches) / max(1, batches) / clock.seconds_a_batch,
        "wall_seconds": clock.seconds,
        "parameters": sum(p.numel() for p in lit.net.parameters()),
    }


def evaluate(trainer: L.Trainer, lit: TaskModule, batches: Sequence[Any]) -> float:
    """Mean loss over batches, in nats per prediction, in the precision of the training."""
    device = trainer.strategy.root_device
    total, count = 0.0, 0
    with eval_mode(lit.net.to(device)), trainer.precision_plugin.forward_context():
        for batch in batches:
            count += lit.predictions(batch)
            total += float(lit.batch_loss(move_data_to_device(batch, device), "sum"))
    return total / count


def provenance(trainer: L.Trainer, corpus: TaskData) -> dict[str, Any]:
    """Corpus, code, versions, precision and device that the metrics come from."""
    device = trainer.strategy.root_device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    packages = ("attnlab", "torch", "lightning", "hydra-core", "numpy")
    return {
        "corpus": corpus.record,
        "git": git_state(),
        "versions": {"python": platform.python_version()} | {p: version(p) for p in packages},
        "precision": str(trainer.precision),
        "device": device.type,
        "device_name": name or platform.machine(),
        "devices": trainer.world_size,
        "threads": torch.get_num_threads(),
    }


def git_state() -> dict[str, Any] | None:
    """Commit of the source tree, and whether files differ from it (rows of claims aside); None
    where the package is not run from a clone."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
        return done.stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        if not git("ls-files", "--", __file__):
            return None  # an installed package below somebody else's repository
        rows = ":(top,exclude)experiments/*/rows.jsonl"  # appended while claims run
        return {"commit": commit, "dirty": bool(git("status", "--porcelain", "--", ":/", rows))}
    except (OSError, subprocess.SubprocessError):
        return None
