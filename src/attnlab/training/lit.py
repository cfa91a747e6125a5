"""The model under Lightning: its loss, its batches, its optimiser."""

import math
from collections.abc import Callable
from typing import Any

import lightning.pytorch as L
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from attnlab.data.batches import Batch, TrainBatches, validation_batches
from attnlab.data.corpus import Corpus
from attnlab.errors import BadInput
from attnlab.model import GPT
from attnlab.streams import stream_seed

OptimizerFactory = Callable[[torch.nn.Module, int], tuple[Optimizer, LRScheduler]]


class LitGPT(L.LightningModule):
    """Next-character training of a GPT on a corpus.

    Args:
        net: the model.
        corpus: its text.
        optim: called with the model and the number of steps.
        batch_size: B, of all devices together.
        seed: of the streams "data" and "dropout".
        recipe: plain values to rebuild the model from, kept in every checkpoint.
    """

    def __init__(
        self,
        net: GPT,
        corpus: Corpus,
        optim: OptimizerFactory,
        *,
        batch_size: int,
        seed: int,
        recipe: dict[str, Any],
    ) -> None:
        super().__init__()
        self.net = net
        self.corpus = corpus
        self.optim = optim
        self.batch_size = batch_size
        self.seed = seed
        self.recipe = recipe
        self.loss = torch.tensor(math.nan)  # of the last batch
        self.grad_norm = torch.tensor(0.0)  # of the last step, before clipping
        self.val_losses: dict[int, float] = {}  # step -> nats a character
        self._sums: list[Tensor] = []

    def train_dataloader(self) -> DataLoader[Batch]:
        """The batches that are still to come: Lightning does not fast-forward a resumed run."""
        accumulate = self.trainer.accumulate_grad_batches
        batches = TrainBatches(
            self.corpus.train,
            batch_size=self.batch_size,
            block_size=self.net.block_size,
            seed=self.seed,
            steps=self.trainer.max_steps * accumulate,
            start=self.trainer.global_step * accumulate,
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
        )
        return DataLoader(batches, batch_size=None)

    def val_dataloader(self) -> DataLoader[Batch]:
        """The rank's share of the whole validation text."""
        batches = validation_batches(self.corpus.val, self.net.block_size)
        mine = batches[self.trainer.global_rank :: self.trainer.world_size]
        if not mine:
            raise BadInput(
                f"the validation text makes {len(batches)} batches, too few for "
                f"{self.trainer.world_size} devices"
            )
        return DataLoader(mine, batch_size=None)  # type: ignore[arg-type]

    def configure_optimizers(self) -> Any:
        optimizer, schedule = self.optim(self.net, self.trainer.max_steps)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        # Each rank drops on its own, each step from its own seed: a resumed run repeats it.
        stream = f"dropout/{self.trainer.global_rank}"
        torch.manual_seed(stream_seed(self.seed, stream, batch_idx))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self.net(x).flatten(0, 1), y.flatten())
        self.loss = loss.detach()
        self.log("train/loss", self.loss, prog_bar=True)
        return loss

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        # Lightning would clip and keep the norm to itself. 0 means off, as it does there.
        bound = float(gradient_clip_val or math.inf)
        self.grad_norm = torch.nn.utils.clip_grad_norm_(self.net.parameters(), bound)
        self.log("train/grad_norm", self.grad_norm)
        self.log("train/lr", optimizer.param_groups[0]["lr"])

    def on_validation_epoch_start(self) -> None:
        self._sums = []

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        x, y = batch
        loss = F.cross_entropy(self.net(x).flatten(0, 1), y.flatten(), reduction="sum")
        self._sums.append(loss)

    def on_validation_epoch_end(self) -> None:
        sums = torch.stack(self._sums)
        total = (sums.cpu() if sums.device.type == "mps" else sums).double().sum()
        total = self.trainer.strategy.reduce(total, reduce_op="sum")
        val_loss = float(total) / (len(self.corpus.val) - 1)
        self.val_losses[self.trainer.global_step] = val_loss
        self.log("val/loss", val_loss, prog_bar=True)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["attnlab"] = {"recipe": self.recipe, "val_losses": dict(self.val_losses)}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.val_losses = dict(checkpoint["attnlab"]["val_losses"])
