"""The translator as a LightningModule."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
import translation_measures as measures
from aligner import Aligner
from pair_batches import Batch, PairBatches, steps_an_epoch, validation_batches
from sentence_pairs import PAD, Pairs
from torch import Tensor
from translator import Translator, init_weights

from attnlab.errors import BadInput
from attnlab.probes.nonfinite import Finding, first_nonfinite_weight
from attnlab.training.lightning_module import Reduction, TaskModule


class TranslatorModule(TaskModule):
    """Next-word training of a translator on sentence pairs, with teacher forcing.

    `TaskModule` documents the arguments.
    """

    model_class = Translator
    attention_class = Aligner
    data_class = Pairs
    needs = "attn=cross/additive, cross/dot or cross/scaled_dot, and sentence pairs: data=pairs"
    unit = "word"
    baseline = "attn=cross/additive"
    contrast = "attn=cross/scaled_dot"

    net: Translator
    corpus: Pairs

    @staticmethod
    def init_weights(net: Translator, seed: int) -> None:
        """Draw the weights; see `init_weights` beside `Translator`."""
        init_weights(net, seed)

    @staticmethod
    @torch.no_grad()
    def try_forward(net: Translator) -> None:
        """Attend to two source words once, so that a broken score fails at once.

        Raises:
            ValueError: the context has the wrong shape.
        """
        H = net.bridge.out_features
        memory, may_attend = torch.zeros(1, 2, 2 * H), torch.ones(1, 2, dtype=torch.bool)
        context, _ = net.attn(torch.zeros(1, H), net.attn.keys(memory), memory, may_attend)
        if context.shape != (1, 2 * H):
            raise ValueError(
                f"the attention must return a context of shape {(1, 2 * H)}; "
                f"it returned {tuple(context.shape)}"
            )

    def check_data(self) -> None:
        measures.sacrebleu()  # fails before the training if it is missing, not after
        if len(self.corpus.train) < self.batch_size:
            raise BadInput(
                f"data.batch_size = {self.batch_size} is more than the "
                f"{len(self.corpus.train)} pairs that {self.corpus.name} has to train on"
            )

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
        """The last training pairs, as many as there are validation pairs."""
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
        """Number of words of the translations, including the end of each sentence."""
        whole = self.batches(batches, 0, 0, 1)
        return sum(len(pair.target) + 1 for step in range(batches) for pair in whole.rows(step))

    def extra_metrics(self, seconds_a_batch: float) -> dict[str, Any]:
        """BLEU, exact matches, and accuracy of the alignments over the validation pairs."""
        an_epoch = steps_an_epoch(len(self.corpus.train), self.batch_size)
        figures = {"seconds_an_epoch": seconds_a_batch * an_epoch}
        return measures.quality(self.net, self.corpus) | figures

    @classmethod
    def summary_rows(cls, metrics: Mapping[str, Any]) -> dict[str, str]:
        line = f"BLEU {metrics['bleu']:.1f}, {metrics['exact_match']:.0%} exact matches"
        if "alignment_accuracy" in metrics:
            line += f", {metrics['alignment_accuracy']:.0%} of content words aligned correctly"
        return {"translations": line}

    def first_nonfinite(self, batch: Batch) -> Finding | None:
        found = first_nonfinite_weight(self.net)
        if found is None and not self.net(batch.source, batch.given).isfinite().all():
            found = {"layer": None, "quantity": "logits"}
        return found
