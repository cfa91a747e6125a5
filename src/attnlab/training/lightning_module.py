"""What Lightning trains: the base class of tasks, and ours, the prediction of the next symbol."""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import lightning.pytorch as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset, Subset

from attnlab.attention import AdditiveAttention, SelfAttention
from attnlab.attention.masks import name_of
from attnlab.attention.properties import properties_of
from attnlab.data.batches import IGNORED, Batch, Part, TaskData, TrainBatches
from attnlab.data.corpora import Corpus, unit_of
from attnlab.data.sequences import Sequences
from attnlab.errors import BadInput
from attnlab.init import init_weights
from attnlab.model import GPT, Block
from attnlab.probes.capture import called
from attnlab.probes.nonfinite import Finding, first_nonfinite
from attnlab.rng import seed_default, stream_seed
from attnlab.runs.settings import flat, identity
from attnlab.training.checkpoints import conditions, load_stored, versions
from attnlab.training.eval_lengths import at_length, by_position, data_at

OptimizerFactory = Callable[[torch.nn.Module, int], tuple[Optimizer, LRScheduler]]
Reduction = Literal["mean", "sum"]


class TaskModule(L.LightningModule):
    """A model with its batches, its optimizer and its streams of randomness.

    A subclass is a task, which the setting `module` names: its class attributes say what belongs
    to it, its methods make batches, tuples of tensors, and their loss.

    Args:
        net: the model.
        corpus: the data.
        optim: called with the model and the number of steps.
        recipe: plain values to rebuild the model from, kept in every checkpoint: the alphabet, and
            "config", the resolved configuration of the run. Its batch size is of all devices.
    """

    model_class: ClassVar[type[nn.Module]]  # what model._target_ must build
    attention_class: ClassVar[type[nn.Module]] = nn.Module  # what attn._target_ must build
    data_class: ClassVar[type | tuple[type, ...]]  # what data._target_ must build
    needs: ClassVar[str]  # the groups of the configuration that fit this task, for messages
    unit: ClassVar[str]  # what one prediction is, for messages, axes and metrics.json
    baseline: ClassVar[str]  # settings of attn; the final message suggests one to compare with
    contrast: ClassVar[str]
    takes_lengths: ClassVar[bool] = False  # whether it supports data.eval_lengths
    verbs: ClassVar[tuple[str, ...]] = ()  # the `attnlab` commands that open a run of this task
    # Static method (net, seed, *, ...) that draws the initial weights, with further keys of the
    # group `model`; a ValueError becomes an error message.
    init_weights: ClassVar[Callable[..., None]]

    def __init__(
        self, net: nn.Module, corpus: TaskData, optim: OptimizerFactory, *, recipe: dict[str, Any]
    ) -> None:
        super().__init__()
        self.net, self.corpus, self.optim, self.recipe = net, corpus, optim, recipe
        config, self.training_loss = recipe["config"], self.batch_loss
        self.batch_size, self.seed = config["data"]["batch_size"], config["seed"]
        # Without loggers and probes: MLflow refuses a hyperparameter that changes.
        self.save_hyperparameters(identity(config) | {"name": config.get("name")})
        self.loss = torch.tensor(math.nan)  # of the last batch
        # Of the last step; the norm is that before clipping.
        self.grad_norm, self.lr = torch.tensor(0.0), math.nan
        self.val_losses: dict[int, float] = {}  # step -> nats per prediction
        self.resumed: list[str] = []  # what changed where the run resumed: processor, commit ...
        self._share, self._sums = range(0), torch.empty(0)  # a rank's validation batches, losses

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]
        cls, checkpoint_path: Path | str, *, trust: bool = False
    ) -> "TaskModule":
        """The module of a run or a checkpoint, without data, in evaluation mode, on the CPU;
        BadInput if the checkpoint is missing or damaged, or belongs to another task. `trust` is as
        for `attnlab.training.checkpoints.load_model`."""
        net, stored = load_stored(Path(checkpoint_path), trust=trust)
        if not isinstance(net, cls.model_class):
            raise BadInput(f"{checkpoint_path} has a {type(net).__name__}: not for {cls.__name__}")
        settings = flat(stored.recipe["config"])
        if {type(settings.get(key)) for key in ("data.batch_size", "seed")} != {int}:
            raise BadInput(f"{checkpoint_path} does not say its batch_size and seed")
        return cls(net, None, None, recipe=stored.recipe).eval()  # type: ignore[arg-type]

    def forward(self, *inputs: Tensor) -> Any:
        return self.net(*inputs)

    @staticmethod
    def try_forward(net: Any) -> None:
        """Run the attention of a new model once; ValueError if it breaks its contract."""

    def check_data(self) -> None:
        """Refuse, by BadInput, data that are too few, before anything is written."""

    @abstractmethod
    def batches(self, steps: int, start: int, rank: int, world_size: int) -> Dataset[Any]:
        """The batches of a rank from step `start` to `steps`, each a function of (seed, step)."""

    def held_out(self, part: Part) -> Sequence[Any]:
        """The whole validation data ("val"), or a fixed piece of the training data ("train"); by
        default of the methods that the module of a published claim defines."""
        return list(getattr(self, {"val": "val_batches", "train": "train_piece"}[part])())

    @abstractmethod
    def batch_loss(self, batch: Any, reduction: Reduction) -> Tensor:
        """The loss in nats over the predictions of a batch."""

    @abstractmethod
    def predictions(self, batch: Any) -> int:
        """The number of predictions in a batch."""

    @abstractmethod
    def tokens(self, batches: int) -> int:
        """The number of predictions in the first training batches."""

    @abstractmethod
    def first_nonfinite(self, batch: Any) -> Finding | None:
        """Where a batch first gives NaN or infinity; None if it does not."""

    def extra_metrics(self, seconds_a_batch: float) -> dict[str, Any]:
        """What this task adds to metrics.json, computed on the device of the training."""
        return {}

    @classmethod
    def summary_rows(cls, metrics: Mapping[str, Any]) -> dict[str, str]:
        """Rows that this task adds to the table at the end of a run, by name."""
        return {}

    def train_dataloader(self) -> DataLoader[Any]:
        """The remaining batches; Lightning does not fast-forward a resumed run."""
        trainer, of_step = self.trainer, self.trainer.accumulate_grad_batches
        start, steps = trainer.global_step * of_step, trainer.max_steps * of_step
        batches = self.batches(steps, start, trainer.global_rank, trainer.world_size)
        return DataLoader(batches, batch_size=None)

    def val_dataloader(self) -> DataLoader[Any]:
        """The rank's share of the whole validation data."""
        batches = self.held_out("val")
        devices = self.trainer.world_size
        self._share = range(self.trainer.global_rank, len(batches), devices)
        if not self._share:
            few = f"the validation data make {len(batches)} batches for {devices} devices"
            raise BadInput(f"{few}; use fewer trainer.devices")
        return DataLoader(Subset(batches, self._share), batch_size=None)  # type: ignore[arg-type]

    def configure_optimizers(self) -> Any:
        optimizer, schedule = self.optim(self.net, self.trainer.max_steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        # Each rank and batch has its own dropout seed, so a resumed run repeats the masks.
        stream = f"dropout/{self.trainer.global_rank}"
        seed_default(stream_seed(self.seed, stream, batch_idx), self.device)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.training_loss(batch, "mean")
        self.loss = loss.detach()
        return loss

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        # Lightning's own clipping does not return the norm. 0 turns clipping off, as there.
        bound = float(gradient_clip_val or math.inf)
        self.grad_norm = nn.utils.clip_grad_norm_(self.net.parameters(), bound)
        self.lr = optimizer.param_groups[0]["lr"]

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        loss = self.batch_loss(batch, "sum")
        if batch_idx == 0:  # many small tensors would keep malloc from reusing those of the logits
            self._sums = loss.new_zeros(len(self._share))
        self._sums[batch_idx] = loss

    def on_validation_epoch_end(self) -> None:
        sums = self._sums.cpu() if self._sums.device.type == "mps" else self._sums
        total = self.trainer.strategy.reduce(sums.double().sum(), reduce_op="sum")
        loss = float(total) / sum(map(self.predictions, self.held_out("val")))
        self.val_losses[self.trainer.global_step] = loss
        self.log("val/loss", loss, logger=False, sync_dist=True)  # for callbacks that monitor it

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        ours: dict[str, Any] = {"recipe": self.recipe, "versions": dict(versions())}
        ours["conditions"] = conditions(self.trainer) | {"own_code": self.recipe["own_code"]}
        ours |= {"val_losses": dict(self.val_losses), "resumed": list(self.resumed)}
        checkpoint["attnlab"] = ours

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.val_losses = dict(checkpoint["attnlab"]["val_losses"])


class GPTModule(TaskModule):
    """Next-character training of a GPT on a corpus; `TaskModule` has the arguments."""

    model_class = GPT
    data_class = (Corpus, Sequences)
    needs = "attn=sdpa or another variant of conf/attn, and a text such as data=tinyshakespeare"
    unit = "character"
    baseline = "attn=sdpa"
    contrast = "attn=unscaled"
    takes_lengths = True
    verbs = ("sample",)

    net: GPT
    corpus: Corpus | Sequences

    @staticmethod
    def init_weights(net: GPT, seed: int, *, init: str, qk_std: float | None) -> None:
        init_weights(net, seed, init, qk_std)

    @staticmethod
    @torch.no_grad()
    def try_forward(net: GPT) -> None:
        """Run each attention layer on two positions; a ValueError if it changes the shape."""
        memo = {"ids": torch.zeros(1, min(2, net.block_size), dtype=torch.long)}
        x, blocks = net.eval().embed(memo["ids"]), cast(Sequence[Block], net.blocks)
        for block in blocks:
            y: object = called(block.attn, x, memo)
            returned = tuple(y.shape) if isinstance(y, Tensor) else f"a {type(y).__name__}"
            if returned != tuple(x.shape):
                must = f"the attention layer must return a tensor (B, T, C) = {tuple(x.shape)}"
                raise ValueError(f"{must}; it returned {returned}")
        net.train()

    def check_data(self) -> None:
        self.corpus.check_length(self.net.block_size)
        self._at_lengths()

    def _at_lengths(self) -> dict[str, tuple[GPT, Sequence[Batch], int]]:
        """The model, the validation batches and the length, for each of `data.eval_lengths`;
        BadInput if they are not lengths, or do not fit model or data."""
        config = self.recipe["config"]
        lengths = config["data"].get("eval_lengths") or []
        if not isinstance(lengths, list) or any(type(n) is not int for n in lengths):
            raise BadInput(f"data.eval_lengths = {lengths} must be lengths, such as [64,128]")
        corpora = {n: data_at(self.corpus, config["data"], n) for n in lengths}
        return {
            str(n): (at_length(self.net, config, n), corpus.held_out("val", n), n)
            for n, corpus in corpora.items()
        }

    def batches(self, steps: int, start: int, rank: int, world_size: int) -> TrainBatches:
        draw = self.corpus.train_draw(self.net.block_size)
        span = {"steps": steps, "start": start, "rank": rank, "world_size": world_size}
        return TrainBatches(draw, batch_size=self.batch_size, seed=self.seed, **span)

    def held_out(self, part: Part) -> Sequence[Batch]:
        return self.corpus.held_out(part, self.net.block_size)

    def batch_loss(self, batch: Batch, reduction: Reduction) -> Tensor:
        x, y = batch
        logits = self.net(x).flatten(0, 1)
        exact = torch.promote_types(logits.dtype, torch.float32)  # a sum in bf16 has 3 digits
        return F.cross_entropy(logits.to(exact), y.flatten(), reduction=reduction)

    def predictions(self, batch: Batch) -> int:
        return int((batch[1] != IGNORED).sum())

    def tokens(self, batches: int) -> int:
        return batches * self.batch_size * self.net.block_size

    def extra_metrics(self, seconds_a_batch: float) -> dict[str, Any]:
        alphabet = self.corpus.alphabet
        figures: dict[str, Any] = {"unit": unit_of(alphabet), "symbols": len(alphabet)}
        blocks = cast(Sequence[Block], self.net.blocks)
        kernels = dict.fromkeys(self._kernel(block.attn) for block in blocks)
        figures["attention"] = ", ".join(kernels)
        if self.corpus.val_floor is not None:
            figures["val_floor"] = self.corpus.val_floor
        if longer := self._at_lengths():
            figures["by_length"] = {n: by_position(*each) for n, each in longer.items()}
        if isinstance(self.corpus, Sequences):
            result = by_position(self.net, self.held_out("val"), self.net.block_size)
            return figures | {"val_accuracy": result["accuracy"]}
        bits = self.corpus.bits_per_byte(self.val_losses[self.trainer.global_step])
        return figures | {"val_bits_per_byte": bits}

    def _kernel(self, attn: nn.Module) -> str:
        """The kernel that computed the attention, with the dtype if the kernel changes it."""
        if not isinstance(attn, SelfAttention) or isinstance(attn, AdditiveAttention):
            return type(attn).__name__
        name, declared = name_of(attn.kernel), properties_of(attn.kernel)
        if declared is None or declared.dtype is None:
            return name
        q = torch.empty(1, 1, self.net.block_size, 1, device=self.device)
        q = q.bfloat16() if str(self.trainer.precision).startswith("bf16") else q
        chosen = declared.dtype(q)
        return name if chosen == q.dtype else f"{name} in {chosen}".replace("torch.", "")

    def first_nonfinite(self, batch: Batch) -> Finding | None:
        return first_nonfinite(self.net, batch[0])
