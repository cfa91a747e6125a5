"""The accuracy of a task during training, and a stop for a run that has solved it."""

from typing import TypedDict, cast

import lightning.pytorch as L

from attnlab.data.contract import IGNORED
from attnlab.errors import BadInput
from attnlab.probes.base import Positive, Probe, ProbedModule, log_scalars
from attnlab.probes.capture import eval_mode


class Curve(TypedDict):
    """What metrics.json has as `curve`."""

    every: int  # steps between two accuracies
    accuracy: list[float]
    losses: dict[str, float]  # step -> validation loss


class LearningCurve(Probe):
    """Measures the accuracy on the first validation sequences of a task during training.

    It logs `val/accuracy` every `every` steps. `curve` in metrics.json has `every`, the accuracies
    in order, and the validation losses by step; for a text, only the losses.
    """

    def __init__(self, *, every: Positive, sequences: Positive) -> None:
        super().__init__()
        self.every = every
        self.sequences = sequences
        self.record = {"curve": Curve(every=every, accuracy=[], losses={})}

    @property
    def curve(self) -> Curve:
        """What was measured so far."""
        return cast(Curve, self.record["curve"])

    def on_train_batch_end(self, trainer: L.Trainer, lit: L.LightningModule, *_: object) -> None:
        step = trainer.global_step
        accuracies = self.curve["accuracy"]
        # Once a step, although this is called after each of the batches that make one.
        if step // self.every <= len(accuracies):
            return
        assert isinstance(lit, ProbedModule)
        if lit.data.is_task:
            x, y = lit.data.windows("val", lit.net.block_size, self.sequences)  # (B, T) each
            with eval_mode(lit.net):
                right = lit.net(x.to(lit.device)).argmax(-1).cpu() == y  # IGNORED is no symbol
            accuracies.append(round(float(right.sum() / (y != IGNORED).sum()), 4))
            log_scalars(trainer, {"val/accuracy": accuracies[-1]}, step)

    def on_validation_end(self, trainer: L.Trainer, lit: L.LightningModule) -> None:
        assert isinstance(lit, ProbedModule)
        step = trainer.global_step
        self.curve["losses"][str(step)] = lit.val_losses[step]


class StopWhenSolved(L.Callback):
    """Ends a run when two accuracies of probes=curve in a row reach `accuracy`."""

    def __init__(self, accuracy: float) -> None:
        self.accuracy = accuracy

    def on_train_batch_end(self, trainer: L.Trainer, *_: object) -> None:
        callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        curves = [each for each in callbacks if isinstance(each, LearningCurve)]
        if not curves:
            raise BadInput("callbacks=solved needs probes=curve, which measures the accuracy")
        last = curves[0].curve["accuracy"][-2:]
        if len(last) == 2 and min(last) >= self.accuracy:
            trainer.should_stop = True
