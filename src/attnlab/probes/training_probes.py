"""Probes during training: attention patterns, their history, gradients, predictions."""

import json
import math
from collections.abc import Iterator
from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attnlab.attention.layer import Attention
from attnlab.data.batches import IGNORED, Batch
from attnlab.data.corpora import decode
from attnlab.errors import BadInput
from attnlab.files import write_atomically
from attnlab.model import GPT
from attnlab.plotting import heatmaps
from attnlab.probes import base, measures
from attnlab.probes.base import Probe, at_least, log_image, log_scalars
from attnlab.probes.capture import View, eval_mode, numbers, scalars, views
from attnlab.probes.pictures import draw_patterns
from attnlab.probes.snapshots import history, snapshot
from attnlab.sampling import sample

SHOWN = 64  # positions in a picture
MOST_WEIGHTS = 900_000  # in a history; each takes 0.6 to 1.1 bytes of its file
FEW = {  # of the measures that are logged without `heads`; metrics.json has all
    *("attn/entropy", "attn/effective_heads", "attn/first_mass", "attn/future_mass"),
    *("attn/head_similarity", "attn/induction_mass", "attn/jacobian_trace"),
    *("attn/previous_mass", "attn/saturated_rows", "attn/score_std"),
}
SHORTEST = 32  # the shortest text before a history has fewer snapshots instead


class Patterns(Probe):
    """Measures every layer's attention on fixed windows of the validation text.

    It measures every `every` steps, at the start, at validations and at the end. It logs ten means
    over all heads and the entropy of each layer or, with `heads`, every measure of every head. See
    conf/probes/default.yaml for the settings of all probes; BadInput if a number is too small.
    """

    def __init__(self, *, every: int | None, heads: bool, images: bool, windows: int) -> None:
        super().__init__()
        at_least("probes.patterns.every", every, 1)
        at_least("probes.patterns.windows", windows, 1)
        self.every, self.heads, self.images, self.windows = every, heads, images, windows
        self._ids, self._measured = torch.empty(0), -1  # the last step with numbers
        self._drawn: list[int] = []  # the steps with pictures

    def try_on(self, net: GPT) -> None:
        scalars(views(net, torch.zeros(1, net.block_size, dtype=torch.long)))

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        x, _ = pl_module.corpus.windows("val", pl_module.net.block_size, self.windows)
        self._ids = x.to(pl_module.device)
        if trainer.global_step == 0:  # a resumed run was measured before it stopped
            self._measure(trainer, pl_module)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        step = trainer.global_step
        if step > 0 and self.every is not None and step % self.every == 0:
            self._measure(trainer, pl_module)

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if trainer.state.fn == "fit":
            self._measure(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self._measure(trainer, pl_module, last=True)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"drawn": self._drawn}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._drawn = state_dict["drawn"]

    def _measure(self, trainer: L.Trainer, pl_module: Any, *, last: bool = False) -> None:
        step, drawn = trainer.global_step, self._drawn
        measure = step != self._measured
        draw = self.images and step not in drawn and (last or len(drawn) < 2)
        if not trainer.is_global_zero or not (measure or draw):
            return
        with trainer.precision_plugin.forward_context():
            seen = list(views(pl_module.net, self._ids))
        if measure:
            self._measured = step
            values = scalars(seen)
            self.record = {tag: x for tag, x in values.items() if tag.count("/") == 1}
            few = {tag: x for tag, x in values.items() if tag in FEW or tag.startswith("layers/")}
            log_scalars(trainer, values if self.heads else few, step)
        if draw:
            self._drawn.append(step)
            labels = [pl_module.corpus.alphabet[i] for i in self._ids[0, :SHOWN].tolist()]
            draw_patterns(trainer, seen, labels, step)


