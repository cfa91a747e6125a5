"""The progress of a run in a notebook."""

import sys
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import lightning.pytorch as L

from attnlab.training.config import RunConfig

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

EVERY = 0.3  # seconds between two pictures


def with_progress(config: RunConfig) -> RunConfig:
    """The configuration with a progress bar among its callbacks, if this is a notebook and the
    bar is not turned off; else as it is."""
    wanted = config.settings.trainer.plain().get("enable_progress_bar", True)
    if "ipykernel" not in sys.modules or not wanted:
        return config
    # A configuration has a factory of each callback, as a partial, of which `make_callback` reads
    # the function.
    return replace(config, callbacks=[*config.callbacks, partial(progress_bar)])


def progress_bar() -> L.Callback:
    """The bar of one run. A function, because mypy does not accept `partial[NotebookProgress]` as
    `partial[L.Callback]`."""
    return NotebookProgress()


class NotebookProgress(L.Callback):
    """A bar with the step and the time that is left, which every notebook can show: Lightning's
    needs ipywidgets."""

    def __init__(self) -> None:
        self._bar: DisplayHandle | None = None  # of the output that it updates
        self._first = 0  # the step at which this part of the run started
        # Seconds of `time.perf_counter`, at that start and at the last picture.
        self._begun = self._shown = 0.0

    def on_train_start(self, trainer: L.Trainer, *_: object) -> None:
        """Show the bar, which later calls update in place."""
        from IPython.display import HTML, display

        self._first = trainer.global_step
        self._begun = time.perf_counter()
        self._bar = display(HTML(self._html(trainer)), display_id=True)

    def on_train_batch_end(self, trainer: L.Trainer, *_: object) -> None:
        if time.perf_counter() - self._shown > EVERY:
            self._update(trainer)

    def on_train_end(self, trainer: L.Trainer, *_: object) -> None:
        self._update(trainer)

    def on_exception(self, trainer: L.Trainer, *_: object) -> None:
        self._update(trainer)

    def _update(self, trainer: L.Trainer) -> None:
        """Show the bar anew; nothing if the training has not started."""
        from IPython.display import HTML

        self._shown = time.perf_counter()
        if self._bar is not None:
            self._bar.update(HTML(self._html(trainer)))

    def _html(self, trainer: L.Trainer) -> str:
        """The bar, the step, and the seconds that are left, if this part of the run has a step."""
        step = trainer.global_step
        last = trainer.max_steps
        done = step - self._first
        words = f"step {step} of {last}"
        if done and step < last:
            left = (time.perf_counter() - self._begun) / done * (last - step)
            words += f", {left:.0f} s left"
        return f'<progress value="{step}" max="{last}"></progress> {words}'
