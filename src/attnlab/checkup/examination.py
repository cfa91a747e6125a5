"""One examination of one model: every detector, in order, and what the detectors share."""

import math
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from attnlab.checkup import blackbox, loss_path, serving, stress, whitebox
from attnlab.checkup.attention_calls import AttentionCall
from attnlab.checkup.dependence import Dependence, dependence, gradient_map
from attnlab.checkup.findings import FAULT, NOT_APPLICABLE, OK, Finding, number_of, passed, skipped
from attnlab.checkup.locate import Place, choices_in, first_leak, reads_of
from attnlab.checkup.loss_path import Loss
from attnlab.checkup.martingale import prove_by_training
from attnlab.checkup.model_adapter import REFUSALS, ModelAdapter
from attnlab.checkup.recognize import explain_scramble
from attnlab.errors import first_line

# Causes named from a map alone, which knows nothing of the inside of the model.
_CAUSES_OF_MAPS = {
    "flipped_mask", "inverted_mask", "late_leak", "no_mask", "off_by_one", "reads_ahead",
    "reads_some_ahead", "single_leaks",
}  # fmt: skip


class Examination:
    """The detectors of one checkup and what they share.

    Args:
        seconds: a budget; detectors that would begin later are left out. None for the usual time
            for each map and no limit for the whole.
    """

    def __init__(
        self, adapter: ModelAdapter, seconds: float | None = None, loss: Loss | None = None
    ) -> None:
        self.adapter = adapter
        self.deadline = math.inf if seconds is None else time.perf_counter() + seconds
        self.seconds = 0.8 if seconds is None else seconds / 12  # for one map
        self.loss = loss
        self.lengths = blackbox.accepted_lengths(adapter)
        self.precise = adapter  # in fp64 if the model runs in it
        self.noisy: ModelAdapter | None = None  # a copy with noise on its weights
        self.findings: list[Finding] = []  # those so far, also after an error in the model
        self.calls: list[AttentionCall] = []  # what was recorded inside, and what it shows
        self.inside: list[Finding] = []
        self.settings = {
            "vocab_size": str(adapter.vocab_size),
            "block_size": adapter.size_note or str(adapter.block_size),
            "lengths": ", ".join(map(str, self.lengths)),
        }
        if adapter.in_place:
            self.settings["copy"] = adapter.in_place

    def run(self, prove: bool) -> None:
        """Run every detector that applies."""
        finite, usable = blackbox.finite(self.adapter, self.lengths)
        self.findings.append(finite)
        measurable = self.lengths[0] in usable
        if measurable:
            self.lengths = usable
            same = blackbox.deterministic(self.adapter, self.lengths[0])
            self.findings.append(same)
            if same.cause in ("dropout_on", "random_in_eval"):
                self.adapter = replace(self.adapter, seeded=True, rows=1)
            self.rows()
            if self.findings[-1].cause in ("rows_mix", "batch_time_swapped"):
                self.adapter = replace(self.adapter, rows=1)
            accepted = blackbox.accepted_lengths(self.adapter)  # alone, too
            self.lengths = [n for n in accepted if n in usable] or usable
        self.raise_precision()
        self._look_inside()
        if measurable:
            self._outside()
            maps = ("future", "disturbed", "gradient")
            if not any(f.detector in maps and f.status is FAULT for f in self.findings):
                self._hidden()
            self._attempt("precision", serving.low_precision, self.adapter, self.precise)
            if self.precise.is_module:
                self._training_path()
            if prove:
                self.findings.append(prove_by_training(self.adapter))
        self.findings += self.inside
        self._note_coverage()

    def rows(self) -> None:
        """Are the sequences of a batch independent of each other?"""
        self.findings.append(blackbox.rows_independent(self.adapter, self.lengths[0]))

    def check_loss(self, loss: Loss, *, shifts_in_data: bool) -> None:
        """By how much are the targets shifted in the loss?"""
        ids = self.precise.tokens(4, self.lengths[0])
        found = loss_path.check_loss(self.precise, loss, ids, shifts_in_data=shifts_in_data)
        self.findings.append(found)

    def check_batch(self, x: Tensor, y: Tensor) -> None:
        """By how much are the targets y of a batch shifted, as they reach the loss?"""
        found = loss_path.check_batch(x, y)
        if self.adapter.takes("labels"):
            inside = loss_path.check_loss(self.adapter, loss_path.labeled_loss(y), x)
            found = found if inside.status is NOT_APPLICABLE else inside
        self.findings.append(found)

    def raise_precision(self) -> None:
        """Use the model in fp64 if it runs in it: leaks then stand out from rounding."""
        own, T = self.adapter.dtype, self.adapter.block_size
        ids = self.adapter.pool[torch.arange(T) % len(self.adapter.pool)]
        raised = self.adapter.copies and own != torch.float64
        for dtype in (torch.float64, torch.float32) if raised else ():
            try:
                precise = self.adapter.copied()
                precise.module.to(dtype)
                logits = torch.cat([precise.logits(x[None]) for x in (ids, ids[:1].expand(T))])
            except REFUSALS:
                continue
            if bool(logits.isfinite().all()):  # a cast can overflow, as that of finfo.min does
                self.precise = precise
                break
        names = (str(dtype or "unknown") for dtype in (own, self.precise.dtype or torch.float32))
        self.settings["dtype"] = ", maps in ".join(n.removeprefix("torch.") for n in names)

    def _look_inside(self) -> None:
        """Record the attention calls, at a T that no weight has as a size, and examine them."""
        T = self.precise.block_size
        if len(self.lengths) > 1:
            sizes = {n for p in self.precise.parameters() for n in p.shape}
            T = next((n for n in range(T, 10, -1) if n not in sizes), T)
        self.calls, blind = stress.try_trace(self.precise, T)
        self.settings["attention calls seen"] = str(len(self.calls))
        if blind:
            self.inside = [skipped("inside", blind)]
            return
        found = [f for c in self.calls for f in (whitebox.rows(c), whitebox.mask(c)) if f]
        detectors = {f.detector for f in found}
        if "rows" not in detectors:
            found.append(passed("rows", "the weights of every query sum to 1 over the keys"))
        if "mask" not in detectors:
            headline = f"nothing reads ahead in {number_of(len(self.calls), 'attention pattern')}"
            found.append(passed("mask", headline))
        critical = math.sqrt(2 * math.log(self.adapter.block_size))
        found += whitebox.scale(self.calls, critical, whitebox.looks_untrained(self.adapter))
        self.inside = [*found, *whitebox.heads(self.calls), whitebox.head_order(self.calls)]

    def _outside(self) -> None:
        """What calling the model shows: who reads whom, at several lengths."""
        lengths = self.lengths[:1] + [n for n in self.lengths[1:] if n > 2][1::2]
        # Without a look inside, try every usual number of layers and heads.
        shapes = [(layers, H) for layers in range(1, 9) for H in (2, 3, 4, 6, 8, 12, 16)]
        if self.calls:
            shapes = [(len(self.calls), len(self.calls[0].raw))]
        maps = [dependence(self.precise, lengths[0], rounds=2, seconds=self.seconds)]
        maps += [dependence(self.precise, T, rounds=1, seconds=self.seconds) for T in lengths[1:]]
        future = blackbox.future(maps, shapes)
        self.findings.append(self._located(future, self.precise))
        noisy_map = None
        if self.precise.copies:
            self.noisy = stress.disturbed(self.precise)
            noisy_map = self._finite_map(self.noisy, self.lengths[0], rounds=1)
            if future.status is OK and noisy_map and bool(noisy_map.ahead.any()):
                found = blackbox.future([noisy_map], shapes, detector="disturbed")
                self.findings.append(self._located(found, self.noisy))
        if future.cause not in ("flipped_mask", "inverted_mask"):  # which say so already
            self.findings.append(blackbox.past(maps[0], noisy_map))
        # fp32 has the fused kernels of training, whose gradients may differ.
        asked = self.adapter if self.adapter.dtype == torch.float32 else self.precise
        self.findings.append(blackbox.gradients(gradient_map(asked, maps[0].T), maps[0]))
        self.findings.append(blackbox.prefixes(self.precise, self.lengths))

    def _hidden(self) -> None:
        """What shows only for some tokens, under large scores, in another state, with a cache."""
        T, half = self.lengths[0], self.seconds / 2
        self._attempt("tokens", blackbox.every_token, self.precise, T, half)
        if self.calls:
            self._attempt("stress", stress.stress, self.precise, self.calls)
        if self.precise.copies:
            own, dtype = self.adapter, self.precise.dtype
            self._attempt("trained", stress.trained, own, dtype, T, half)
            self._attempt("training mode", stress.training_mode, self.precise, T, half)
        self.serve("cache", serving.cache)
        self.serve("padding", serving.padding)

    def _training_path(self) -> None:
        """The shift in the loss and the gradients of the weights; consequences are left out."""
        loss = self.loss
        if loss is None and self.precise.takes("labels"):
            loss = loss_path.labeled_loss(None)
        if loss is not None:
            self.check_loss(loss, shifts_in_data=self.loss is None)
        self.findings.append(loss_path.tied(self.precise.module))
        seen = [*self.findings, *self.inside]
        if self.noisy and all(f.status is not FAULT and f.cause != "head_order" for f in seen):
            sizes = {call.head_size for call in self.calls if call.queries is not None}
            D = sizes.pop() if len(sizes) == 1 else 0
            self.findings += loss_path.weights(self.noisy, self.loss, D)

    def _located(self, finding: Finding, model: ModelAdapter) -> Finding:
        """Add to a leak the module that first lets the future through, and say what it is."""
        if finding.status is not FAULT or finding.cause == "not_finite":
            return finding
        place = first_leak(model, self.lengths[0])
        if place is not None:
            finding = replace(finding, evidence=(place.sentence, *finding.evidence))
        if finding.cause not in _CAUSES_OF_MAPS:
            return finding
        what = finding.headline.split(": ")[0]
        if not self.calls:  # of torch: a convolution, a normalization
            outside = place is not None and place.is_of_torch
            return replace(finding, cause="outside", headline=what) if outside else finding
        if any(f.cause and f.detector in ("mask", "rows") for f in self.inside):
            return finding
        return self._blamed_outside(finding, model, place)

    def _blamed_outside(
        self, finding: Finding, model: ModelAdapter, place: Place | None
    ) -> Finding:
        """If every attention pattern is causal but the model is not, the fault lies elsewhere."""
        reads = None if place is None else reads_of(place, model)
        if place is not None and reads is not None:
            # A reshape that the whole map hides is seen in the one module that leaks first.
            every = torch.ones(len(reads), dtype=torch.bool)
            scramble = explain_scramble(reads, every, [(1, len(self.calls[0].raw))])
            if scramble is not None:
                headline = f"{place.name}: {scramble[1]}"
                return replace(finding, cause=scramble[0], headline=headline)
        map_ = self._finite_map(model, self.calls[0].raw.shape[-1], rounds=2)
        if map_ is not None and not bool(map_.ahead.any()):
            return finding
        headline = f"{finding.headline.split(': ')[0]}, though every attention pattern is causal"
        chosen = choices_in(place, model) if place is not None else ""
        if chosen:
            headline += f": {chosen} over the positions of the sequence makes tokens compete"
        return replace(finding, cause="outside", headline=headline)

    def serve(self, detector: str, examine: Callable[[ModelAdapter], Finding]) -> None:
        """Run a detector in fp64, and in the model's own precision if only the cast gives NaN."""
        self._attempt(detector, examine, self.precise)
        if self.precise is not self.adapter and any(
            math.isnan(x) for x in self.findings[-1].numbers.values()
        ):
            self.findings.pop()
            self._attempt(detector, examine, self.adapter)

    def _attempt(self, detector: str, examine: Callable[..., Finding], *args: object) -> None:
        """Run a detector that calls the model in an unusual way, which it may not support."""
        reason = "not examined: the time was spent before; give more seconds"
        if time.perf_counter() <= self.deadline:
            try:
                self.findings.append(examine(*args))
                return
            except REFUSALS as error:
                line = first_line(error, with_class=True)
                reason = f"the model does not support this ({line})"
        self.findings.append(skipped(detector, reason))

    def _note_coverage(self) -> None:
        """Say what was looked at, so that nothing is left out silently."""
        ran = {f.detector: f for f in self.findings if f.status is not NOT_APPLICABLE}
        self.settings["lengths"] = ", ".join(map(str, self.lengths))
        self.settings["modes"] = "eval and training" if "training mode" in ran else "eval"
        drawn = "uniform" if self.adapter.text is None else "from the given ids"
        if "tokens" in ran and ran["tokens"].status is OK:
            count = ran["tokens"].numbers
            drawn += f"; {count['tried']:.0f} of {count['ids']:.0f} ids tried each"
        self.settings["tokens"] = drawn

    def _finite_map(self, model: ModelAdapter, T: int, *, rounds: int) -> Dependence | None:
        """The map, or None if the model refuses or returns NaN."""
        try:
            map_ = dependence(model, T, rounds=rounds, seconds=self.seconds)
        except REFUSALS:
            return None
        return map_ if map_.finite else None
