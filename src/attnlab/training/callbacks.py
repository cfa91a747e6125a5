"""Lightning callbacks of every run: scalars, timing, divergence, checkpoints, and progress."""

import io
import math
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping, Timer, TQDMProgressBar
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor

from attnlab.files import seal, write_atomically
from attnlab.probes.base import log_scalars
from attnlab.probes.nonfinite import Finding, first_nonfinite_gradient, in_words
from attnlab.training.checkpoints import read_checkpoint


class Scalars(L.Callback):
    """Logs losses, the norm of the gradient and the learning rate, by the number of steps done.

    `self.log` would collect every value at every step, up to a tenth of a small model's time.
    """

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not trainer.loggers or (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if trainer.global_step % every == 0 or trainer.should_stop:
            values = {"train/loss": float(pl_module.loss), "train/lr": pl_module.lr}
            _log(trainer, values | {"train/grad_norm": float(pl_module.grad_norm)})

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        _log(trainer, {"val/loss": pl_module.val_losses[trainer.global_step]})


def _log(trainer: L.Trainer, values: dict[str, float]) -> None:
    log_scalars(trainer, values, trainer.global_step)
    for logger in trainer.loggers:
        logger.save()  # so that the run can be watched


class Clock(L.Callback):
    """Measures seconds of training and of validation, summed over the parts of a resumed run."""

    def __init__(self) -> None:
        self.seconds = self.validating = 0.0
        self.batches = 0
        self._began = self._val_began = 0.0

    @property
    def seconds_a_batch(self) -> float:
        """Seconds of training a batch, without the validations."""
        return (self.seconds - self.validating) / self.batches if self.batches else math.nan

    def on_train_start(self, *_: Any) -> None:
        self._began = time.perf_counter() - self.seconds

    def on_train_batch_end(self, *_: Any) -> None:
        self.batches += 1
        self.seconds = time.perf_counter() - self._began

    def on_validation_start(self, *_: Any) -> None:
        self._val_began = time.perf_counter()

    def on_validation_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.state.fn == "fit":
            now = time.perf_counter()
            self.validating += now - self._val_began
            self.seconds = now - self._began

    def state_dict(self) -> dict[str, float]:
        return {"seconds": self.seconds, "validating": self.validating, "batches": self.batches}

    def load_state_dict(self, state_dict: dict[str, float]) -> None:
        vars(self).update(state_dict)


class Divergence(L.Callback):
    """Stops a run whose loss or gradient is not finite, and records the step.

    The check runs on the device. On a GPU its result is read every 10 steps and at checkpoints,
    because each read waits for the GPU.
    """

    def __init__(self) -> None:
        self.step: int | None = None  # the first that is not finite
        self.first: Finding | None = None  # the first module with a non-finite value, if known
        self.last_finite_loss = math.nan  # of the training, before that step
        self._batch: Any = None
        self._every = 1
        self._bad_step = torch.tensor(-1)
        self._last = torch.tensor(math.nan)

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        self._every = 1 if pl_module.device.type == "cpu" else 10
        self._bad_step = self._bad_step.to(pl_module.device)
        self._last = self._last.to(pl_module.device)

    @property
    def found(self) -> bool:
        """Whether a step was not finite; waits for the device."""
        return self.step is not None or int(self._bad_step) >= 0

    @property
    def reason(self) -> str:
        """Why the run diverged, for status.json."""
        where = "" if self.first is None else f": {in_words(self.first)}"
        return f"the loss or its gradient is not finite{where}"

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, *_: Any) -> None:
        self._batch = batch

    def on_before_backward(self, trainer: L.Trainer, pl_module: Any, loss: Tensor) -> None:
        # Before the step, which makes every weight non-finite; on a GPU in the first steps only.
        asks = self._every == 1 or trainer.global_step < self._every
        if asks and self.first is None and not bool(loss.isfinite()):
            self.first = pl_module.first_nonfinite(self._batch)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = pl_module.loss  # Lightning's outputs hold it divided by the accumulated batches
        # The step of this batch; trainer.global_step counts only steps that are done.
        done, rest = divmod(batch_idx + 1, trainer.accumulate_grad_batches)
        step = done + (rest > 0)
        finite = loss.isfinite() & pl_module.grad_norm.isfinite()
        fine = self._bad_step < 0
        self._last = torch.where(fine & loss.isfinite(), loss, self._last)
        self._bad_step = torch.where(fine & ~finite, step, self._bad_step)
        asks = not rest and (step % self._every == 0 or step >= trainer.max_steps)
        if asks and self.found:
            self.first = self.first or first_nonfinite_gradient(pl_module.net)
            self._stop(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        # The step before may have made weights non-finite whose own loss was still a number.
        if self.step is None and not math.isfinite(pl_module.val_losses[trainer.global_step]):
            self._stop(trainer)

    def _stop(self, trainer: L.Trainer) -> None:
        self.step = int(self._bad_step) if self.found else trainer.global_step
        self.last_finite_loss = float(self._last)
        trainer.should_stop = True

    def state_dict(self) -> dict[str, float]:
        return {"last": float(self._last), "bad_step": int(self._bad_step)}

    def load_state_dict(self, state_dict: dict[str, float]) -> None:
        self._last = torch.tensor(state_dict["last"])
        self._bad_step = torch.tensor(int(state_dict["bad_step"]))


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoint format, sealed by a digest and put in place in one step."""

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


class RunCheckpoints(Checkpoint):
    """Keeps `last.ckpt`, from which a run resumes, and `best.ckpt`, of the lowest validation loss.

    `last.ckpt` is written after every `every` steps and at validations, of which the last is at
    the end of the run, but never for a diverged step. Lightning's ModelCheckpoint ranks NaN as the
    best loss, and it does not save the last step of a run.
    """

    def __init__(self, folder: Path, every: int, divergence: Divergence) -> None:
        self.folder, self.every, self.divergence = folder, every, divergence
        self.saved_step: int | None = None  # of the last.ckpt on the disk
        self.asked = False  # for a last.ckpt after this step
        self.stopped: str | None = None  # why a callback stopped the run before max_steps

    def on_fit_start(self, trainer: L.Trainer, *_: Any) -> None:
        if self.stopped:  # by a callback, but the process was killed before metrics.json
            trainer.should_stop = True

    def on_train_start(self, trainer: L.Trainer, *_: Any) -> None:
        if self.saved_step is not None and trainer.is_global_zero:
            print(f"Resuming from step {self.saved_step}.", flush=True)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        between_steps = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        # A validation that follows saves, too.
        validates = (batch_idx + 1) % int(trainer.val_check_interval or 1) == 0
        due = self.asked or trainer.global_step % self.every == 0
        if between_steps and due and not validates:
            self._save(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        losses = {step: x for step, x in pl_module.val_losses.items() if math.isfinite(x)}
        if trainer.global_step not in losses or self.divergence.found:
            return
        if min(losses, key=losses.__getitem__) == trainer.global_step:
            # Before last.ckpt, so that a run killed in between validates this step again.
            trainer.save_checkpoint(self.folder / "best.ckpt")
        self._save(trainer)

    def _save(self, trainer: L.Trainer) -> None:
        if not self.divergence.found:
            self.stopped = self.stopped or why_stopped(trainer)
            trainer.save_checkpoint(self.folder / "last.ckpt")
            self.saved_step = trainer.global_step

    def state_dict(self) -> dict[str, str | None]:
        return {"stopped": self.stopped}

    def load_state_dict(self, state_dict: dict[str, str | None]) -> None:
        self.stopped = state_dict["stopped"]

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        self.saved_step = checkpoint["global_step"]


def why_stopped(trainer: L.Trainer) -> str | None:
    """Why a callback stops a run before `max_steps`, or None; Lightning calls both finished."""
    if not trainer.should_stop or trainer.global_step >= trainer.max_steps:
        return None
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, EarlyStopping) and callback.stopping_reason_message:
            return f"EarlyStopping: {callback.stopping_reason_message}"
        if isinstance(callback, Timer):
            left = callback.time_remaining()
            if left is not None and left <= 0:
                return "Timer: the time limit is reached"
    return "a callback set trainer.should_stop"


class Progress(TQDMProgressBar):
    """Lightning's progress bar, in steps: a run has one endless epoch and no version number."""

    def on_train_epoch_start(self, trainer: L.Trainer, *_: Any) -> None:
        super().on_train_epoch_start(trainer)
        self.train_progress_bar.set_description("training")

    def get_metrics(self, trainer: L.Trainer, pl_module: Any) -> dict[str, Any]:
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        metrics["train/loss"] = float(pl_module.loss)
        if pl_module.val_losses:
            metrics["val/loss"] = pl_module.val_losses[max(pl_module.val_losses)]
        return metrics


class Lines(L.Callback):
    """Prints a forecast after ten steps and a line at each validation, instead of a bar."""

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        self._forecast_at = trainer.global_step + 10

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        step = trainer.global_step
        if step == self._forecast_at - 5:
            self._began = time.monotonic()  # the first steps take longer
        elif step == self._forecast_at and trainer.is_global_zero:
            self._forecast_at = -1
            seconds = (time.monotonic() - self._began) / 5 * (trainer.max_steps - step)
            if seconds > 10:  # a shorter run needs no forecast
                loss, left = float(pl_module.loss), time_left(seconds)
                print(f"step {step}: loss {loss:.4f}, {left}", flush=True)

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if trainer.state.fn == "fit" and trainer.is_global_zero:
            step = trainer.global_step
            print(f"step {step}: val loss {pl_module.val_losses[step]:.4f}", flush=True)


def time_left(seconds: float) -> str:
    """A forecast in words, such as "40 s left"."""
    return f"{seconds:.0f} s left" if seconds < 100 else f"{seconds / 60:.0f} min left"
