"""The checkup of a whole model: run every detector on a copy and collect the findings."""

import contextlib
import io
import math
import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from attnlab.checkup import blackbox, serving, whitebox
from attnlab.checkup.attention_calls import AttentionCall
from attnlab.checkup.dependence import TOLERANCE, Dependence, dependence, gradient_map
from attnlab.checkup.findings import Diagnosis, Finding, Report, Status, attempt
from attnlab.checkup.martingale import prove_by_training
from attnlab.checkup.model_adapter import REFUSALS, ModelAdapter, adapt
from attnlab.checkup.preserve_state import preserve_state, working_copy
from attnlab.checkup.stress import disturbed, learned_leak, stress, try_trace
from attnlab.checkup.targets import check_batch
from attnlab.checkup.training_mode import training_mode
from attnlab.errors import BadInput

# Detectors whose faults mean that logits depend on later tokens ...
CAUSALITY = {
    "finite", "future", "disturbed", "gradient", "prefixes", "mask", "stress", "trained",
    "training mode", "proof",
}  # fmt: skip
# ... unless this is their cause.
_NOT_CAUSALITY = {"dropout_on", "self_blocked", "keeps_state"}
# Causes named from a map alone, which knows nothing of the inside of the model.
_CAUSES_OF_MAPS = {
    "flipped_mask", "inverted_mask", "late_leak", "no_mask", "off_by_one", "reads_ahead",
    "reads_some_ahead", "single_leaks",
}  # fmt: skip


def checkup(
    model: Callable[..., object],
    *,
    vocab_size: int | None = None,
    block_size: int | None = None,
    prove: bool = False,
    batch: tuple[Tensor, Tensor] | None = None,
    seed: int = 0,
    name: str | None = None,
) -> Report:
    """Examine a model's attention and report what is wrong, where, and how it is known.

    The model is examined in eval mode, and for leaks in training mode too, on a deep copy if it
    can be copied. Its mode, weights, buffers, gradients and the random states are restored.

    Args:
        model: any callable from ids (B, T) int64 to logits (B, T, V), or to an object, a mapping
            or a sequence that holds them; tensors, or arrays of NumPy or JAX.
        vocab_size: V; None if the model or its config has it.
        block_size: the largest T to examine; None if the model or its config has it (at most 256
            positions are then examined, and the report says so).
        prove: also train a copy on uniform random tokens to prove a leak (about a minute).
        batch: inputs and targets (B, T) int64 as used in training, to check their shift.
        seed: of the random tokens.
        name: of the model in the report; its class by default.

    Returns:
        the report. `report.healthy` is False if a fault was found. If the model raised an error
        on the way, `report.error` holds its traceback and the findings are those so far.

    Raises:
        attnlab.errors.BadInput: the model cannot be called as described.
    """
    begin = time.perf_counter()
    owner = _module_of(model)
    with preserve_state(owner), contextlib.redirect_stdout(io.StringIO()):  # models that print
        adapter, notes = _prepare(model, vocab_size, block_size)
        examination = _Examination(adapter, torch.Generator().manual_seed(seed))
        error = ""
        try:
            examination.run(prove)
        except BadInput:
            raise
        except Exception as raised:  # of the user's own model, in the middle
            error = _own_traceback(raised)
    findings, settings = examination.findings, examination.settings | notes
    if batch is not None:
        findings.append(check_batch(*batch))
    title = name if name is not None else type(model if owner is None else owner).__name__
    return Report(title, settings, tuple(findings), time.perf_counter() - begin, error)


def assert_causal(
    model: Callable[..., object],
    *,
    vocab_size: int | None = None,
    block_size: int | None = None,
    seed: int = 0,
) -> None:
    """Assert that no logit depends on a later token, in eval or training mode; nothing else.

    Args:
        model, vocab_size, block_size, seed: see `checkup`.

    Raises:
        AssertionError: with the diagnoses.
        attnlab.errors.BadInput: the model cannot be called as described.
    """
    report = checkup(model, vocab_size=vocab_size, block_size=block_size, seed=seed)
    leaks = [
        d
        for d in report.diagnoses
        if d.status is Status.FAULT
        and d.cause not in _NOT_CAUSALITY
        and CAUSALITY & set(d.detectors)
    ]
    _fail_for(report, leaks, "is not causal")


def assert_healthy(
    model: Callable[..., object],
    *,
    vocab_size: int | None = None,
    block_size: int | None = None,
    ignore: Collection[str] = (),
    fail_on: str = "fault",
    seed: int = 0,
) -> None:
    """Assert that a checkup finds nothing wrong: causality, scale, heads, cache, padding, ...

    Args:
        model, vocab_size, block_size, seed: see `checkup`.
        ignore: causes that do not count, keys of `attnlab.checkup.diagnoses.CAUSES`.
        fail_on: "fault", or "suspicious" to fail on suspicions too.

    Raises:
        AssertionError: with the diagnoses.
        attnlab.errors.BadInput: `fail_on` is neither, or the model cannot be called.
    """
    if fail_on not in ("fault", "suspicious"):
        raise BadInput(f"fail_on = {fail_on} must be fault or suspicious")
    report = checkup(model, vocab_size=vocab_size, block_size=block_size, seed=seed)
    counted = [d for d in report.diagnoses if d.cause not in ignore]
    if fail_on == "fault":
        counted = [d for d in counted if d.status is Status.FAULT]
    _fail_for(report, counted, "is not healthy")


