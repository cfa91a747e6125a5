"""The probe of gradients: their size by layer and by part, and that of the steps they make."""

from collections.abc import Iterator
from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor
from torch.optim import Optimizer

from attnlab.attention.layer import Attention
from attnlab.data.batches import Batch
from attnlab.model import GPT
from attnlab.probes import measures
from attnlab.probes.base import Probe, at_least, log_scalars
from attnlab.training.lightning_module import GPTModule


class Gradients(Probe):
    """Norms of the gradients before clipping, and the ratio of each update to its weight.

    Args:
        every: steps between two looks.

    Raises:
        BadInput: it is below 1.
    """

    def __init__(self, *, every: int) -> None:
        super().__init__()
        at_least("probes.gradients.every", every, 1)
        self.every = every
        self._before: dict[str, Tensor] = {}

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer
    ) -> None:
        assert isinstance(pl_module, GPTModule)
        step = trainer.global_step + 1  # the one that is being made
        if (step % self.every and step != 1) or not trainer.is_global_zero:
            return
        log_scalars(trainer, _numbers(gradient_norms(pl_module.net)), step)
        self._before = {tag: w.detach().clone() for tag, w in parts(pl_module.net)}

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        if not self._before:
            return
        assert isinstance(pl_module, GPTModule)
        ratios = {
            f"update/{tag}": measures.update_ratio(self._before[tag], weight.detach())
            for tag, weight in parts(pl_module.net)
        }
        self._before = {}
        log_scalars(trainer, _numbers(ratios), trainer.global_step)


def parts(net: GPT) -> Iterator[tuple[str, Tensor]]:
    """The weights of attention by layer: queries, keys, values and output."""
    for number, block in enumerate(net.blocks):
        attn = block.attn
        if isinstance(attn, Attention):
            if len(attn.qkv.weight) == sum(attn.qkv_sizes):
                parts = attn.qkv.weight.split(attn.qkv_sizes)
                for name, weight in zip("qkv", parts, strict=True):
                    yield f"L{number}/{name}", weight
            yield f"L{number}/out", attn.proj.weight


def gradient_norms(net: GPT) -> dict[str, Tensor]:
    """Norm of the gradient of each block, and of the parts of its attention."""
    norms: dict[str, Tensor] = {}
    for number, block in enumerate(net.blocks):
        found = [p.grad.norm() for p in block.parameters() if p.grad is not None]
        if found:
            norms[f"grad/L{number}"] = torch.stack(found).norm()
        attn = block.attn
        if not isinstance(attn, Attention):
            continue
        qkv, out = attn.qkv.weight, attn.proj.weight
        if qkv.grad is not None and len(qkv) == sum(attn.qkv_sizes):
            for name, grad in zip("qkv", qkv.grad.split(attn.qkv_sizes), strict=True):
                norms[f"grad/L{number}/{name}"] = grad.norm()
        if out.grad is not None:
            norms[f"grad/L{number}/out"] = out.grad.norm()
    return norms


def _numbers(values: dict[str, Tensor]) -> dict[str, float]:
    if not values:
        return {}
    numbers = torch.stack(list(values.values())).tolist()
    return dict(zip(values, numbers, strict=True))
