"""What stands around the loop: the stop at divergence, the clock, the lines on the terminal."""

import math
import time
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import TQDMProgressBar
from torch import Tensor

from attnlab.probes.base import log_scalars
from attnlab.probes.nonfinite import Finding, first_nonfinite_gradient, in_words
from attnlab.training.lightning_module import TaskModule


class Divergence(L.Callback):
    """Ends a run whose loss or gradient is no longer finite, and remembers where.

    A non-finite gradient makes the weights non-finite in the same step. The check runs on the
    device; asking for its result every `every` steps spares a GPU the wait at each one, but for
    the first steps, in which a model that cannot work at all shows it.
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
        """A sentence for status.json; None where all is finite."""
        if self.step is None:
            return None
        where = "" if self.first is None else f": {in_words(self.first)}"
        return f"the loss or its gradient is not finite{where}"

    def outcome(self) -> dict[str, Any]:
        """What metrics.json says of it."""
        if self.step is None:
            return {"status": "finished"}
        return {
            "status": "diverged",
            "diverged_at_step": self.step,
            "last_finite_loss": self.last_finite_loss,
            "first_nonfinite": self.first,
        }

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._batch = batch

    def on_before_backward(
        self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor
    ) -> None:
        # Afterwards it would be too late to tell where: the step makes every weight non-finite.
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
        if trainer.precision != "16-mixed":  # whose loss scaling overflows as a matter of course
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


class Scalars(L.Callback):
    """Hands the loggers the losses, the gradient's norm and the learning rate.

    All stand under the number of steps that were done. Lightning's own `log` would collect every
    value at every step, which takes as long as a tenth of a small model's step.
    """

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        assert isinstance(pl_module, TaskModule)
        if not trainer.loggers or (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if trainer.global_step % every == 0 or trainer.should_stop:
            values = {"train/loss": float(pl_module.loss), "train/lr": pl_module.lr}
            _log(trainer, values | {"train/grad_norm": float(pl_module.grad_norm)})

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, TaskModule)
        _log(trainer, {"val/loss": pl_module.val_losses[trainer.global_step]})


def _log(trainer: L.Trainer, values: dict[str, float]) -> None:
    log_scalars(trainer, values, trainer.global_step)
    for logger in trainer.loggers:
        logger.save()  # so that it can be watched


class Clock(L.Callback):
    """Seconds of training, and of the validations within, summed over resumed parts."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.validating = 0.0
        self.batches = 0
        self._began = 0.0
        self._val_began = 0.0

    @property
    def seconds_a_batch(self) -> float:
        """Validations apart."""
        return (self.seconds - self.validating) / self.batches if self.batches else math.nan

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._began = time.perf_counter() - self.seconds

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        self.batches += 1
        self.seconds = time.perf_counter() - self._began

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._val_began = time.perf_counter()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn == "fit":
            self.validating += time.perf_counter() - self._val_began
            self.seconds = time.perf_counter() - self._began

    def state_dict(self) -> dict[str, float]:
        return {
            "seconds": self.seconds,
            "validating": self.validating,
            "batches": self.batches,
        }

    def load_state_dict(self, state_dict: dict[str, float]) -> None:
        self.seconds = state_dict["seconds"]
        self.validating = state_dict["validating"]
        self.batches = int(state_dict["batches"])


class Progress(TQDMProgressBar):
    """Lightning's bar, in steps: there are no epochs here, and no versions."""

    def on_train_epoch_start(self, trainer: L.Trainer, *_: Any) -> None:
        super().on_train_epoch_start(trainer)
        self.train_progress_bar.set_description("training")

    def get_metrics(
        self, trainer: L.Trainer, pl_module: L.LightningModule
    ) -> dict[str, int | str | float | dict[str, float]]:
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        assert isinstance(pl_module, TaskModule)
        metrics["train/loss"] = float(pl_module.loss)
        if pl_module.val_losses:
            metrics["val/loss"] = pl_module.val_losses[max(pl_module.val_losses)]
        return metrics


class Lines(L.Callback):
    """A line at each validation, where no terminal could draw a bar."""

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, TaskModule)
        if trainer.state.fn == "fit" and trainer.is_global_zero:
            step = trainer.global_step
            print(f"step {step}: val loss {pl_module.val_losses[step]:.4f}", flush=True)
