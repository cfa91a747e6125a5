"""One run under Lightning: its trainer, its end, and what is written of it."""

import logging
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from lightning.pytorch.utilities.exceptions import SIGTERMException
from omegaconf import DictConfig

from attnlab.errors import DISK, BadInput, Terminated, first_line
from attnlab.files import write_json
from attnlab.probes.base import Probe
from attnlab.training import tensorboard_layout
from attnlab.training.callbacks import (
    AtomicCheckpointIO,
    Clock,
    RunCheckpoints,
    Scalars,
    outcome,
    raised_by_a_callback,
)
from attnlab.training.divergence import Divergence
from attnlab.training.instantiate import build
from attnlab.training.lightning_module import TaskModule
from attnlab.training.loggers import make_logger, restore_csv_rows
from attnlab.training.metrics import measured, provenance
from attnlab.training.progress import Lines, Progress
from attnlab.training.resume import prepare_resume, resumable
from attnlab.training.run_directory import RunDirectory
from attnlab.training.trainer_settings import make_callback

NO_MEMORY = "can't allocate memory"  # of PyTorch's RuntimeError on a CPU
# What attnlab tells Lightning itself.
TOLD = ("callbacks", "logger", "plugins", "default_root_dir", "use_distributed_sampler")


def fit(
    cfg: DictConfig,
    lit: TaskModule,
    folder: RunDirectory,
    digest: str,
    variant: str,
    overrides: Iterable[str],
) -> dict[str, Any]:
    """Train, or go on where an interrupted run was; `attnlab.training.run.run` has the arguments.

    Returns:
        the metrics, as written to metrics.json.

    Raises:
        BadInput: the trainer cannot be made, the checkpoint is damaged, or the disk refuses.
    """
    clock, divergence = Clock(), Divergence()
    keeper = RunCheckpoints(folder.last_checkpoint.parent, cfg.checkpoint_every, divergence)
    checkpoint = None if cfg.force else resumable(folder, cfg, lit.corpus)
    resume_step = None if checkpoint is None else checkpoint["global_step"]
    trainer = make_trainer(cfg, folder, [clock, divergence, keeper], resume_step)
    if checkpoint is not None:
        prepare_resume(checkpoint, lit, trainer)
    resume = None if checkpoint is None else folder.last_checkpoint
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, Probe):
            callback.check(lit.net)
    if not trainer.is_global_zero:  # another process of a distributed run; the first one records
        _loop(trainer, lit, resume)
        return measured(trainer, lit, clock)
    with folder.locked(), _failures_recorded(cfg, folder, digest, trainer):
        if not cfg.force:
            folder.check_is_ours(
                cfg, digest
            )  # again: another process may have been here meanwhile
            if folder.is_done():
                return folder.metrics()
        folder.begin(cfg, overrides, digest)
        if resume_step is not None:
            restore_csv_rows(trainer, resume_step)
        tensorboard_layout.begin(trainer, cfg, folder.path, variant)
        _loop(trainer, lit, resume)
        record = {"variant": variant, "seed": cfg.seed, "unit": lit.unit}
        record |= outcome(divergence, keeper)
        record |= measured(trainer, lit, clock) | provenance(trainer, lit.corpus)
        record["probes"] = seen_by_probes(trainer)
        write_json(folder.metrics_file, record)
        tensorboard_layout.end(trainer, record)
        folder.set_status(
            record["status"],
            digest,
            step=divergence.step or trainer.global_step,
            reason=divergence.reason or keeper.stopped,
            max_steps=trainer.max_steps,
            last_finite_loss=divergence.last_finite_loss,
        )
    return record


def _loop(trainer: L.Trainer, lit: TaskModule, resume: Path | None) -> None:
    with _memory_as_it_comes():
        trainer.fit(lit, ckpt_path=resume)
        if trainer.global_step not in lit.val_losses:
            trainer.validate(lit, verbose=False)


@contextmanager
def _memory_as_it_comes() -> Iterator[None]:
    """Deterministic mode without its filling of memory that is about to be written.

    The filling makes NaN of what an operation reads before anything wrote it. None of ours does
    that, and in a model of many small tensors it takes up to a tenth of a step.
    """
    deterministic: Any = torch.utils.deterministic
    before = deterministic.fill_uninitialized_memory
    deterministic.fill_uninitialized_memory = False
    try:
        yield
    finally:
        deterministic.fill_uninitialized_memory = before


