"""The translator under Lightning."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from attnlab.probes.nonfinite import Finding, first_nonfinite_weight
from attnlab.training.lightning_module import OptimizerFactory, Reduction, TaskModule
from attnlab.translation import measures
from attnlab.translation.batches import Batch, PairBatches, steps_an_epoch, validation_batches
from attnlab.translation.model import Translator
from attnlab.translation.pairs import PAD, Pairs


class TranslatorModule(TaskModule):
    """Next-word training of a translator on pairs, with the true words before it given.

    Args:
        net: the model.
        corpus: its pairs.
        optim, batch_size, seed, recipe: see `TaskModule`.
    """

    net: Translator

    def __init__(
        self,
        net: Translator,
        corpus: Pairs,
        optim: OptimizerFactory,
        *,
        batch_size: int,
        seed: int,
        recipe: dict[str, Any],
    ) -> None:
        super().__init__(net, optim, batch_size=batch_size, seed=seed, recipe=recipe)
        self.corpus = corpus

    def batches(self, steps: int, start: int, rank: int, world_size: int) -> PairBatches:
        return PairBatches(
            self.corpus.train,
            self.corpus.alphabet,
            batch_size=self.batch_size,
            seed=self.seed,
            steps=steps,
            start=start,
            rank=rank,
            world_size=world_size,
        )

    def val_batches(self) -> list[Batch]:
        return validation_batches(self.corpus.val, self.corpus.alphabet)

    def train_piece(self) -> list[Batch]:
        """The last training pairs, as many as validate."""
        piece = self.corpus.train[-len(self.corpus.val) :]
        return validation_batches(piece, self.corpus.alphabet)

    def batch_loss(self, batch: Batch, reduction: Reduction) -> Tensor:
        logits = self.net(batch.source, batch.given).flatten(0, 1)
        return F.cross_entropy(
            logits, batch.target.flatten(), ignore_index=PAD, reduction=reduction
        )

    def predictions(self, batch: Batch) -> int:
        return int((batch.target != PAD).sum())

    def tokens(self, batches: int) -> int:
        """Words of the translations, each sentence's end included."""
        whole = self.batches(batches, 0, 0, 1)
        return sum(len(pair.target) + 1 for step in range(batches) for pair in whole.rows(step))

    def further_figures(self, seconds_a_batch: float) -> dict[str, Any]:
        """BLEU, exact matches and the alignment's accuracy over the validation pairs."""
        an_epoch = steps_an_epoch(len(self.corpus.train), self.batch_size)
        figures = {"seconds_an_epoch": seconds_a_batch * an_epoch}
        return measures.quality(self.net, self.corpus) | figures

    def first_nonfinite(self, batch: Batch) -> Finding | None:
        found = first_nonfinite_weight(self.net)
        if found is None and not self.net(batch.source, batch.given).isfinite().all():
            found = {"layer": None, "quantity": "logits"}
        return found
