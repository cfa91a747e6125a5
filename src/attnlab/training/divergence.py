"""Detects a run whose loss or gradient is no longer finite."""

import math
from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor

from attnlab.probes.capture import Finding, first_nonfinite_gradient, in_words
from attnlab.training.lightning_module import TaskModule


class Divergence(L.Callback):
    """Stops a run whose loss or gradient is not finite, and records the step.

    A non-finite gradient makes the weights non-finite in the same step. The check runs on the
    device. On a GPU its result is read every 10 steps, because each read waits for the GPU; in
    the first steps it is read every time, since a model that cannot work fails there.

    Attributes:
        step: the first step that is not finite; None if all are.
        first: the first module with a non-finite value, if it is known.
        last_finite_loss: training loss before that step.
    """

    def __init__(self) -> None:
        self.step: int | None = None
        self.first: Finding | None = None
        self.last_finite_loss = math.nan
        self._batch: Any = None
        self._every = 1
        self._bad_step = torch.tensor(-1)
        self._last = torch.tensor(math.nan)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._every = 1 if pl_module.device.type == "cpu" else 10
        self._bad_step = self._bad_step.to(pl_module.device)
        self._last = self._last.to(pl_module.device)

    @property
    def reason(self) -> str | None:
        """A sentence for status.json; None if the run did not diverge."""
        if self.step is None:
            return None
        where = "" if self.first is None else f": {in_words(self.first)}"
        return f"the loss or its gradient is not finite{where}"

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._batch = batch

    def on_before_backward(
        self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor
    ) -> None:
        # After the step it is too late to tell where: every weight is non-finite.
        assert isinstance(pl_module, TaskModule)
        asks = self._every == 1 or trainer.global_step < self._every
        if asks and self.first is None and not bool(loss.isfinite()):
            self.first = pl_module.first_nonfinite(self._batch)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        assert isinstance(pl_module, TaskModule)
        loss = pl_module.loss  # Lightning's outputs hold it divided by the accumulated batches
        finite = loss.isfinite()
        if trainer.precision != "16-mixed":  # whose loss scaling overflows by design
            finite = finite & pl_module.grad_norm.isfinite()
        fine = self._bad_step < 0
        self._last = torch.where(fine & loss.isfinite(), loss, self._last)
        self._bad_step = torch.where(fine & ~finite, trainer.global_step, self._bad_step)
        at_end = trainer.global_step >= trainer.max_steps
        if (batch_idx + 1) % self._every == 0 or at_end:
            step = int(self._bad_step)
            if step >= 0:
                self.step = step
                self.last_finite_loss = float(self._last)
                self.first = self.first or first_nonfinite_gradient(pl_module.net)
                trainer.should_stop = True

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # The step before may have made weights non-finite whose own loss was still a number.
        assert isinstance(pl_module, TaskModule)
        loss = pl_module.val_losses[trainer.global_step]
        if self.step is None and not math.isfinite(loss):
            self.step = trainer.global_step
            self.last_finite_loss = float(self._last)
            trainer.should_stop = True

    def state_dict(self) -> dict[str, float]:
        return {"last": float(self._last), "bad_step": int(self._bad_step)}

    def load_state_dict(self, state_dict: dict[str, float]) -> None:
        self._last = torch.tensor(state_dict["last"])
        self._bad_step = torch.tensor(int(state_dict["bad_step"]))