@contextmanager
def _failures_recorded(
    cfg: DictConfig, folder: RunDirectory, digest: str, trainer: L.Trainer
) -> Iterator[None]:
    """Write why a run failed into its folder; one that was interrupted may go on later."""
    try:
        yield
    except SystemExit as end:  # SIGTERM, or Lightning's answer to Ctrl-C
        terminated = isinstance(end, Terminated | SIGTERMException)
        will = "starts over" if cfg.force else _what_is_next(folder, trainer)
        with suppress(OSError, BadInput):  # "running" without a lock means the same
            if not folder.is_done():
                folder.set_status("interrupted", digest, step=trainer.global_step)
        print(f"\nInterrupted at step {trainer.global_step}; the same command {will}.")
        raise SystemExit(143 if terminated else 130) from None
    except Exception as error:
        _record_failure(folder, digest, trainer.global_step)
        if raised_by_a_callback(error):
            raise BadInput(first_line(error)) from error
        if isinstance(error, OSError) and error.errno in DISK:
            raise BadInput(f"{folder.path} cannot be written: {error.strerror}") from error
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or NO_MEMORY in str(error):
            raise BadInput(
                "the memory does not suffice; take a smaller data.batch_size, "
                f"model.block_size or model ({first_line(error)})"
            ) from error
        raise


def _what_is_next(folder: RunDirectory, trainer: L.Trainer) -> str:
    """What the same command will do with an interrupted run."""
    if not folder.last_checkpoint.exists():
        return "starts over"
    (keeper,) = (c for c in trainer.checkpoint_callbacks if isinstance(c, RunCheckpoints))
    # A run may be interrupted before it resumed.
    return "resumes" + (f" from step {keeper.saved_step}" if keeper.saved_step else "")


def seen_by_probes(trainer: L.Trainer) -> dict[str, Any]:
    """What the probes saw last, for metrics.json."""
    record: dict[str, Any] = {}
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, Probe):
            record |= callback.record
    return record


def make_trainer(
    cfg: DictConfig,
    folder: RunDirectory,
    callbacks: list[L.Callback],
    resume_step: int | None = None,
) -> L.Trainer:
    """Lightning's Trainer with our callbacks, probes and loggers.

    Args:
        cfg: of which `trainer`, `probes` and `logger` count.
        folder: where the loggers write.
        callbacks: the run's own.
        resume_step: the step from which the run resumes; None for a new run.

    Raises:
        BadInput: a device or a precision is not to be had.
    """
    _quieten()
    arguments = build(_for_lightning(cfg.trainer), "trainer", given=TOLD)
    bar = bool(cfg.trainer.get("enable_progress_bar", True)) and sys.stderr.isatty()
    shown: L.Callback = Progress(refresh_rate=10) if bar else Lines()
    probes = [build(node, f"probes.{name}")() for name, node in cfg.probes.items()]
    loggers = [
        make_logger(node, f"logger.{name}", folder.path, resume_step)
        for name, node in cfg.logger.items()
    ]
    extra = [make_callback(node, f"callbacks.{name}") for name, node in cfg.callbacks.items()]
    for callback in extra:
        if isinstance(callback, ModelCheckpoint) and callback.dirpath is None:
            callback.dirpath = str(folder.last_checkpoint.parent)
    theirs = any(isinstance(callback, ProgressBar) for callback in extra)
    try:
        trainer = arguments(
            enable_progress_bar=bar or theirs,
            callbacks=[*callbacks, Scalars(), *([] if theirs else [shown]), *probes, *extra],
            logger=loggers,
            plugins=[AtomicCheckpointIO()],
            default_root_dir=str(folder.path),
            use_distributed_sampler=False,  # our batches know their rank
        )
    except (MisconfigurationException, ValueError, TypeError, RuntimeError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise BadInput(f"the trainer cannot be made: {reason}") from error
    return trainer


def _for_lightning(node: DictConfig) -> DictConfig:
    """Our trainer settings in Lightning's terms."""
    node = node.copy()
    if node.precision in {"auto", "fastest"}:
        on_gpu = node.accelerator in {"auto", "gpu", "cuda"} and torch.cuda.is_available()
        bf16 = on_gpu or (node.precision == "fastest" and cpu_has_bf16())
        node.precision = "bf16-mixed" if bf16 else "32-true"
    if "min_steps" in node:  # otherwise the one epoch would have to end before the run may stop
        node = DictConfig({**node, "min_epochs": 0})
    if isinstance(node.val_check_interval, int):  # in steps; Lightning counts batches
        node.val_check_interval *= node.accumulate_grad_batches
    return node


def cpu_has_bf16() -> bool:
    """Whether this processor multiplies in bf16 itself; emulated, it is slower than fp32."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def _record_failure(folder: RunDirectory, digest: str, step: int) -> None:
    try:
        folder.set_status("failed", digest, step=step, reason=traceback.format_exc())
    except OSError as error:  # the disk that made the run fail; the run's own error is raised
        print(f"{folder.status_file} could not be written: {error}", file=sys.stderr)


def _quieten() -> None:
    """Silence what Lightning says of things that are as we want them."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("lightning.pytorch.profilers").setLevel(logging.INFO)  # their report
    for message in (
        ".*does not have many workers.*",
        ".*IterableDataset.*has `__len__`.*",
        ".*resuming from a checkpoint that ended before the epoch ended.*",
        ".*smaller than the logging interval.*",
        ".*Experiment logs directory .* exists and is not empty.*",
        ".*isinstance\\(treespec, LeafSpec\\).*",
    ):
        warnings.filterwarnings("ignore", message)
