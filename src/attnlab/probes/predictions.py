"""The probe of predictions: loss by position, the gap to the training text, a sample."""

from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attnlab.data.batches import Batch
from attnlab.data.corpora import decode
from attnlab.errors import BadInput
from attnlab.generation import sample
from attnlab.plotting import heatmaps
from attnlab.probes.base import Probe, at_least, fixed_windows, log_image, log_scalars, log_text
from attnlab.probes.capture import eval_mode
from attnlab.probes.measures import cross_entropies
from attnlab.training.lightning_module import GPTModule


class Predictions(Probe):
    """What the model says, seen at each validation.

    The loss at each position comes from the validation's own forward passes, hence from the whole
    text. `val/gap` is the validation loss minus the loss on fixed windows of the training text.

    Args:
        train_windows: how many of these.
        sample_chars: length of the sample; 0 for none.

    Raises:
        BadInput: a number is too small.
    """

    def __init__(self, *, train_windows: int, sample_chars: int) -> None:
        super().__init__()
        at_least("probes.predictions.train_windows", train_windows, 1)
        at_least("probes.predictions.sample_chars", sample_chars, 0)
        self.train_windows = train_windows
        self.sample_chars = sample_chars
        self._hook: RemovableHandle | None = None
        self._logits = torch.empty(0)
        self._losses = torch.empty(0)
        self._counts = torch.empty(0)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, GPTModule)
        zeros = torch.zeros(pl_module.net.block_size, device=pl_module.device)
        self._losses, self._counts = zeros.clone(), zeros
        self._hook = pl_module.net.register_forward_hook(self._keep)

    def _keep(self, module: nn.Module, args: tuple[Any, ...], logits: Tensor) -> None:
        self._logits = logits

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        B, T = batch[1].shape
        losses = cross_entropies(self._logits, batch[1])
        self._losses[:T] += losses.sum(0)
        self._counts[:T] += B

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, GPTModule)
        if self._hook is not None:
            self._hook.remove()
        self._logits = torch.empty(0)
        losses = trainer.strategy.reduce(self._losses, reduce_op="sum")
        by_position = losses / trainer.strategy.reduce(self._counts, reduce_op="sum")
        if not trainer.is_global_zero:
            return
        step, curve = trainer.global_step, by_position.tolist()
        gap = pl_module.val_losses[step] - self._train_loss(trainer, pl_module)
        self.record = {"val/gap": gap, "loss_by_position": [round(x, 5) for x in curve]}
        values = {"val/gap": gap, "position/first": curve[0], "position/last": curve[-1]}
        if len(curve) > 2:
            values["position/between"] = sum(curve[1:-1]) / (len(curve) - 2)
        log_scalars(trainer, values, step)
        picture = heatmaps.curve(curve, f"loss by position, nats, step {step}")
        log_image(trainer, "loss_by_position", picture, step)
        if self.sample_chars:
            log_text(trainer, "sample", self._sample(pl_module), step)

    def _train_loss(self, trainer: L.Trainer, lit: GPTModule) -> float:
        x, y = fixed_windows(lit.corpus.train, lit.net.block_size, self.train_windows)
        with eval_mode(lit.net), trainer.precision_plugin.forward_context():
            return float(cross_entropies(lit.net(x.to(lit.device)), y.to(lit.device)).mean())

    def _sample(self, lit: GPTModule) -> str:
        prompt = lit.corpus.val[:1].long().to(lit.device)
        try:
            with eval_mode(lit.net):
                ids = list(sample(lit.net, prompt, self.sample_chars, temperature=0.8))
        except BadInput as error:  # not finite: a result, not a crash
            return str(error)
        return decode(torch.tensor(ids), lit.corpus.alphabet)
