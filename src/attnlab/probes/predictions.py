"""What a model predicts during training: its loss at each position, and a sample of text."""

from typing import Annotated

import lightning.pytorch as L
import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attnlab.data.contract import IGNORED, Batch
from attnlab.errors import BadInput
from attnlab.probes import measures
from attnlab.probes.base import Probe, ProbedModule, log_scalars, tensorboards
from attnlab.probes.capture import eval_mode
from attnlab.sampling import sample


class Predictions(Probe):
    """Records the loss at each position and the largest logit, and logs a sample of text, at
    validations.

    The loss comes from the forward passes of the validation, so it covers the whole text;
    metrics.json has it as `loss_by_position`, in nats, NaN where nothing is predicted, and
    `max_logit` of the same passes, which is logged as `val/max_logit`. The sample
    continues the first symbol of the validation text by `sample_chars` symbols; 0 for none.
    """

    def __init__(self, *, sample_chars: Annotated[int, Ge(0)]) -> None:
        super().__init__()
        self.sample_chars = sample_chars
        self._hook: RemovableHandle | None = None  # on the model, during a validation
        self._logits = torch.empty(0)  # of the last batch, (B, T, V)
        self._sums = torch.empty(0)  # of losses and counts at each position, (2, T)
        self._max_logit = torch.empty(0)  # of the batches so far, ()

    def on_validation_start(self, trainer: L.Trainer, lit: L.LightningModule) -> None:
        assert isinstance(lit, ProbedModule)

        def keep(module: nn.Module, args: object, logits: Tensor) -> None:
            self._logits = logits

        self._sums = torch.zeros(2, lit.net.block_size, device=lit.device)
        self._max_logit = torch.zeros((), device=lit.device)
        self._hook = lit.net.register_forward_hook(keep)

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        lit: L.LightningModule,
        outputs: object,
        batch: Batch,
        *_: object,
    ) -> None:
        y = batch[1]
        of_batch = torch.stack([measures.cross_entropies(self._logits, y), y != IGNORED])
        self._sums[:, : y.shape[1]] += of_batch.sum(1)  # losses and counts, (2, B, T) -> (2, T)
        largest = measures.max_logit(self._logits)
        self._max_logit = torch.maximum(self._max_logit, largest)  # which keeps a NaN

    def on_validation_end(self, trainer: L.Trainer, lit: L.LightningModule) -> None:
        assert isinstance(lit, ProbedModule)
        if self._hook is not None:
            self._hook.remove()
        self._logits = torch.empty(0)
        losses, counts = trainer.strategy.reduce(self._sums, reduce_op="sum")
        max_logit = float(trainer.strategy.reduce(self._max_logit, reduce_op="max"))
        self.record = {
            "loss_by_position": [round(x, 5) for x in (losses / counts).tolist()],
            "max_logit": max_logit,
        }
        log_scalars(trainer, {"val/max_logit": max_logit}, trainer.global_step)
        if not self.sample_chars or not trainer.is_global_zero:
            return
        first = lit.data.val[:1].to(lit.device)
        alphabet = lit.data.alphabet
        try:
            with eval_mode(lit.net):
                ids = list(sample(lit.net, first, self.sample_chars, temperature=0.8))
            written = alphabet.decode([int(first), *ids])
        except BadInput as error:  # logits that are not finite
            written = str(error)
        preformatted = "    " + written.replace("\n", "\n    ")  # as Markdown
        for logger in tensorboards(trainer):
            logger.experiment.add_text("sample", preformatted, trainer.global_step)
