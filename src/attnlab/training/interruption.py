"""Delays signals during training until a checkpoint is written."""

import signal
import threading
from types import FrameType
from typing import Any

import lightning.pytorch as L

from attnlab.training.callbacks import RunCheckpoints
from attnlab.training.slurm import USER_SIGNALS, terminate


class Interruption(L.Callback):
    """On a signal that would end the process, asks for a checkpoint at the end of the step, and
    then calls the handler that the signal had before. A second signal acts at once.

    If that handler returns, training continues until the process is killed. In runs of several
    processes, which must stop at the same step, Lightning handles the signals.
    """

    def __init__(self, checkpoints: RunCheckpoints) -> None:
        self.checkpoints = checkpoints
        self.received: int | None = None
        self._handlers: dict[int, Any] = {}
        self._first = 0  # at least one step is done, so that short time limits make progress

    def on_fit_start(self, trainer: L.Trainer, *_: Any) -> None:
        # Lightning's own handlers come next. That of SIGTERM would end a validation. If SIGUSR1
        # had none yet, Lightning's would requeue jobs of Slurm by files that a later fit loads.
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM, *USER_SIGNALS):
            handler = signal.getsignal(number)
            if handler is signal.SIG_DFL:
                handler = terminate
                signal.signal(number, handler)
            if callable(handler) and trainer.world_size == 1:
                self._handlers[number] = handler

    def on_train_start(self, trainer: L.Trainer, *_: Any) -> None:
        self._first = trainer.global_step
        for number in self._handlers:
            signal.signal(number, self._receive)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, USER_SIGNALS)  # train.py has blocked them

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        saved = self.checkpoints.saved_step == trainer.global_step > self._first
        if self.received is not None and saved:
            number, self.received = self.received, None
            self.checkpoints.asked = False
            self._act(number)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            self._act(number)
        self.received, self.checkpoints.asked = number, True

    def _act(self, number: int) -> None:
        try:
            self._handlers[number](number, None)
        except Exception as error:  # submitit's, if it does not requeue the job
            print(error, flush=True)
            raise SystemExit(128 + number) from error
