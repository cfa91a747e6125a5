"""Checkpoints under Lightning: written atomically, and the best one is of a finite loss."""

import io
import math
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from attnlab.errors import BadInput
from attnlab.files import write_atomically
from attnlab.training.checkpoint_file import read_checkpoint, seal
from attnlab.training.lightning_module import TaskModule


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's file format, put in place in one step."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        content = io.BytesIO()
        torch.save(checkpoint, content)
        write_atomically(Path(path), seal(content.getvalue()))

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        return read_checkpoint(Path(path))


class Checkpoints(L.Callback):
    """Keeps `last.ckpt`, to go on from, and `best.ckpt`, of the lowest finite validation loss.

    Lightning's own callback calls a checkpoint best whose loss is NaN, and stores absolute paths.

    Args:
        folder: where they go.
        every: steps between two writings of `last.ckpt`; validations and the end
            of the training write it too.

    `saved_step` is the step of the `last.ckpt` that is on the disk, 0 where there is none.
    """

    def __init__(self, folder: Path, every: int) -> None:
        if every < 1:
            raise BadInput(f"checkpoint_every = {every} must be at least 1")
        self.folder = folder
        self.every = every
        self.saved_step = 0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.saved_step = trainer.global_step
        if self.saved_step and trainer.is_global_zero:
            print(f"going on from step {self.saved_step}", flush=True)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        step = trainer.global_step
        accumulate = trainer.accumulate_grad_batches
        between_steps = (batch_idx + 1) % accumulate == 0
        validates = (batch_idx + 1) % int(trainer.val_check_interval or 1) == 0
        due = between_steps and step % self.every == 0 and not validates
        if due and not trainer.should_stop:
            self._save(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, TaskModule)
        losses = {step: x for step, x in pl_module.val_losses.items() if math.isfinite(x)}
        if trainer.should_stop or trainer.global_step not in losses:
            return
        self._save(trainer)
        if min(losses, key=losses.__getitem__) == trainer.global_step:
            trainer.save_checkpoint(self.folder / "best.ckpt")

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.global_step != self.saved_step and not trainer.should_stop:
            self._save(trainer)

    def _save(self, trainer: L.Trainer) -> None:
        trainer.save_checkpoint(self.folder / "last.ckpt")
        self.saved_step = trainer.global_step
