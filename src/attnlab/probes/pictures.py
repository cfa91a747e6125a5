"""Pictures and histograms of patterns, for the loggers of a run."""

import lightning.pytorch as L

from attnlab.plotting import heatmaps
from attnlab.probes import measures
from attnlab.probes.base import log_histogram, log_image
from attnlab.probes.capture import View


def draw_patterns(trainer: L.Trainer, seen: list[View], labels: list[str], step: int) -> None:
    """Log heatmaps of the first window, histograms of all windows, and the heads' similarity."""
    T = len(labels)
    for view in seen:
        entropies = measures.entropy(view.pattern[:1], view.mask).tolist()
        mask, patterns = view.mask[:T, :T].cpu().numpy(), view.pattern[0, :, :T, :T].float().cpu()
        titles = [f"L{view.layer}H{h}  entropy {x:.2f}" for h, x in enumerate(entropies)]
        panels = [heatmaps.Panel(*x, mask) for x in zip(titles, patterns.numpy(), strict=True)]
        page = heatmaps.grid(panels, labels, columns=2, heading=f"layer {view.layer}, step {step}")
        log_image(trainer, f"pattern/L{view.layer}", page, step)
        of_rows = measures.row_entropy(view.pattern)[..., measures.rows_with_choice(view.mask)]
        log_histogram(trainer, f"row_entropy/L{view.layer}", of_rows, step)
        if view.scores is not None:
            log_histogram(trainer, f"scores/L{view.layer}", view.scores[..., view.mask], step)
    if seen[0].pattern.shape[1] > 1:
        titles = [f"layer {view.layer}" for view in seen]
        cosines = [measures.pattern_similarity(v.pattern, v.mask).cpu().numpy() for v in seen]
        heading = f"cosine of the heads' patterns, step {step}"
        log_image(trainer, "head_similarity", heatmaps.matrices(titles, cosines, heading), step)
