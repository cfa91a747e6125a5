"""Loggers of a run: any of Lightning's, pointed at the run directory."""

import csv
import inspect
from pathlib import Path
from typing import Any

import lightning.pytorch as L
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from omegaconf import DictConfig

from attnlab.training.instantiate import build, locate


def make_logger(node: DictConfig, path: str, folder: Path, resume_step: int | None) -> Logger:
    """A logger that writes into the run directory, unless its node names another `save_dir`.

    Args:
        node: with `_target_`.
        path: of the node in the configuration, for messages.
        folder: the run directory.
        resume_step: the step from which the run resumes; None for a new run.

    Raises:
        BadInput: the node does not fit its target.
    """
    target = locate(str(node._target_), f"{path}._target_")
    given: dict[str, Any] = {}
    if "save_dir" in inspect.signature(target).parameters and "save_dir" not in node:
        given["save_dir"] = str(folder)
    if target is TensorBoardLogger and resume_step is not None:
        # TensorBoard drops what the interrupted part logged after its checkpoint.
        given["purge_step"] = resume_step + 1
    logger: Logger = build(node, path, given=tuple(given))(**given)
    return logger


def restore_csv_rows(trainer: L.Trainer, resume_step: int) -> None:
    """Give each CSVLogger the rows of the interrupted part; Lightning's deletes the file."""
    for logger in trainer.loggers:
        if not isinstance(logger, CSVLogger):
            continue
        file = Path(logger.log_dir) / "metrics.csv"
        rows: list[dict[str, str]] = []
        if file.is_file():
            with file.open(newline="") as stream:
                rows = list(csv.DictReader(stream))
        for row in rows:
            step = int(row.pop("step"))
            if step <= resume_step:
                logger.log_metrics({k: float(x) for k, x in row.items() if x}, step)
        logger.save()
