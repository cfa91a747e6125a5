"""One run, from a configuration to a trained model and its run directory."""

import ctypes
import logging
import os
import platform
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import lightning.pytorch as L
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from lightning.pytorch.utilities.exceptions import SIGTERMException

from attnlab.attention import SelfAttention
from attnlab.attention.masks import build_mask, name_of
from attnlab.attention.properties import properties_of
from attnlab.data.batches import TaskData
from attnlab.data.corpora import to_plain
from attnlab.errors import DISK, BadInput, Terminated, first_line
from attnlab.files import write_json
from attnlab.probes.base import measurable
from attnlab.probes.layer_check import check_users_layers
from attnlab.runs.run_directory import RERUN, RunDirectory
from attnlab.runs.settings import Settings, fingerprint
from attnlab.training import callbacks
from attnlab.training.callbacks import Clock, RunCheckpoints
from attnlab.training.config import RunConfig
from attnlab.training.factories import memory_message, users_errors
from attnlab.training.interruption import Interruption
from attnlab.training.lightning_module import TaskModule
from attnlab.training.loggers import close_services, log_results, log_settings
from attnlab.training.metrics import ending, git_state, measured, own_code, provenance
from attnlab.training.origin import (
    EarlierRun,
    InitialWeights,
    check_checkpoints,
    prepare_resume,
    read_origin,
    read_resumable,
)
from attnlab.training.slurm import requeue


@dataclass
class Result:
    """The result of a run, or of the earlier run that it would repeat."""

    folder: Path  # the run directory
    metrics: dict[str, Any]  # the content of metrics.json
    module: type[TaskModule]  # the class of the task
    settings: Settings  # of its command
    fresh: bool = True  # False if the run had ended before, and nothing was done


def run(config: RunConfig, folder: Path, *, variant: str, overrides: Iterable[str] = ()) -> Result:
    """Train one model, resume an interrupted run, or return the result of a finished one.

    The run directory `folder` records `variant`, the name of the file in conf/attn, and the
    overrides as typed. Raises BadInput, before anything is written, if the run is not possible.
    """
    settings, force, directory = config.settings, config.settings["force"], RunDirectory(folder)
    corpus = _load_data(config)
    origin = read_origin(settings, corpus, folder)
    inputs = [corpus.sha256, *([] if origin is None else [origin.sha256])]
    digest = fingerprint(settings, *inputs)
    if past := _past_result(config, directory, inputs):
        return past

    lit = make_module(config, corpus)
    if isinstance(origin, InitialWeights):
        origin.fill(lit)
    checkpoint = None if force else read_resumable(directory, settings, corpus)
    resume_step = None if checkpoint is None else checkpoint["global_step"]
    trainer, clock, checkpoints = make_trainer(config, folder, resume_step)
    continued = origin if checkpoint is None and isinstance(origin, EarlierRun) else None
    if continued is not None:
        checkpoint = continued.first_checkpoint(lit, trainer)
    _prepare(lit, trainer, checkpoint)
    start = None if checkpoint is None else directory.last_checkpoint
    if not trainer.is_global_zero:  # another process of a distributed run; the first one records
        _fit(trainer, lit, start)
        return Result(folder, measured(trainer, lit, clock), config.module, settings)

    with directory.locked():
        # Another process may have written there meanwhile; a refusal leaves its run as it is.
        if past := _past_result(config, directory, inputs):
            return past
        with _recorded_failures(directory, digest, trainer, checkpoints, force):
            directory.begin(settings, overrides, digest, resumes=resume_step is not None)
            if continued is not None and checkpoint is not None:
                continued.begin(checkpoint, directory, trainer.max_steps)
            log_settings(trainer, settings, folder, variant, resume_step)
            _fit(trainer, lit, start)
            metrics, status = ending(trainer, checkpoints)
            metrics |= {"variant": variant, "check_layer": settings["check_layer"]}
            metrics |= {} if origin is None else origin.record
            metrics |= measured(trainer, lit, clock) | provenance(trainer, lit)
            write_json(directory.metrics_file, metrics)
            log_results(trainer, metrics)
            directory.set_status(metrics["status"], digest, status)
    return Result(folder, metrics, config.module, settings)


