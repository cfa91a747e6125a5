"""The probe of a translator: heatmaps of its alignments, and its quality during training."""

import lightning.pytorch as L
import translation_measures as measures
from translation_module import TranslatorModule
from translator import Translator

from attnlab.plotting.heatmaps import alignment
from attnlab.probes.base import Probe, at_least, log_image, log_scalars
from attnlab.probes.capture import eval_mode


class Alignments(Probe):
    """Measures quality at every validation, and draws the alignment of some pairs.

    Args:
        images: number of validation pairs to draw; 0 for none.

    Raises:
        BadInput: the number is negative.
    """

    subject = Translator

    def __init__(self, *, images: int) -> None:
        super().__init__()
        at_least("probes.alignments.images", images, 0)
        self.images = images

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.global_step == 0:  # a resumed run has been looked at where it stopped
            self._draw(trainer, pl_module)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn != "fit" or not trainer.is_global_zero:
            return
        assert isinstance(pl_module, TranslatorModule)
        with eval_mode(pl_module.net), trainer.precision_plugin.forward_context():
            found = measures.quality(pl_module.net, pl_module.corpus)
        log_scalars(trainer, {f"val/{name}": x for name, x in found.items()}, trainer.global_step)
        self._draw(trainer, pl_module)

    def _draw(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, TranslatorModule)
        pairs, step = pl_module.corpus.val[: self.images], trainer.global_step
        if not pairs or not trainer.is_global_zero:
            return
        with eval_mode(pl_module.net), trainer.precision_plugin.forward_context():
            patterns = measures.alignments(pl_module.net, pairs, pl_module.corpus.alphabet)
        for n, (pair, pattern) in enumerate(zip(pairs, patterns, strict=True)):
            page = alignment(pattern.numpy(), pair.source, pair.target, f"step {step}")
            log_image(trainer, f"alignment/{n}", page, step)
