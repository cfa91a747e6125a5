"""The progress bar of a run: its steps and the time left, in one line."""

import lightning.pytorch as L
from lightning.pytorch.callbacks import TQDMProgressBar


class StepBar(TQDMProgressBar):
    """Counts the steps of the whole run, also of one that resumes; no bar for validations.

    Lightning's own bars count the batches of an epoch since the start or the resumption, and a run
    of attnlab has one epoch without an end. In a notebook with ipywidgets, it is a widget.
    """

    def on_train_epoch_start(self, trainer: L.Trainer, *_: object) -> None:
        bar = self.train_progress_bar
        bar.reset(total=trainer.max_steps)
        bar.initial = trainer.global_step  # the rate is that of the steps since then
        bar.n = trainer.global_step
        bar.set_description("step")

    def on_train_batch_end(self, trainer: L.Trainer, lit: object, *_: object) -> None:
        step = trainer.global_step
        if not self._should_update(step, trainer.max_steps):
            return
        bar = self.train_progress_bar
        bar.n = step
        bar.refresh()

    def on_validation_start(self, *_: object) -> None:
        """Show nothing; the loss of a validation is printed."""

    def on_validation_batch_start(self, *_: object, **__: object) -> None: ...

    def on_validation_batch_end(self, *_: object, **__: object) -> None: ...

    def on_validation_end(self, *_: object) -> None: ...