def _load_data(config: RunConfig) -> TaskData:
    """The data of a run; BadInput if they are for another task."""
    corpus = config.data()
    if isinstance(corpus, config.module.data_class):
        return corpus
    target, module = config.settings["data"]["_target_"], config.settings["module"]
    raise BadInput(
        f"data._target_ = {target} is not for module = {module}, which needs {config.module.needs}"
    )


def _past_result(config: RunConfig, directory: RunDirectory, inputs: list[str]) -> Result | None:
    """The result of the same run, if it has ended before; None with force=true."""
    directory.check_holds_no_other_files()
    if config.settings["force"]:
        return None
    directory.check_is_ours(config.settings, *inputs)
    if not directory.is_done():
        return None
    check_checkpoints(directory)
    metrics, code = directory.metrics(), own_code(config.settings)
    if changed := [x for x in code if code[x]["sha256"] not in str(metrics.get("own_code", code))]:
        warnings.warn(f"{', '.join(changed)} changed since this run; {RERUN}", stacklevel=2)
    return Result(directory.path, metrics, config.module, config.settings, fresh=False)


def make_module(config: RunConfig, corpus: TaskData) -> TaskModule:
    """The LightningModule of a run, with initial weights; BadInput if model or data do not fit."""
    recipe = {"config": config.settings, "alphabet": to_plain(corpus.alphabet)}
    recipe |= {"corpus": corpus.name, "corpus_sha256": corpus.sha256, "git": git_state()}
    recipe["own_code"] = own_code(config.settings)
    net = config.model(len(corpus.alphabet))
    lit = config.module(net, corpus, config.optimizer, recipe=recipe)
    lit.check_data()
    return lit


