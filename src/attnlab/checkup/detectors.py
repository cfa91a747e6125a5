"""The detectors that run alone, what each needs, and what a model is meant to do."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from attnlab.checkup import blackbox, loss_path, serving, stress
from attnlab.checkup.attention_calls import AttentionCall
from attnlab.checkup.caches import Step, check_cache
from attnlab.checkup.findings import Finding, causes
from attnlab.checkup.lengths import check_lengths
from attnlab.checkup.martingale import prove_by_training
from attnlab.checkup.model_adapter import ModelAdapter
from attnlab.errors import BadInput

CALL, MODULE = "a function from ids to logits", "a torch module"
COPY, ATTENTION = "a torch module that can be copied", "attention that is recognized"
NO_TIME = "not examined: no time was left; give more seconds"
# What a detector needs, and how it examines a model, which is in fp64 if it runs in it.
DETECTORS: dict[str, tuple[str, Callable[[Any, ModelAdapter], Finding]]] = {
    "batch": (CALL, lambda e, model: blackbox.check_rows_independent(model, e.longest)),
    "tokens": (CALL, lambda e, model: blackbox.check_tokens(model, e.longest, e.time(0.5))),
    "stress": (ATTENTION, lambda e, model: stress.check_stress(model, e.calls)),
    "values": (ATTENTION, lambda e, model: stress.check_values(model, e.recorded)),
    "dropout": (COPY, lambda e, model: stress.check_dropout(model, e.recorded)),
    "trained": (
        COPY,
        lambda e, model: stress.check_trained(e.adapter, model, e.longest, e.time(0.5)),
    ),
    "training mode": (COPY, lambda e, m: stress.check_training_mode(m, e.longest, e.time(0.5))),
    "lengths": (CALL, lambda e, model: check_lengths(model, e.noisy, *e.time_for_lengths)),
    "cache": (CALL, lambda e, model: check_cache(model, e.meant.step)),
    "padding": (CALL, lambda e, model: serving.check_padding(model, e.meant.padding)),
    "documents": (
        CALL,
        lambda e, model: serving.check_documents(
            model, e.meant.documents, e.meant.separator, e.meant.reset_positions
        ),
    ),
    "precision": (COPY, lambda e, model: serving.check_precision(e.adapter, model)),
    "targets": (MODULE, lambda e, model: loss_path.check_loss(model, e.meant.loss, e.longest)),
    "proof": (COPY, lambda e, model: prove_by_training(e.adapter, seconds=e.time(50))),
}
SERVED = {"cache", "padding", "documents"}  # in the own precision if fp64 gives NaN or fails
# Leaks for some tokens only, under large scores, in another state, or with a cache.
HIDDEN = (
    "tokens", "stress", "values", "dropout", "trained", "training mode", "lengths", "cache",
    "padding",
)  # fmt: skip


def lacks(needed: str, model: ModelAdapter, calls: Sequence[AttentionCall]) -> bool:
    """Whether a model with these attention calls lacks what a detector needs."""
    has = {CALL: True, MODULE: model.is_module, COPY: model.copies, ATTENTION: bool(calls)}
    return not has[needed]


@dataclass(frozen=True)
class Meant:
    """What the model is meant to do, where it is not to be guessed; see `checkup`."""

    window: int | Sequence[int | None] | None = None
    separator: int | None = None
    documents: serving.Documents | None = None
    reset_positions: bool = False
    padding: str | None = None
    step: Step | None = None
    loss: loss_path.Loss | None = None
    batch: tuple[Tensor, Tensor] | None = None
    severity: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if unknown := self.severity.keys() - causes().keys():
            known = ", ".join(causes())
            raise BadInput(f"severity: {min(unknown)} is not a cause; there are {known}")
        if unknown := set(self.severity.values()) - {"fault", "suspicious", "ok"}:
            raise BadInput(f"severity: {min(unknown)} must be fault, suspicious or ok")
        if self.padding not in (None, "left", "right"):
            raise BadInput(f"padding = {self.padding} must be left, right or None")
        widths = [self.window] if isinstance(self.window, int) else self.window or ()
        if narrow := [width for width in widths if width is not None and width < 1]:
            raise BadInput(f"window = {narrow[0]} must be at least 1, the query's own key")
