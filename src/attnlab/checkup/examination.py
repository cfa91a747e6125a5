"""One examination of one model: every detector, in order, and what the detectors share."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from attnlab.checkup import blackbox, serving, whitebox
from attnlab.checkup.attention_calls import AttentionCall
from attnlab.checkup.dependence import TOLERANCE, Dependence, dependence, gradient_map
from attnlab.checkup.findings import FAULT, NOT_APPLICABLE, OK, SUSPICIOUS, Finding
from attnlab.checkup.martingale import prove_by_training
from attnlab.checkup.model_adapter import REFUSALS, ModelAdapter
from attnlab.checkup.preserve_state import working_copy
from attnlab.checkup.stress import disturbed, learned_leak, stress, try_trace
from attnlab.checkup.training_mode import training_mode
from attnlab.errors import BadInput, first_line

# Causes named from a map alone, which knows nothing of the inside of the model.
_CAUSES_OF_MAPS = {
    "flipped_mask", "inverted_mask", "late_leak", "no_mask", "off_by_one", "reads_ahead",
    "reads_some_ahead", "single_leaks",
}  # fmt: skip


class Examination:
    """The detectors of one checkup and what they share.

    Args:
        adapter: the model, in its own precision.
        generator: of the random tokens.

    `findings` grows as the detectors run, so that an error in the model leaves those so far.
    """

    def __init__(self, adapter: ModelAdapter, generator: torch.Generator) -> None:
        self.adapter = adapter
        self.generator = generator
        self.seconds = 0.8  # for one map
        self.lengths = blackbox.accepted_lengths(adapter)
        self.precise, self.dtype = adapter, torch.float32  # in fp64 if the model runs in it
        self.noisy: ModelAdapter | None = None  # a copy with noise on its weights
        self.findings: list[Finding] = []
        self.settings = {
            "vocab_size": str(adapter.vocab_size),
            "block_size": adapter.size_note or str(adapter.block_size),
            "lengths": ", ".join(map(str, self.lengths)),
        }

    def run(self, prove: bool) -> None:
        """Run every detector that applies."""
        finite, usable = blackbox.finite(self.adapter, self.lengths, self.generator)
        self.findings.append(finite)
        measurable = self.lengths[0] in usable
        if measurable:
            self.lengths = usable
            self._same_answers()
        self._raise_precision()
        calls, numbers, blind = self._trace()
        inside = self._inside(calls, blind)
        if measurable:
            self._outside(calls)
            maps = ("future", "disturbed", "gradient")
            if not any(f.detector in maps and f.status is FAULT for f in self.findings):
                self._hidden(calls, numbers)
            self._attempt("padding", serving.padding, self.precise, self.generator)
            self._attempt(
                "precision", serving.low_precision, self.adapter, self.precise, self.generator
            )
            if prove and self.adapter.copies:
                self.findings.append(prove_by_training(self.adapter, self.generator))
        self.findings += inside
        self._blame_outside(calls)

    def _same_answers(self) -> None:
        """Determinism and independent rows; decides how the model is called from here on."""
        same = blackbox.deterministic(self.adapter, self.lengths, self.generator)
        self.findings.append(same)
        if same.cause == "dropout_on":
            self.adapter = replace(self.adapter, seeded=True, rows=1)
        rows = blackbox.rows_independent(self.adapter, self.lengths, self.generator)
        self.findings.append(rows)
        if rows.cause in ("rows_mix", "batch_time_swapped"):
            self.adapter = replace(self.adapter, rows=1)

    def _raise_precision(self) -> None:
        """Use the model in fp64 if it runs in it: leaks then stand out from rounding."""
        own = self.adapter.dtype or torch.float32
        self.precise, self.dtype = self.adapter, own
        for dtype in (torch.float64, torch.float32):
            if self.adapter.module is None or own == torch.float64:
                break
            copy, reason = working_copy(self.adapter.module)
            if reason:
                break
            precise = replace(self.adapter, model=copy.to(dtype))
            try:
                logits = precise.logits(torch.zeros(1, self.adapter.block_size).long())
            except (*REFUSALS, BadInput):
                continue
            if bool(logits.isfinite().all()):
                self.precise, self.dtype = precise, dtype
                break
        names = [str(self.adapter.dtype or "unknown"), str(self.dtype)]
        own_name, map_name = (name.removeprefix("torch.") for name in names)
        self.settings["dtype"] = f"{own_name}, maps in {map_name}"

    def _trace(self) -> tuple[list[AttentionCall], list[int], str]:
        """Record the attention calls, at a T that no weight has as a size."""
        T = self.precise.block_size
        if len(self.lengths) > 1:
            sizes = {n for p in self.precise.parameters() for n in p.shape}
            T = next((n for n in range(T, 10, -1) if n not in sizes), T)
        found = try_trace(self.precise, T, self.generator)
        self.settings["attention calls seen"] = str(len(found[0]))
        return found

    def _inside(self, calls: list[AttentionCall], blind: str) -> list[Finding]:
        """What the attention calls themselves show."""
        if not calls:
            return [Finding("inside", NOT_APPLICABLE, blind)]
        found = [f for call in calls for f in (whitebox.rows(call), whitebox.mask(call)) if f]
        detectors = {f.detector for f in found}
        if "rows" not in detectors:
            headline = "the weights of every query sum to 1 over the keys"
            found.append(Finding("rows", OK, headline))
        if "mask" not in detectors:
            headline = f"all {len(calls)} attention patterns are causal"
            found.append(Finding("mask", OK, headline))
        critical = math.sqrt(2 * math.log(self.adapter.block_size))
        found += whitebox.scale(calls, critical, whitebox.looks_untrained(self.adapter))
        return [*found, *whitebox.heads(calls), whitebox.head_order(calls)]

    def _outside(self, calls: list[AttentionCall]) -> None:
        """What calling the model shows: who reads whom, at several lengths."""
        lengths = self.lengths[:1] + [n for n in self.lengths[1:] if n > 2][1::2]
        # Without a look inside, try every usual number of layers and heads.
        shapes = [(layers, H) for layers in range(1, 9) for H in (2, 3, 4, 6, 8, 12, 16)]
        if calls:
            shapes = [(len(calls), len(calls[0].raw))]
        maps = [self._map(self.precise, lengths[0], rounds=2)]
        maps += [self._map(self.precise, T, rounds=1) for T in lengths[1:]]
        future = blackbox.future(maps, shapes)
        self.findings.append(future)
        noisy_map = None
        if self.precise.module is not None and self.precise.copies:
            self.noisy = disturbed(self.precise, self.generator)
            noisy_map = self._finite_map(self.noisy, self.lengths[0], rounds=1)
        if future.status is OK and noisy_map is not None and bool(noisy_map.ahead.any()):
            self.findings.append(blackbox.future([noisy_map], shapes, detector="disturbed"))
        if future.cause not in ("flipped_mask", "inverted_mask"):  # which say so already
            self.findings.append(blackbox.past(maps[0], noisy_map))
        # fp32 has the fused kernels of training, whose gradients may differ.
        asked = self.adapter if self.adapter.dtype == torch.float32 else self.precise
        slopes = gradient_map(asked, maps[0].T, self.generator)
        self.findings.append(blackbox.gradients(slopes, maps[0]))
        self.findings.append(blackbox.prefixes(self.precise, self.lengths, self.generator))

    def _hidden(self, calls: list[AttentionCall], numbers: list[int]) -> None:
        """What shows only under large scores, after training, in training mode or with a cache."""
        generator, tolerance = self.generator, self.tolerance
        if calls:
            T = calls[0].raw.shape[-1]
            self._attempt("stress", stress, self.precise, numbers, calls, generator, T)
        if self.precise.module is not None and self.precise.copies:
            seconds = self.seconds / 2
            self._attempt(
                "trained", learned_leak, self.adapter, generator, self.dtype, tolerance, seconds
            )
            self._attempt(
                "training mode", training_mode, self.precise, self.lengths[0], generator, tolerance
            )
        self._attempt("cache", serving.cache, self.precise, generator)

    def _attempt(self, detector: str, examine: Callable[..., Finding], *args: object) -> None:
        """Run a detector that calls the model in an unusual way, which it may not support."""
        try:
            finding = examine(*args)
        except REFUSALS as error:
            headline = f"the model does not support this ({first_line(error, with_class=True)})"
            finding = Finding(detector, NOT_APPLICABLE, headline)
        self.findings.append(finding)

    def _blame_outside(self, calls: list[AttentionCall]) -> None:
        """If every attention pattern is causal but the model is not, the fault lies elsewhere.

        Patterns were seen at one length, so the model must leak at that very length.
        """
        wrong = {f.detector for f in self.findings if f.status in (FAULT, SUSPICIOUS)}
        if not calls or wrong & {"mask", "rows", "stress"}:
            return
        for i, finding in enumerate(self.findings):
            model = {"future": self.precise, "disturbed": self.noisy}.get(finding.detector)
            if model is None or finding.cause not in _CAUSES_OF_MAPS:
                continue
            map_ = self._finite_map(model, calls[0].raw.shape[-1], rounds=2)
            if map_ is None or bool(map_.ahead.any()):  # without a map, nothing speaks against it
                what = finding.headline.split(": ")[0]
                headline = f"{what}, though every attention pattern is causal"
                self.findings[i] = replace(finding, cause="outside", headline=headline)

    @property
    def tolerance(self) -> float:
        """The share of the largest change that counts as rounding."""
        return TOLERANCE[self.dtype]

    def _finite_map(self, model: ModelAdapter, T: int, *, rounds: int) -> Dependence | None:
        """The map, or None if the model refuses or returns NaN."""
        try:
            map_ = self._map(model, T, rounds=rounds)
        except REFUSALS:
            return None
        return map_ if bool(map_.single[:, map_.tried].isfinite().all()) else None

    def _map(self, model: ModelAdapter, T: int, *, rounds: int) -> Dependence:
        """Who reads whom, from as many sequences, and replacements of each token, as rounds."""
        return dependence(
            model,
            T,
            self.generator,
            tolerance=self.tolerance,
            bases=rounds,
            alternatives=rounds,
            seconds=self.seconds,
        )
