"""The probe of patterns: numbers every so often, pictures at the start, early and at the end."""

from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor

from attnlab.data.batches import Batch
from attnlab.data.corpora import decode
from attnlab.plotting import heatmaps
from attnlab.probes import layer_measures, measures
from attnlab.probes.base import (
    Probe,
    at_least,
    fixed_windows,
    log_histogram,
    log_image,
    log_scalars,
)
from attnlab.probes.capture import View, views
from attnlab.training.lightning_module import GPTModule

SHOWN = 64  # positions in a picture


class Patterns(Probe):
    """Measures every layer's attention on fixed windows of the validation text.

    Args:
        every: steps between two looks, besides those at the start, at validations and at the end;
            null for these alone.
        heads: whether each head has tags of its own, or only each layer.
        images: whether to draw heatmaps, similarities and histograms at the start, at the first
            look afterwards and at the end.
        windows: how many windows are looked at.

    Raises:
        BadInput: a number is below 1.
    """

    def __init__(self, *, every: int | None, heads: bool, images: bool, windows: int) -> None:
        super().__init__()
        at_least("probes.patterns.every", every, 1)
        at_least("probes.patterns.windows", windows, 1)
        self.every = every
        self.heads = heads
        self.images = images
        self.windows = windows
        self._ids = torch.empty(0)
        self._measured = -1  # the last step with numbers
        self._drawn: list[int] = []  # the steps with pictures

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, GPTModule)
        x, _ = fixed_windows(pl_module.corpus.val, pl_module.net.block_size, self.windows)
        self._ids = x.to(pl_module.device)
        if trainer.global_step == 0:  # a resumed run has been looked at where it stopped
            self._look(trainer, pl_module)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        step = trainer.global_step
        if step > 0 and self.every is not None and step % self.every == 0:
            self._look(trainer, pl_module)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn == "fit":
            self._look(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._look(trainer, pl_module, last=True)

    def state_dict(self) -> dict[str, list[int]]:
        return {"drawn": self._drawn}

    def load_state_dict(self, state_dict: dict[str, list[int]]) -> None:
        self._drawn = state_dict["drawn"]

    def _look(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *, last: bool = False
    ) -> None:
        assert isinstance(pl_module, GPTModule)
        step = trainer.global_step
        measure = step != self._measured
        draw = self.images and step not in self._drawn and (last or len(self._drawn) < 2)
        if not trainer.is_global_zero or not (measure or draw):
            return
        with trainer.precision_plugin.forward_context():
            seen = list(views(pl_module.net, self._ids))
        if measure:
            self._measured = step
            values = layer_measures.scalars(seen, heads=self.heads)
            log_scalars(trainer, values, step)
            self.record = {tag: x for tag, x in values.items() if tag.count("/") == 1}
        if draw:
            self._drawn.append(step)
            self._draw(trainer, pl_module, seen, step)

    def _draw(self, trainer: L.Trainer, lit: GPTModule, seen: list[View], step: int) -> None:
        text = decode(self._ids[0, :SHOWN], lit.corpus.alphabet)
        for view in seen:
            page = heatmap(view, text, f"layer {view.layer}, step {step}")
            log_image(trainer, f"pattern/L{view.layer}", page, step)
            rows = measures.rows_with_choice(view.mask)
            entropies = torch.special.entr(view.pattern).sum(-1)[..., rows]
            log_histogram(trainer, f"row_entropy/L{view.layer}", entropies.flatten(), step)
            if view.scores is not None:
                log_histogram(
                    trainer, f"scores/L{view.layer}", view.scores[..., view.mask].flatten(), step
                )
        if seen[0].pattern.shape[1] > 1:
            page = heatmaps.matrices(
                [f"L{view.layer}" for view in seen],
                [_cosines(view).cpu().numpy() for view in seen],
                f"cosine of the heads' patterns, step {step}",
            )
            log_image(trainer, "head_similarity", page, step)


def heatmap(view: View, text: str, heading: str) -> Any:
    """All heads of a layer over the first window of its batch, of which `text` is the start."""
    T = len(text)
    entropies = measures.entropy(view.pattern[:1], view.mask).tolist()
    panels = [
        heatmaps.Panel(
            f"L{view.layer}H{h}  entropy {entropies[h]:.2f}",
            view.pattern[0, h, :T, :T].float().cpu().numpy(),
            view.mask[:T, :T].cpu().numpy(),
        )
        for h in range(view.pattern.shape[1])
    ]
    return heatmaps.grid(panels, text, columns=2, heading=heading)


def _cosines(view: View) -> Tensor:
    return measures.pattern_similarity(view.pattern, view.mask)
