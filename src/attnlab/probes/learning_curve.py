"""How fast a task is learned, and the end of a run that has solved it."""

from typing import Any

import lightning.pytorch as L
import torch

from attnlab.data.batches import IGNORED
from attnlab.data.sequences import Sequences
from attnlab.errors import BadInput
from attnlab.model import GPT
from attnlab.probes.base import Probe, at_least, log_scalars
from attnlab.probes.capture import eval_mode


class LearningCurve(Probe):
    """Measures the accuracy on the first validation sequences of a task during training.

    It logs `val/accuracy` every `every` steps. `curve` in metrics.json has `every`, the accuracies
    in order, and the validation losses by step; for a text, only the losses.
    """

    def __init__(self, *, every: int, sequences: int) -> None:
        super().__init__()
        at_least("probes.curve.every", every, 1)
        at_least("probes.curve.sequences", sequences, 1)
        self.every, self.sequences = every, sequences
        self.record = {"curve": {"every": every, "accuracy": [], "losses": {}}}

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        step, accuracies = trainer.global_step, self.record["curve"]["accuracy"]
        due = step // self.every > len(accuracies)
        if due and isinstance(pl_module.corpus, Sequences):
            accuracies.append(self._accuracy(pl_module.net, pl_module.corpus))
            log_scalars(trainer, {"val/accuracy": accuracies[-1]}, step)

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        step = trainer.global_step
        self.record["curve"]["losses"][str(step)] = pl_module.val_losses[step]

    @torch.no_grad()
    def _accuracy(self, net: GPT, corpus: Sequences) -> float:
        x, y = corpus.windows("val", net.block_size, self.sequences)  # (B, T) each
        device = next(net.parameters()).device
        with eval_mode(net):
            right = net(x.to(device)).argmax(-1).cpu() == y  # IGNORED is no symbol
        return round(float(right.sum() / (y != IGNORED).sum()), 4)


class StopWhenSolved(L.Callback):
    """Ends a run when two accuracies of its `LearningCurve` in a row reach `accuracy`."""

    def __init__(self, accuracy: float) -> None:
        self.accuracy = accuracy

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        _curve(trainer)

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        last = _curve(trainer).record["curve"]["accuracy"][-2:]
        if len(last) == 2 and min(last) >= self.accuracy:
            trainer.should_stop = True


def _curve(trainer: L.Trainer) -> LearningCurve:
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, LearningCurve):
            return callback
    raise BadInput("callbacks=solved needs probes=curve, which measures the accuracy")