def make_trainer(
    config: RunConfig, folder: Path, resume_step: int | None
) -> tuple[L.Trainer, Clock, RunCheckpoints]:
    """Lightning's Trainer with all callbacks and loggers, and two of them that measure the run.
    BadInput if Lightning refuses, for example because a device is missing."""
    _silence_lightning()
    divergence, every = callbacks.Divergence(), config.settings["checkpoint_every"]
    checkpoints = RunCheckpoints(folder / "checkpoints", every, divergence)
    ours = [clock := Clock(), divergence, checkpoints, callbacks.Scalars()]
    ours.append(Interruption(checkpoints))
    bar = config.trainer.keywords.get("enable_progress_bar", True) and sys.stderr.isatty()
    shown = callbacks.Progress(refresh_rate=10) if bar else callbacks.Lines()
    users = [make() for make in config.callbacks]
    own_bar = any(isinstance(callback, ProgressBar) for callback in users)
    for callback in users:
        if isinstance(callback, ModelCheckpoint) and callback.dirpath is None:
            callback.dirpath = str(folder / "checkpoints")
    probes = [make() for make in config.probes]
    try:
        trainer = config.trainer(
            enable_progress_bar=bar or own_bar,
            callbacks=[*ours, *([] if own_bar else [shown]), *probes, *users],
            logger=[make(folder, resume_step) for make in config.loggers],
            plugins=[callbacks.AtomicCheckpointIO()],
            # In a job of Slurm, Lightning loads hpc_ckpt_* from here in each fit and validation.
            # So the name is new; the folder exists once a callback writes there.
            default_root_dir=str(folder / f"lightning-{uuid4().hex}"),
            use_distributed_sampler=False,  # our batches know their rank
        )
    except BadInput:
        raise
    except (MisconfigurationException, ValueError, TypeError, RuntimeError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise BadInput(f"the trainer cannot be made: {reason}") from error
    return trainer, clock, checkpoints


def _prepare(lit: TaskModule, trainer: L.Trainer, checkpoint: dict[str, Any] | None) -> None:
    """Refuse, by BadInput, devices, probes or a checkpoint that do not fit; compile the model."""
    lit.batches(0, 0, 0, trainer.world_size)  # refuses a batch that the devices cannot share
    for layer in lit.net.modules():
        fits = isinstance(layer, SelfAttention) and not layer.dropout
        fits = fits and trainer.strategy.root_device.type == "cuda"
        kernel = vars(layer).get("kernel")
        declared = properties_of(kernel)
        if declared is not None and declared.cuda_only and not fits:
            raise BadInput(
                f"the kernel {name_of(kernel)} trains only self-attention, on a CUDA GPU, without "
                "dropout; use another kernel, such as attn=sdpa"
            )
    if lit.recipe["config"]["check_layer"]:
        with users_errors("checking the attention"):
            check_users_layers(lit.net)
    trainer.callbacks = measurable(trainer.callbacks, lit.net)  # type: ignore[attr-defined]
    if lit.recipe["config"]["compile"]:
        compiler = os.environ.get("CXX", "g++")
        if not torch.cuda.is_available() and shutil.which(compiler) is None:
            raise BadInput(f"compile=true needs a C++ compiler, and there is no {compiler}")
        torch.compiler.assume_constant_result(build_mask)  # cached, and not part of the graph
        lit.training_loss = torch.compile(lit.batch_loss)  # not of validations and probes
    if checkpoint is not None:
        prepare_resume(checkpoint, lit, trainer)


def reuse_freed_memory() -> None:
    """Let glibc keep freed memory for the next step; other C libraries keep their defaults.

    By default it returns large blocks to the system, and then waits for new pages in every step.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, 2**30)  # M_MMAP_THRESHOLD: smaller blocks come from the heap
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: the heap does not shrink


def _fit(trainer: L.Trainer, lit: TaskModule, start: Path | None) -> None:
    """Train, and validate at the last step if that was not due."""
    reuse_freed_memory()
    # Deterministic mode fills new memory with NaN, for operations that read memory before it is
    # written. None of ours does, and filling takes up to a tenth of a step of many small tensors.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        trainer.fit(lit, ckpt_path=start)
        if trainer.global_step not in lit.val_losses:
            trainer.validate(lit, verbose=False)
    except RuntimeError as error:
        lost = isinstance(error, torch.distributed.DistError) or "by peer" in str(error)
        if trainer.world_size == 1 or not lost:
            raise
        print("error: another process of this run was killed", file=sys.stderr)
        raise SystemExit(128 + signal.SIGKILL) from error


@contextmanager
def _recorded_failures(
    directory: RunDirectory, digest: str, trainer: L.Trainer, kept: RunCheckpoints, force: bool
) -> Iterator[None]:
    """Record a run that fails or is interrupted, with errors that users can fix as BadInput."""
    try:
        yield
    except SystemExit as end:  # SIGTERM, or Lightning's answer to Ctrl-C
        then = "starts over"
        if not force and directory.last_checkpoint.exists():
            # Lightning may not have read the checkpoint yet.
            then = "resumes" + (f" from step {kept.saved_step}" if kept.saved_step else "")
        with suppress(OSError, BadInput):  # "running" without a lock also means interrupted
            if not directory.is_done():
                directory.set_status("interrupted", digest, {"step": trainer.global_step})
        requeued = isinstance(end, Terminated) and requeue(end)
        again = "the job is requeued and" if requeued else "the same command"
        print(f"\nInterrupted at step {trainer.global_step}; {again} {then}.", flush=True)
        by_signal = isinstance(end.code, int) and end.code > 128
        usual = 143 if isinstance(end, SIGTERMException) else 130
        raise SystemExit(end.code if by_signal else usual) from None
    except Exception as error:
        try:
            why = {"step": trainer.global_step, "reason": traceback.format_exc()}
            directory.set_status("failed", digest, why)
        except OSError as refused:  # the error of the run matters more, and is raised below
            print(f"{directory.status_file} could not be written: {refused}", file=sys.stderr)
        *_, (frame, _line) = traceback.walk_tb(error.__traceback__)
        in_callback = frame.f_globals["__name__"].startswith("lightning.pytorch.callbacks")
        if in_callback and isinstance(error, MisconfigurationException | RuntimeError):
            raise BadInput(first_line(error)) from error  # Lightning checks some settings late
        if isinstance(error, OSError) and error.errno in DISK:
            raise BadInput(f"{directory.path} cannot be written: {error.strerror}") from error
        if sentence := memory_message(error):
            raise BadInput(sentence) from error
        raise
    finally:
        close_services(trainer)


def _silence_lightning() -> None:
    """Turn off Lightning's messages and warnings about choices that are deliberate here."""
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
        ".*`srun` command is available on your system but is not used.*",
        ".*isinstance\\(treespec, LeafSpec\\).*",
    ):
        warnings.filterwarnings("ignore", message)
