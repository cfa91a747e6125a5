"""What is trained under Lightning: a task's loss and batches, and what all tasks share."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal

import lightning.pytorch as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset

from attnlab.attention import SelfAttention, kernels
from attnlab.attention.masks import name_of
from attnlab.data.batches import Batch, TrainBatches, validation_batches
from attnlab.data.corpus import Corpus
from attnlab.errors import BadInput
from attnlab.model import GPT
from attnlab.probes.nonfinite import Finding, first_nonfinite
from attnlab.rng import seed_default, stream_seed

OptimizerFactory = Callable[[torch.nn.Module, int], tuple[Optimizer, LRScheduler]]
Reduction = Literal["mean", "sum"]


class TaskModule(L.LightningModule):
    """A model with its batches, its optimizer and its streams of randomness, whatever it learns.

    A task says what its batches and its loss are; batches are tuples of tensors.

    Args:
        net: the model.
        optim: called with the model and the number of steps.
        batch_size: B, of all devices together.
        seed: of the streams "data" and "dropout".
        recipe: plain values to rebuild the model from, kept in every checkpoint.
    """

    def __init__(
        self,
        net: nn.Module,
        optim: OptimizerFactory,
        *,
        batch_size: int,
        seed: int,
        recipe: dict[str, Any],
    ) -> None:
        super().__init__()
        self.net = net
        self.optim = optim
        self.batch_size = batch_size
        self.seed = seed
        self.recipe = recipe
        self.loss = torch.tensor(math.nan)  # of the last batch
        self.grad_norm = torch.tensor(0.0)  # of the last step, before clipping
        self.lr = math.nan  # of the last step
        self.val_losses: dict[int, float] = {}  # step -> nats a prediction
        self._sums: list[Tensor] = []

    @abstractmethod
    def batches(self, steps: int, start: int, rank: int, world_size: int) -> Dataset[Any]:
        """The rank's batches from step `start` to `steps`, each a function of (seed, step)."""

    @abstractmethod
    def val_batches(self) -> Sequence[Any]:
        """The whole validation data."""

    @abstractmethod
    def train_piece(self) -> Sequence[Any]:
        """A fixed piece of the training data, for the training loss that is reported."""

    @abstractmethod
    def batch_loss(self, batch: Any, reduction: Reduction) -> Tensor:
        """Nats over the predictions of a batch."""

    @abstractmethod
    def predictions(self, batch: Any) -> int:
        """How many predictions a batch asks for."""

    @abstractmethod
    def tokens(self, batches: int) -> int:
        """How many predictions that many batches of the training ask for."""

    @abstractmethod
    def further_figures(self, seconds_a_batch: float) -> dict[str, Any]:
        """What metrics.json says of this task alone; called at the end, on one rank."""

    @abstractmethod
    def first_nonfinite(self, batch: Any) -> Finding | None:
        """Where a batch first leaves the finite numbers; None where it does not."""

    def train_dataloader(self) -> DataLoader[Any]:
        """The batches that are still to come: Lightning does not fast-forward a resumed run."""
        accumulate = self.trainer.accumulate_grad_batches
        batches = self.batches(
            self.trainer.max_steps * accumulate,
            self.trainer.global_step * accumulate,
            self.trainer.global_rank,
            self.trainer.world_size,
        )
        return DataLoader(batches, batch_size=None)

    def val_dataloader(self) -> DataLoader[Any]:
        """The rank's share of the whole validation data."""
        batches = self.val_batches()
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

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        # Each rank drops on its own, each step from its own seed: a resumed run repeats it.
        stream = f"dropout/{self.trainer.global_rank}"
        seed_default(stream_seed(self.seed, stream, batch_idx), self.device)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.batch_loss(batch, "mean")
        self.loss = loss.detach()
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
        self.lr = optimizer.param_groups[0]["lr"]

    def on_validation_epoch_start(self) -> None:
        self._sums = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._sums.append(self.batch_loss(batch, "sum"))

    def on_validation_epoch_end(self) -> None:
        sums = torch.stack(self._sums)
        total = (sums.cpu() if sums.device.type == "mps" else sums).double().sum()
        total = self.trainer.strategy.reduce(total, reduce_op="sum")
        predictions = sum(map(self.predictions, self.val_batches()))
        self.val_losses[self.trainer.global_step] = float(total) / predictions

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["attnlab"] = {"recipe": self.recipe, "val_losses": dict(self.val_losses)}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.val_losses = dict(checkpoint["attnlab"]["val_losses"])


class GPTModule(TaskModule):
    """Next-character training of a GPT on a corpus.

    Args:
        net: the model.
        corpus: its text.
        optim, batch_size, seed, recipe: see `TaskModule`.
    """

    net: GPT

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
        super().__init__(net, optim, batch_size=batch_size, seed=seed, recipe=recipe)
        self.corpus = corpus

    def batches(self, steps: int, start: int, rank: int, world_size: int) -> TrainBatches:
        return TrainBatches(
            self.corpus.train,
            batch_size=self.batch_size,
            block_size=self.net.block_size,
            seed=self.seed,
            steps=steps,
            start=start,
            rank=rank,
            world_size=world_size,
        )

    def val_batches(self) -> list[Batch]:
        return validation_batches(self.corpus.val, self.net.block_size)

    def train_piece(self) -> list[Batch]:
        """The end of the training text, as long a piece as the validation text."""
        piece = self.corpus.train[-len(self.corpus.val) :]
        return validation_batches(piece, self.net.block_size)

    def batch_loss(self, batch: Batch, reduction: Reduction) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.net(x).flatten(0, 1), y.flatten(), reduction=reduction)

    def predictions(self, batch: Batch) -> int:
        return batch[1].numel()

    def tokens(self, batches: int) -> int:
        return batches * self.batch_size * self.net.block_size

    def further_figures(self, seconds_a_batch: float) -> dict[str, Any]:
        figures: dict[str, Any] = {"attention": self._attention()}
        if self.corpus.val_floor is not None:
            figures["val_floor"] = self.corpus.val_floor
        return figures

    def _attention(self) -> str:
        """What computed the attention, and in which dtype where it chose one itself."""
        attn = self.net.get_submodule("blocks.0.attn")
        if not isinstance(attn, SelfAttention):
            return type(attn).__name__
        if attn.kernel is not kernels.sdpa:
            return name_of(attn.kernel)
        dtypes = {"bf16-mixed": torch.bfloat16, "bf16-true": torch.bfloat16}
        dtype = dtypes.get(str(self.trainer.precision), torch.get_default_dtype())
        q = torch.empty(1, 1, self.net.block_size, 1, dtype=dtype, device=self.device)
        chosen = kernels.sdpa_dtype(q)
        return "sdpa" if chosen == dtype else f"sdpa in {chosen}".replace("torch.", "")

    def first_nonfinite(self, batch: Batch) -> Finding | None:
        return first_nonfinite(self.net, batch[0])
