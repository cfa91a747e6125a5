"""What a run shows on the terminal while it trains."""

from typing import Any

import lightning.pytorch as L
from lightning.pytorch.callbacks import TQDMProgressBar

from attnlab.training.lightning_module import TaskModule


class Progress(TQDMProgressBar):
    """Lightning's progress bar, in steps: a run has one endless epoch and no version number."""

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
    """Prints a line at each validation, for output that is not a terminal."""

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, TaskModule)
        if trainer.state.fn == "fit" and trainer.is_global_zero:
            step = trainer.global_step
            print(f"step {step}: val loss {pl_module.val_losses[step]:.4f}", flush=True)
