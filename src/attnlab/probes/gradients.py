"""Norms of the gradients during training."""

from typing import Any

import lightning.pytorch as L
from lightning.pytorch.utilities import grad_norm

from attnlab.probes.base import Positive, Probe, log_scalars


class Gradients(Probe):
    """Logs the norm of each block's gradient before clipping, `grad/L0` and so on, in the first
    step and every `every` steps."""

    def __init__(self, *, every: Positive) -> None:
        super().__init__()
        self.every = every

    def on_before_optimizer_step(self, trainer: L.Trainer, lit: Any, *_: Any) -> None:
        step = trainer.global_step + 1  # the current one
        if step % self.every == 0 or step == 1:
            norms = {f"grad/L{n}": grad_norm(block, 2) for n, block in enumerate(lit.net.blocks)}
            total = "grad_2.0_norm_total"
            found = {tag: float(x[total]) for tag, x in norms.items() if x}  # {}: no gradients
            log_scalars(trainer, found, step)