class History(Probe):
    """Keeps every head's pattern on one text during training, for `attnlab explore`.

    It writes history.json, below 1 MB, into the run directory with each checkpoint and at the end.
    The text is the start of the validation text; for a model with many heads it is shorter, and
    then the snapshots are fewer. Checkpoints contain them, so a resumed run has each of them once.
    """

    def __init__(self, *, steps: int, chars: int, windows: int) -> None:
        super().__init__()
        at_least("probes.history.steps", steps, 0)
        at_least("probes.history.chars", chars, 2)
        at_least("probes.history.windows", windows, 1)
        self.steps, self.chars, self.windows = steps, chars, windows
        self._due, self._ids = set[int](), torch.empty(0)
        self._seen: list[View] = []  # of the last snapshot
        self._snapshots: list[dict[str, Any]] = []
        self._restored_chars = 0

    def try_on(self, net: GPT) -> None:
        snapshot(list(views(net, torch.zeros(1, net.block_size, dtype=torch.long))), step=0)

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        if not self.steps or not trainer.is_global_zero:
            return
        ids = pl_module.corpus.val[: min(self.chars, pl_module.net.block_size)].long()
        with trainer.precision_plugin.forward_context():
            seen = views(pl_module.net, ids[None].to(pl_module.device))
            heads = sum(view.pattern.shape[1] for view in seen)
        chars = min(len(ids), max(SHORTEST, math.isqrt(MOST_WEIGHTS // (self.steps * heads))))
        steps = min(self.steps, max(2, MOST_WEIGHTS // (heads * chars**2)))
        self._ids = ids[None, :chars].to(pl_module.device)
        if self._restored_chars != chars:  # resumed with other settings of this probe
            self._snapshots = []
        last = max(1, steps - 1)
        self._due = {round(trainer.max_steps * (i / last) ** 1.7) for i in range(steps)}
        if self._snapshots:  # an earlier run that is continued took them at other steps
            there, past = [x["step"] for x in self._snapshots], trainer.global_step
            kept = {min((abs(x - due), x) for x in there)[1] for due in self._due if due <= past}
            self._snapshots = [each for each in self._snapshots if each["step"] in kept]
        self.on_train_batch_end(trainer, pl_module)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        if trainer.global_step in self._due:
            self._keep(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if self._due:
            self._keep(trainer, pl_module)
            self._write(trainer, pl_module)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: Any, checkpoint: Any) -> None:
        if self._seen:
            self._write(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        return {"snapshots": self._snapshots, "chars": self._ids.shape[-1]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._snapshots, self._restored_chars = state_dict["snapshots"], state_dict["chars"]

    def _keep(self, trainer: L.Trainer, pl_module: Any) -> None:
        net, step = pl_module.net, trainer.global_step
        if self._snapshots and self._snapshots[-1]["step"] == step:
            return
        x, y = pl_module.corpus.windows("val", net.block_size, self.windows)
        with trainer.precision_plugin.forward_context():
            self._seen = list(views(net, self._ids))
            with eval_mode(net):
                logits = net(x.to(pl_module.device))
        loss = measures.mean_loss(logits, y.to(pl_module.device))
        self._snapshots.append(snapshot(self._seen, step, float(loss)))

    def _write(self, trainer: L.Trainer, pl_module: Any) -> None:
        tokens = [pl_module.corpus.alphabet[i] for i in self._ids[0].tolist()]
        content = json.dumps(history(tokens, self._seen, self._snapshots), separators=(",", ":"))
        write_atomically(base.run_directory(trainer) / "history.json", content.encode())


class Gradients(Probe):
    """Logs the norms of gradients before clipping, and the ratio of each update to its weight."""

    def __init__(self, *, every: int) -> None:
        super().__init__()
        at_least("probes.gradients.every", every, 1)
        self.every = every
        self._before: dict[str, Tensor] = {}

    def try_on(self, net: GPT) -> None:
        dict(parts(net))

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        step = trainer.global_step + 1  # the current one
        if (step % self.every and step != 1) or not trainer.is_global_zero:
            return
        log_scalars(trainer, numbers(gradient_norms(pl_module.net)), step)
        self._before = {tag: weight.detach().clone() for tag, weight in parts(pl_module.net)}

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        before, self._before = self._before, {}
        if before:
            weights = {tag: weight.detach() for tag, weight in parts(pl_module.net)}
            ratios = {x: measures.update_ratio(before[x], now) for x, now in weights.items()}
            found = numbers({f"update/{tag}": ratio for tag, ratio in ratios.items()})
            log_scalars(trainer, found, trainer.global_step)


class Predictions(Probe):
    """Logs the loss at each position, the gap to the training text and a sample at validations.

    The loss at each position comes from the forward passes of the validation, so it covers the
    whole text. `val/gap` is the validation loss minus the loss on `train_windows` fixed windows of
    the training text. The sample has `sample_chars` symbols; 0 for none.
    """

    def __init__(self, *, train_windows: int, sample_chars: int) -> None:
        super().__init__()
        at_least("probes.predictions.train_windows", train_windows, 1)
        at_least("probes.predictions.sample_chars", sample_chars, 0)
        self.train_windows, self.sample_chars = train_windows, sample_chars
        self._hook: RemovableHandle | None = None
        self._logits = self._sums = torch.empty(0)

    def on_validation_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        def keep(module: nn.Module, args: tuple[Any, ...], logits: Tensor) -> None:
            self._logits = logits

        self._sums = torch.zeros(2, pl_module.net.block_size, device=pl_module.device)
        self._hook = pl_module.net.register_forward_hook(keep)

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Batch, *_: Any
    ) -> None:
        y = batch[1]
        of_batch = torch.stack([measures.cross_entropies(self._logits, y), y != IGNORED])
        self._sums[:, : y.shape[1]] += of_batch.sum(1)  # losses and counts, (2, B, T) -> (2, T)

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._logits = torch.empty(0)
        losses, counts = trainer.strategy.reduce(self._sums, reduce_op="sum")
        if not trainer.is_global_zero:
            return
        curve = (losses / counts).tolist()  # NaN where nothing is predicted
        net, corpus, device = pl_module.net, pl_module.corpus, pl_module.device
        x, y = corpus.windows("train", net.block_size, self.train_windows)
        with eval_mode(net), trainer.precision_plugin.forward_context():
            train = float(measures.mean_loss(net(x.to(device)), y.to(device)))
        step = trainer.global_step
        values = {"val/gap": pl_module.val_losses[step] - train}
        self.record = values | {"loss_by_position": [round(x, 5) for x in curve]}
        if counts.all():  # a task predicts at some positions only
            values |= {"position/first": curve[0], "position/last": curve[-1]}
            if between := curve[1:-1]:
                values["position/between"] = sum(between) / len(between)
        log_scalars(trainer, values, step)
        heading = f"validation loss by position, step {step}"
        log_image(trainer, "loss_by_position", heatmaps.curve(curve, heading), step)
        if self.sample_chars:
            prompt = corpus.val[:1].long().to(device)
            try:
                with eval_mode(net):
                    ids = list(sample(net, prompt, self.sample_chars, temperature=0.8))
                base.log_text(trainer, "sample", decode(ids, corpus.alphabet), step)
            except BadInput as error:  # logits that are not finite
                base.log_text(trainer, "sample", str(error), step)


def parts(net: GPT, *, gradients: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Attention weights, or existing gradients: "L0/q" (rows, C), k, v, and "L0/out" (C, C)."""
    for number, block in enumerate(net.blocks):
        attn = block.attn
        if isinstance(attn, Attention):
            weights = (attn.qkv.weight, attn.proj.weight)
            qkv, out = (w.grad for w in weights) if gradients else weights
            if qkv is not None and len(qkv) == sum(attn.qkv_sizes):
                names = (f"L{number}/{name}" for name in "qkv")
                yield from zip(names, attn.split_qkv(qkv), strict=True)
            if out is not None:
                yield f"L{number}/out", out


def gradient_norms(net: GPT) -> dict[str, Tensor]:
    """Norm of the gradient of each block ("grad/L0") and of its `parts`, () each."""
    norms: dict[str, Tensor] = {}
    for number, block in enumerate(net.blocks):
        if found := [p.grad.norm() for p in block.parameters() if p.grad is not None]:
            norms[f"grad/L{number}"] = torch.stack(found).norm()
    return norms | {f"grad/{tag}": grad.norm() for tag, grad in parts(net, gradients=True)}
