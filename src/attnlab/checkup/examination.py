"""The examination of one model: every detector, in order, and what the detectors share."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attnlab.checkup import blackbox, loss_path, serving, stress, whitebox
from attnlab.checkup.attention_calls import AttentionCall
from attnlab.checkup.caches import check_cache
from attnlab.checkup.checkup_report import Report
from attnlab.checkup.coverage import NO_TIME, Meant, covered, unseen
from attnlab.checkup.dependence import Dependence, dependence, gradient_map
from attnlab.checkup.documents import check_documents
from attnlab.checkup.findings import Finding, Status, collect, passed, skipped
from attnlab.checkup.lengths import check_lengths
from attnlab.checkup.locate import Place, choices_in, first_leak, reads_of
from attnlab.checkup.loss_path import Loss
from attnlab.checkup.martingale import prove_by_training
from attnlab.checkup.model_adapter import REFUSALS, TARGET_NAMES, ModelAdapter
from attnlab.checkup.recognize import explain_scramble
from attnlab.errors import BadInput, first_line

# Causes that are inferred from a map alone, without a look at the model's operations.
_CAUSES_OF_MAPS = {
    "flipped_mask", "inverted_mask", "late_leak", "no_mask", "off_by_one", "reads_ahead",
    "reads_some_ahead", "single_leaks",
}  # fmt: skip
_COPY = "a torch module that can be copied"
# What a detector needs besides a function from ids to logits; without it, it is skipped.
NEEDS = {
    "disturbed": _COPY, "trained": _COPY, "training mode": _COPY, "weights": _COPY,
    "precision": "a torch module", "stress": "attention that is recognized", "dropout": _COPY,
    "values": "attention that is recognized",
}  # fmt: skip


class Examination:
    """The detectors of one checkup and what they share.

    Args:
        seconds: a time budget; detectors that would begin later are skipped. None for no limit
            on the whole, and a default for each map.
    """

    def __init__(
        self,
        adapter: ModelAdapter,
        seconds: float | None = None,
        loss: Loss | None = None,
        meant: Meant | None = None,
    ) -> None:
        if seconds is not None and seconds <= 0:
            raise BadInput(f"seconds = {seconds} must be above 0")
        self.adapter = adapter
        self.begin = time.perf_counter()
        self.deadline = math.inf if seconds is None else self.begin + seconds
        self.seconds = 0.8 if seconds is None else seconds / 12  # for one map
        self.loss = loss
        self.meant = meant or Meant()
        self.lengths = blackbox.accepted_lengths(adapter)
        if not self.lengths:
            raise BadInput("the model ran once and then failed at every length; it must run again")
        self.precise = adapter  # in fp64 if the model runs in it
        self.noisy: ModelAdapter | None = None  # a copy with noise on its weights
        self.changed = 0  # how many tokens of the longest map were changed alone
        self.findings: list[Finding] = []
        self.error = ""  # the traceback if the model raised an error on the way
        self.calls: list[AttentionCall] = []  # recorded in one forward pass
        self.inside: list[Finding] = []  # on these calls
        self.settings = {
            "vocab_size": str(adapter.vocab_size),
            "block_size": str(adapter.block_size),
            "lengths": ", ".join(map(str, self.lengths)),
        }
        if adapter.in_place:
            self.settings["copy"] = adapter.in_place

    def run(self, prove: bool, batch: tuple[Tensor, Tensor] | None) -> None:
        """Run every detector that applies; an error in the model ends the examination."""
        targets = [] if batch is None else [self._batch_targets(*batch)]
        self.error = collect(self.findings, self._detectors(prove))
        self.findings += targets

    def report(self, subject: str) -> Report:
        """The report on what has been found so far."""
        seconds = time.perf_counter() - self.begin
        findings, missed = tuple(self.findings), tuple(unseen(self))
        return Report(subject, self.settings, findings, seconds, self.error, missed)

    def _detectors(self, prove: bool) -> Iterator[Finding]:
        finite, usable = blackbox.check_finite(self.adapter, self.lengths)
        yield finite
        measurable = self.lengths[0] in usable
        if measurable:
            self.lengths = usable
            same = blackbox.check_deterministic(self.adapter, self.lengths[0])
            yield same
            if same.cause in ("dropout_on", "random_in_eval"):
                self.adapter = replace(self.adapter, seeded=True, rows=1)
            rows = blackbox.check_rows_independent(self.adapter, self.lengths[0])
            yield rows
            if rows.cause in ("rows_mix", "batch_time_swapped"):
                self.adapter = replace(self.adapter, rows=1)
            accepted = blackbox.accepted_lengths(self.adapter)  # one row at a time can be refused
            self.lengths = [n for n in accepted if n in usable] or usable
        else:
            reason = f"not examined: logits of {self.lengths[0]} tokens are not finite"
            yield skipped("future", reason)
        self.raise_precision()
        self._look_inside()
        if measurable:
            yield from self._outside()
            maps = ("future", "disturbed", "gradient")
            if not any(f.detector in maps and f.status is Status.FAULT for f in self.findings):
                yield from self._hidden()
            yield self._attempt("precision", serving.check_precision, self.adapter, self.precise)
            if self.precise.is_module:
                yield from self._training_path()
            if prove:
                yield prove_by_training(self.adapter)
        yield from self.inside
        self.settings |= covered(self)

    def check_loss(self, loss: Loss, *, shifts_in_data: bool) -> Finding:
        """By how much are the targets shifted in the loss?"""
        ids = self.precise.tokens(4, self.lengths[0])
        return loss_path.check_loss(self.precise, loss, ids, shifts_in_data=shifts_in_data)

    def _batch_targets(self, x: Tensor, y: Tensor) -> Finding:
        """By how much are the targets y of a batch shifted when they reach the loss?"""
        found = loss_path.check_batch(x, y)
        if any(map(self.adapter.takes, TARGET_NAMES)):
            in_loss = loss_path.check_loss(self.adapter, partial(loss_path.own_loss, labels=y), x)
            found = found if in_loss.status is Status.NOT_APPLICABLE else in_loss
        return found

    def raise_precision(self) -> None:
        """Use the model in fp64 if it runs in fp64, where leaks stand out from rounding."""
        self.precise = serving.in_high_precision(self.adapter)
        names = (str(x.dtype).removeprefix("torch.") for x in (self.adapter, self.precise))
        known = self.adapter.dtype is not None
        self.settings["dtype"] = ", maps in ".join(names) if known else "unknown"

    def _look_inside(self) -> None:
        """Record the attention calls, at a T that no weight has as a size, and examine them."""
        T, sizes = self.precise.block_size, {n for p in self.precise.parameters() for n in p.shape}
        lengths = [n for n in self.lengths if n not in sizes and n > 10]
        if len(self.lengths) > 1:
            lengths = [*(n for n in range(T, 10, -1) if n not in sizes)][:1] + lengths
        self.calls, reason = stress.record(self.precise, dict.fromkeys([*lengths, T]))
        self.settings["attention calls seen"] = str(len(self.calls))
        if reason:
            self.inside = [skipped("inside", reason)]
            return
        found = [
            f for c in self.calls for f in (whitebox.check_rows(c), whitebox.check_mask(c)) if f
        ]
        sound = {"rows": "the weights of every query sum to 1 over the keys"}
        sound["mask"] = "nothing reads ahead in any recorded attention pattern"
        wrong = {f.detector for f in found}
        found += [passed(*pair) for pair in sound.items() if pair[0] not in wrong]
        critical = math.sqrt(2 * math.log(self.adapter.block_size))
        found += whitebox.check_scale(self.calls, critical, whitebox.looks_untrained(self.adapter))
        found += [*whitebox.check_heads(self.calls), whitebox.check_head_order(self.calls)]
        windows, T = whitebox.windows_of(self.calls), self.calls[0].raw.shape[-1]
        self.settings["windows"] = ", ".join("all" if n == T else str(n) for n in windows)
        self.inside = found + whitebox.check_windows(self.calls, windows, self.meant.window)

    def _outside(self) -> Iterator[Finding]:
        """Which position reads which, at several lengths, from the logits alone."""
        lengths = self.lengths[:1] + [n for n in self.lengths[1:] if n > 2][1::2]
        # If no attention was recorded, try every common number of layers and heads.
        shapes = [(H, range(1, 9)) for H in (2, 3, 4, 6, 8, 12, 16)]
        if self.calls:
            shapes = [(len(self.calls[0].raw), range(len(self.calls), len(self.calls) + 1))]
        maps = [dependence(self.precise, lengths[0], rounds=2, seconds=self._time())]
        maps += [dependence(self.precise, T, rounds=1, seconds=self._time()) for T in lengths[1:]]
        self.changed = int(maps[0].tried.sum())
        future = blackbox.check_future(maps, shapes)
        yield self._located(future, self.precise)
        noisy_map = None
        if self.precise.copies:
            self.noisy = stress.disturbed(self.precise)
            noisy_map = self._finite_map(self.noisy, self.lengths[0], rounds=1)
            if future.status is Status.OK and noisy_map and bool(noisy_map.ahead.any()):
                found = blackbox.check_future([noisy_map], shapes, detector="disturbed")
                yield self._located(found, self.noisy)
        if future.cause not in ("flipped_mask", "inverted_mask"):  # which imply an unused past
            yield blackbox.check_past(maps[0], noisy_map)
        # In fp32 the fused kernels of training run, whose gradients may differ.
        asked = self.adapter if self.adapter.dtype == torch.float32 else self.precise
        time_left = math.inf if self.deadline == math.inf else self._time()
        yield blackbox.check_gradients(gradient_map(asked, maps[0].T, time_left), maps[0])
        yield blackbox.check_prefixes(self.precise, self.lengths)

    def _hidden(self) -> Iterator[Finding]:
        """Leaks for some tokens only, under large scores, in another state, or with a cache."""
        T, half = self.lengths[0], self._time(1 / 2)
        yield self._attempt("tokens", blackbox.check_tokens, self.precise, T, half)
        yield self._attempt("stress", stress.check_stress, self.precise, self.calls)
        shown = self.calls[0].raw.shape[-1] if self.calls else 0
        yield self._attempt("values", stress.check_values, self.precise, shown)
        yield self._attempt("dropout", stress.check_dropout, self.precise, shown)
        yield self._attempt("trained", stress.check_trained, self.adapter, self.precise, T, half)
        yield self._attempt("training mode", stress.check_training_mode, self.precise, T, half)
        shares, at_random = (10, 16) if self.deadline == math.inf else (4, T)
        longer = self.precise, self.noisy, self._time(shares), at_random
        yield self._attempt("lengths", check_lengths, *longer)
        yield self.serve("cache", check_cache)
        yield self.serve("padding", partial(serving.check_padding, meant=self.meant.padding))
        if self.meant.separator is not None or self.meant.documents is not None:
            yield self.serve("documents", partial(check_documents, meant=self.meant))

    def _training_path(self) -> Iterator[Finding]:
        """The shift of the targets in the loss, and without another fault, the gradients."""
        loss = self.loss or (
            loss_path.own_loss if any(map(self.precise.takes, TARGET_NAMES)) else None
        )
        if loss is not None:
            yield self.check_loss(loss, shifts_in_data=self.loss is None)
        yield loss_path.check_tied(self.precise.module)
        seen = [*self.findings, *self.inside]
        if self.noisy and all(
            f.status is not Status.FAULT and f.cause != "head_order" for f in seen
        ):
            sizes = {call.head_size for call in self.calls if call.queries is not None}
            D = sizes.pop() if len(sizes) == 1 else 0
            yield from loss_path.check_weights(self.noisy, self.loss, D)

    def _located(self, finding: Finding, model: ModelAdapter) -> Finding:
        """Add to a leak the first module that leaks, and refine its cause."""
        if finding.status is not Status.FAULT or finding.cause == "not_finite":
            return finding
        place = first_leak(model, self.lengths[0])
        if place is not None:
            finding = replace(finding, evidence=(place.sentence, *finding.evidence))
        if finding.cause not in _CAUSES_OF_MAPS:
            return finding
        what = finding.headline.split(": ")[0]
        if not self.calls:  # a layer of torch is a convolution or a normalization
            outside = place is not None and place.is_of_torch
            return replace(finding, cause="outside", headline=what) if outside else finding
        if any(f.cause and f.detector in ("mask", "rows") for f in self.inside):
            return finding
        return self._refined(finding, model, place)

    def _refined(self, finding: Finding, model: ModelAdapter, place: Place | None) -> Finding:
        """If every attention pattern is causal but the model is not, the fault is elsewhere."""
        reads = None if place is None else reads_of(place, model)
        if place is not None and reads is not None:
            # A reshape that the map of the model hides shows in the first module that leaks.
            every = torch.ones(len(reads), dtype=torch.bool)
            scramble = explain_scramble(reads, every, [(len(self.calls[0].raw), range(1, 2))])
            if scramble is not None:
                headline = f"{place.name or 'the model'}: {scramble[1]}"
                return replace(finding, cause=scramble[0], headline=headline)
        map_ = self._finite_map(model, self.calls[0].raw.shape[-1], rounds=2)
        if map_ is not None and not bool(map_.ahead.any()):
            return finding
        headline = f"{finding.headline.split(': ')[0]}, though every attention pattern is causal"
        chosen = choices_in(place, model) if place is not None else ""
        headline += f": {chosen} over the positions makes tokens compete" if chosen else ""
        return replace(finding, cause="outside", headline=headline)

    def serve(self, detector: str, examine: Callable[[ModelAdapter], Finding]) -> Finding:
        """Run a detector in fp64, or in the model's own precision if fp64 gives NaN or fails."""
        found = self._attempt(detector, examine, self.precise)
        failed = found.status is Status.NOT_APPLICABLE
        if failed or any(map(math.isnan, found.numbers.values())):
            found = self._attempt(detector, examine, self.adapter)
        return found

    def _attempt(self, detector: str, examine: Callable[..., Finding], *args: object) -> Finding:
        """Run a detector that calls the model in an unusual way, which it may not support."""
        reason = self._lacks(detector) or NO_TIME
        if reason is NO_TIME and time.perf_counter() <= self.deadline:
            try:
                return examine(*args)
            except REFUSALS as error:
                reason = f"the model does not support this ({first_line(error, with_class=True)})"
        return skipped(detector, reason)

    def _lacks(self, detector: str) -> str:
        """Why the model cannot be examined by a detector, "" if it can."""
        has = {"": True, _COPY: self.precise.copies, "a torch module": self.precise.is_module}
        need = NEEDS.get(detector, "")
        return "" if has.get(need, bool(self.calls)) else f"needs {need}"

    def _time(self, shares: float = 1.0) -> float:
        """The seconds for something that may take so many shares of the time."""
        return min(shares * self.seconds, max(self.deadline - time.perf_counter(), 0.01))

    def _finite_map(self, model: ModelAdapter, T: int, *, rounds: int) -> Dependence | None:
        """The map, or None if the model refuses or returns NaN."""
        try:
            map_ = dependence(model, T, rounds=rounds, seconds=self._time())
        except REFUSALS:
            return None
        return map_ if map_.finite else None