def _fail_for(report: Report, diagnoses: list[Diagnosis], verdict: str) -> None:
    lines = [f"- {d.cause}: {d.headline}. {d.advice}" for d in diagnoses]
    if report.error:
        lines.append(f"- the examination failed:\n{report.error}")
    if lines:
        raise AssertionError("\n".join([f"{report.subject} {verdict}:", *lines]))


def _own_traceback(error: Exception) -> str:
    """The traceback of an error from the first frame of the user's own code on."""
    frames = traceback.extract_tb(error.__traceback__)
    package = Path(__file__).parents[1]
    last = max(i for i, f in enumerate(frames) if package in Path(f.filename).parents)
    lines = traceback.format_list(frames[last + 1 :] or frames)
    return "".join([*lines, *traceback.format_exception_only(error)]).rstrip()


def _module_of(model: Callable[..., object]) -> nn.Module | None:
    """The module behind a model: itself, or the owner of a bound method."""
    if isinstance(model, nn.Module):
        return model
    owner = model.__self__ if hasattr(model, "__self__") else None
    return owner if isinstance(owner, nn.Module) else None


def _prepare(
    model: Callable[..., object], vocab_size: int | None, block_size: int | None
) -> tuple[ModelAdapter, dict[str, str]]:
    """Copy the model if possible and find out how to call it; notes for the report."""
    notes: dict[str, str] = {}
    owner = _module_of(model)
    if owner is not None and owner is not model:
        owner.eval()
    if isinstance(model, nn.Module):
        model, reason = working_copy(model)
        model.eval()
        if reason:
            notes["copy"] = reason
    adapter = adapt(model, vocab_size, block_size)
    return replace(adapter, copies=not notes), notes


class _Examination:
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
            if not self._leaks():
                self._hidden(calls, numbers)
            padding = partial(serving.padding, self.precise, self.generator)
            self.findings.append(attempt("padding", padding, REFUSALS))
            precision = partial(serving.low_precision, self.adapter, self.precise, self.generator)
            self.findings.append(attempt("precision", precision, REFUSALS))
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
        if self.adapter.module is not None and own != torch.float64:
            self._convert()
        names = [str(self.adapter.dtype or "unknown"), str(self.dtype)]
        own_name, map_name = (name.removeprefix("torch.") for name in names)
        self.settings["dtype"] = f"{own_name}, maps in {map_name}"

    def _convert(self) -> None:
        assert self.adapter.module is not None
        for dtype in (torch.float64, torch.float32):
            copy, reason = working_copy(self.adapter.module)
            if reason:
                return
            precise = self.adapter.replaced(copy.to(dtype))
            try:
                logits = precise.logits(torch.zeros(1, self.adapter.block_size).long())
            except (*REFUSALS, BadInput):
                continue
            if bool(logits.isfinite().all()):
                self.precise, self.dtype = precise, dtype
                return

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
            return [Finding("inside", Status.NOT_APPLICABLE, blind)]
        found = [f for call in calls for f in (whitebox.rows(call), whitebox.mask(call)) if f]
        detectors = {f.detector for f in found}
        if "rows" not in detectors:
            headline = "the weights of every query sum to 1 over the keys"
            found.append(Finding("rows", Status.OK, headline))
        if "mask" not in detectors:
            headline = f"all {len(calls)} attention patterns are causal"
            found.append(Finding("mask", Status.OK, headline))
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
        if future.status is Status.OK and noisy_map is not None and bool(noisy_map.ahead.any()):
            self.findings.append(blackbox.future([noisy_map], shapes, detector="disturbed"))
        if future.cause not in ("flipped_mask", "inverted_mask"):  # which say so already
            self.findings.append(blackbox.past(maps[0], noisy_map))
        # fp32 has the fused kernels of training, whose gradients may differ.
        asked = self.adapter if self.adapter.dtype == torch.float32 else self.precise
        slopes = gradient_map(asked, maps[0].T, self.generator)
        self.findings.append(blackbox.gradients(slopes, maps[0]))
        self.findings.append(blackbox.prefixes(self.precise, self.lengths, self.generator))

    def _leaks(self) -> bool:
        return any(
            f.detector in ("future", "disturbed", "gradient") and f.status is Status.FAULT
            for f in self.findings
        )

    def _hidden(self, calls: list[AttentionCall], numbers: list[int]) -> None:
        """What shows only under large scores, after training, in training mode or with a cache."""
        detectors: dict[str, Callable[[], Finding]] = {}
        if calls:
            T = calls[0].raw.shape[-1]
            detectors["stress"] = partial(stress, self.precise, numbers, calls, self.generator, T)
        if self.precise.module is not None and self.precise.copies:
            detectors["trained"] = partial(
                learned_leak,
                self.adapter,
                self.generator,
                self.dtype,
                self.tolerance,
                self.seconds / 2,
            )
            detectors["training mode"] = partial(
                training_mode, self.precise, self.lengths[0], self.generator, self.tolerance
            )
        detectors["cache"] = partial(serving.cache, self.precise, self.generator)
        for name, detector in detectors.items():
            self.findings.append(attempt(name, detector, REFUSALS))

    def _blame_outside(self, calls: list[AttentionCall]) -> None:
        """If every attention pattern is causal but the model is not, the fault lies elsewhere.

        Patterns were seen at one length, so the model must leak at that very length.
        """
        sound = calls and not any(
            f.detector in ("mask", "rows", "stress")
            and f.status in (Status.FAULT, Status.SUSPICIOUS)
            for f in self.findings
        )
        if not sound:
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
