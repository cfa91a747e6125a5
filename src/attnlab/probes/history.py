"""The patterns of all heads on one text during training: history.json, for the explorer."""

import base64
import json
import math
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import lightning.pytorch as L
import numpy as np
import numpy.typing as npt
import torch
from annotated_types import Ge
from torch import Tensor

from attnlab.data.contract import IGNORED
from attnlab.errors import BadInput, first_line
from attnlab.files import write_atomically
from attnlab.probes import measures
from attnlab.probes.base import Positive, Probe
from attnlab.probes.capture import View, by_head, eval_mode, views

Several = Annotated[int, Ge(2)]
Content = dict[str, Any]  # of history.json


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
        self.steps, self.chars, self.windows = steps, chars, windows
        self._due, self._ids = set[int](), torch.empty(0)
        self._seen: list[View] = []  # of the last snapshot
        self._snapshots: list[Content] = []

    def on_train_start(self, trainer: L.Trainer, lit: Any) -> None:
        if trainer.is_global_zero:
            ids = lit.data.val[None, : min(self.chars, lit.net.block_size)]
            if self._ids.shape != ids.shape:  # not resumed, or with other settings of this probe
                self._snapshots = []
            self._ids, last = ids.to(lit.device), self.steps - 1
            self._due = {round(trainer.max_steps * (i / last) ** 1.7) for i in range(self.steps)}
        self.on_train_batch_end(trainer, lit)

    def on_train_batch_end(self, trainer: L.Trainer, lit: Any, *_: Any) -> None:
        if trainer.global_step in self._due:
            self._keep(trainer, lit)

    def on_train_end(self, trainer: L.Trainer, lit: Any) -> None:
        if self._due:
            self._keep(trainer, lit)
            self.on_save_checkpoint(trainer, lit, {})

    def on_save_checkpoint(self, trainer: L.Trainer, lit: Any, checkpoint: Any) -> None:
        if self._seen:
            tokens = [lit.data.alphabet[i] for i in self._ids[0].tolist()]
            content = json.dumps(as_history(tokens, self._seen, self._snapshots))
            write_atomically(Path(trainer.default_root_dir).parent / "history.json", content)

    def state_dict(self) -> dict[str, Any]:
        return {"snapshots": self._snapshots, "chars": self._ids.shape[-1]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._snapshots, chars = state_dict["snapshots"], state_dict["chars"]
        self._ids = torch.empty(1, chars)

    def _keep(self, trainer: L.Trainer, lit: Any) -> None:
        net, step = lit.net, trainer.global_step
        if self._snapshots and self._snapshots[-1]["step"] == step:
            return
        x, y = (z.to(lit.device) for z in lit.data.windows("val", net.block_size, self.windows))
        with trainer.precision_plugin.forward_context():
            self._seen = list(views(net, self._ids))
            with eval_mode(net):
                loss = measures.cross_entropies(net(x), y).sum() / (y != IGNORED).sum()
        if self._seen:  # some layer has a pattern
            self._snapshots.append(snapshot(self._seen, step, float(loss)))


def snapshot(seen: Sequence[View], step: int, loss: float | None = None) -> Content:
    """The patterns of one text at one step, as plain values; NaN is None.

    Returns "step", "loss" in nats per prediction, "weights" (the `packed` patterns of all layers),
    "negative" (which weights are), "equal" (layer -> head -> the first head with the same pattern,
    bit for bit), and "measures" (name -> layer -> head).
    """
    measured: dict[str, list[list[float | None]]] = {}
    for view in seen:
        alone = View(view.layer, view.attn, view.pattern, view.mask)
        for name, of_heads in by_head(alone).items():
            measured.setdefault(name, []).append([plain(x) for x in of_heads.tolist()])
    return {
        "step": step,
        "loss": None if loss is None else plain(loss),
        "weights": packed([quantized(view.pattern[0], view.mask) for view in seen]),
        "negative": packed(view.pattern[0] < 0 for view in seen),
        "equal": [first_equal(view.pattern[0]) for view in seen],
        "measures": measured,
    }


def as_history(
    tokens: Iterable[str], seen: Sequence[View], snapshots: Sequence[Content]
) -> Content:
    """The content of history.json: the snapshots of one text, with what they have in common."""
    heads = [view.pattern.shape[1] for view in seen]
    mask = packed(view.mask for view in seen)
    return {"tokens": list(tokens), "heads": heads, "mask": mask, "snapshots": list(snapshots)}


def read_history(folder: Path) -> Content | None:
    """The history of a run directory, or None without one; BadInput if it is damaged."""
    file = folder / "history.json"
    if not file.exists():
        return None
    try:
        history: Content = json.loads(file.read_bytes())
        for number in range(len(history["snapshots"])):
            patterns_of(history, number)
    except (OSError, ValueError, LookupError, TypeError, zlib.error) as error:
        raise BadInput(f"{file} is damaged: {first_line(error)}; remove it") from error
    return history


def patterns_of(
    history: Content, number: int = -1
) -> dict[str, tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]]:
    """The pattern (T, T), exact to 0.004, and the mask (T, T) of each head of a snapshot by name,
    such as L0H1; ValueError or LookupError for a history that is damaged."""
    T, heads, now = len(history["tokens"]), history["heads"], history["snapshots"][number]
    levels, negative = (unpacked(now[name], sum(heads), T) for name in ("weights", "negative"))
    masks = unpacked(history["mask"], len(heads), T).astype(bool)
    weights = np.where(levels == 255, np.nan, (levels / 254.0) ** 2).astype(np.float32)
    weights[negative == 1] *= -1
    places = [(layer, head) for layer, count in enumerate(heads) for head in range(count)]
    return {
        f"L{layer}H{head}": (weights[n], masks[layer]) for n, (layer, head) in enumerate(places)
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


def unpacked(content: str, count: int, T: int) -> npt.NDArray[np.uint8]:
    """The bytes of `packed` as (count, T, T); ValueError if there are not so many."""
    return np.frombuffer(zlib.decompress(base64.b64decode(content)), np.uint8).reshape(count, T, T)


def first_equal(heads: Tensor) -> list[int]:
    """For each head, the first head with the same pattern (T, T)."""
    numbers = range(len(heads))
    return [next(j for j in numbers if j == i or heads[j].equal(heads[i])) for i in numbers]


def plain(x: float) -> float | None:
    """A number with five digits, and None for one that JSON does not have."""
    return float(f"{x:.5g}") if math.isfinite(x) else None
