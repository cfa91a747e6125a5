"""The patterns of all heads on one text during training: history.json, for the explorer."""

import base64
import json
import math
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import lightning.pytorch as L
import torch
from annotated_types import Ge
from torch import Tensor

from attnlab.data.contract import IGNORED
from attnlab.files import write_atomically
from attnlab.probes import measures
from attnlab.probes.base import Positive, Probe, ProbedModule
from attnlab.probes.capture import View, by_head, eval_mode, views
from attnlab.probes.history_file import HistoryContent, Snapshot

Several = Annotated[int, Ge(2)]


class History(Probe):
    """Keeps every head's pattern on one text during training, for `attnlab explore`.

    It writes history.json into the run directory with each checkpoint and at the end. Checkpoints
    contain the snapshots, so a resumed run has each of them once.

    Args:
        steps: number of snapshots, most of them early, when patterns change most.
        chars: length of the text, the start of the validation text, at most.
        windows: number of validation windows for the loss of a snapshot.
    """

    def __init__(self, *, steps: Several, chars: Several, windows: Positive) -> None:
        super().__init__()
        self.steps = steps
        self.chars = chars
        self.windows = windows
        self._due: set[int] = set()  # steps with a snapshot
        self._ids = torch.empty(0)  # the text, (1, T)
        self._seen: list[View] = []  # of the last snapshot
        self._snapshots: list[Snapshot] = []

    def on_train_start(self, trainer: L.Trainer, lit: L.LightningModule) -> None:
        assert isinstance(lit, ProbedModule)
        if trainer.is_global_zero:
            ids = lit.data.val[None, : min(self.chars, lit.net.block_size)]
            if self._ids.shape != ids.shape:  # not resumed, or with other settings of this probe
                self._snapshots = []
            self._ids = ids.to(lit.device)
            # From 0 to 1; most of them are close to 0, where patterns change most.
            parts = [(i / (self.steps - 1)) ** 1.7 for i in range(self.steps)]
            self._due = {round(trainer.max_steps * part) for part in parts}
        if trainer.global_step in self._due:
            self._keep(trainer, lit)

    def on_train_batch_end(self, trainer: L.Trainer, lit: L.LightningModule, *_: object) -> None:
        if trainer.global_step in self._due:
            assert isinstance(lit, ProbedModule)
            self._keep(trainer, lit)

    def on_train_end(self, trainer: L.Trainer, lit: L.LightningModule) -> None:
        assert isinstance(lit, ProbedModule)
        if self._due:
            self._keep(trainer, lit)
            self.on_save_checkpoint(trainer, lit, {})

    def on_save_checkpoint(
        self, trainer: L.Trainer, lit: L.LightningModule, checkpoint: object
    ) -> None:
        assert isinstance(lit, ProbedModule)
        if self._seen:
            tokens = [lit.data.alphabet[i] for i in self._ids[0].tolist()]
            content = json.dumps(as_history(tokens, self._seen, self._snapshots))
            write_atomically(Path(trainer.default_root_dir).parent / "history.json", content)

    def state_dict(self) -> dict[str, object]:
        return {"snapshots": self._snapshots, "chars": self._ids.shape[-1]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._snapshots = state_dict["snapshots"]
        self._ids = torch.empty(1, state_dict["chars"])

    def _keep(self, trainer: L.Trainer, lit: ProbedModule) -> None:
        net = lit.net
        step = trainer.global_step
        if self._snapshots and self._snapshots[-1]["step"] == step:
            return  # kept in this step, before a checkpoint or the end
        x, y = lit.data.windows("val", net.block_size, self.windows)
        x, y = x.to(lit.device), y.to(lit.device)
        with trainer.precision_plugin.forward_context():
            self._seen = list(views(net, self._ids))
            with eval_mode(net):
                losses = measures.cross_entropies(net(x), y)
        loss = losses.sum() / (y != IGNORED).sum()
        if self._seen:  # some layer has a pattern
            self._snapshots.append(snapshot(self._seen, step, float(loss)))


def snapshot(seen: Sequence[View], step: int, loss: float | None = None) -> Snapshot:
    """The patterns of one text at one step; the loss is in nats per prediction."""
    values: dict[str, list[list[float | None]]] = {}
    for view in seen:
        # Without scores and ids: what the pattern alone says.
        alone = View(view.layer, view.attn, view.pattern, view.mask)
        for name, of_heads in by_head(alone).items():
            values.setdefault(name, []).append([json_number(x) for x in of_heads.tolist()])
    return {
        "step": step,
        "loss": None if loss is None else json_number(loss),
        "weights": packed(quantized(view.pattern[0], view.mask) for view in seen),
        "negative": packed(view.pattern[0] < 0 for view in seen),
        "equal": [first_equal(view.pattern[0]) for view in seen],
        "measures": values,
    }


def as_history(
    tokens: Iterable[str], seen: Sequence[View], snapshots: Sequence[Snapshot]
) -> HistoryContent:
    """The content of history.json: the snapshots of one text, with what they have in common."""
    return {
        "tokens": list(tokens),
        "layers": [view.layer for view in seen],  # those that have a pattern
        "heads": [view.pattern.shape[1] for view in seen],
        "mask": packed(view.mask for view in seen),
        "snapshots": list(snapshots),
    }


def quantized(pattern: Tensor, mask: Tensor) -> Tensor:
    """The magnitude of weights (H, T, T), at most 1, as bytes round(254 sqrt(p)), 255 for NaN.

    A blocked key with any weight has a byte above 0, so that no leak is rounded away.
    """
    levels = (254 * pattern.abs().clamp(max=1).sqrt()).round()
    levels = levels.where(mask | (pattern == 0), levels.clamp(min=1))
    return levels.where(~pattern.isnan(), 255).to(torch.uint8)


def packed(parts: Iterable[Tensor]) -> str:
    """The bytes of several tensors, one after the other, compressed by zlib, in base64."""
    content = b"".join(part.cpu().to(torch.uint8).numpy().tobytes() for part in parts)
    return base64.b64encode(zlib.compress(content)).decode()


def first_equal(heads: Tensor) -> list[int]:
    """For each head, the first head with the same pattern (T, T), bit for bit."""
    firsts: list[int] = []
    for number, pattern in enumerate(heads):
        equal = [first for first in firsts if heads[first].equal(pattern)]
        firsts.append(equal[0] if equal else number)
    return firsts


def json_number(x: float) -> float | None:
    """A number with five digits, and None for one that JSON does not have."""
    return float(f"{x:.5g}") if math.isfinite(x) else None
