"""The checkup of a whole model: run every detector on a copy, and gather what they found."""

import contextlib
import io
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from attnlab.checkup import blackbox, extras, whitebox
from attnlab.checkup.attention_calls import AttentionCall
from attnlab.checkup.dependence import TOLERANCE, Dependence, dependence, gradient_map
from attnlab.checkup.findings import Finding, Report, Status, attempt
from attnlab.checkup.martingale import prove_by_training
from attnlab.checkup.model_adapter import REFUSALS, ModelAdapter, adapt
from attnlab.checkup.preserve_state import untouched, working_copy
from attnlab.checkup.stress import disturbed, learned_leak, stress, try_trace
from attnlab.checkup.targets import check_batch
from attnlab.errors import BadInput


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
    """Examine a model and say what is wrong with its attention, where, and how it is known.

    The model is examined in eval mode, on a deep copy where it can be copied; its mode, weights,
    buffers, gradients and the global streams of randomness are as before afterwards.

    Args:
        model: any callable from ids (B, T) int64 to logits (B, T, V), or to an object, a mapping
            or a sequence that holds them; tensors, or arrays of NumPy or JAX.
        vocab_size: V; None where the model or its config says it.
        block_size: the largest T to examine; None where the model or its config says it.
        prove: also train a copy on fresh uniform tokens and try to prove a leak (about a minute).
        batch: inputs and targets (B, T) int64 as the model is trained on, to check their shift.
        seed, name: of the random tokens; of the model in the report.

    Returns:
        the report; `report.healthy` is False where a fault was found.

    Raises:
        attnlab.errors.BadInput: the model cannot be asked, with a sentence that says why.
    """
    begin = time.perf_counter()
    owner = _module_of(model)
    with untouched(owner), contextlib.redirect_stdout(io.StringIO()):  # models that print
        adapter, notes = _prepare(model, vocab_size, block_size)
        findings, settings = _examine(adapter, torch.Generator().manual_seed(seed), prove)
    if batch is not None:
        findings.append(check_batch(*batch))
    title = name if name is not None else type(model if owner is None else owner).__name__
    return Report(title, settings | notes, tuple(findings), time.perf_counter() - begin)


def assert_causal(
    model: Callable[..., object],
    *,
    vocab_size: int | None = None,
    block_size: int | None = None,
    seed: int = 0,
) -> None:
    """Fail where any logit depends on a later token; for other projects' test suites.

    Args:
        model, vocab_size, block_size, seed: see `checkup`.

    Raises:
        AssertionError: with the headlines of the report.
        attnlab.errors.BadInput: the model cannot be asked.
    """
    report = checkup(model, vocab_size=vocab_size, block_size=block_size, seed=seed)
    faults = [d for d in report.diagnoses if d.status is Status.FAULT]
    if faults:
        told = "\n".join(f"- {d.headline}. {d.advice}" for d in faults)
        raise AssertionError(f"{report.subject} is not a sound causal model:\n{told}")


def _module_of(model: Callable[..., object]) -> torch.nn.Module | None:
    """The module behind a model: itself, or the owner of a bound method."""
    if isinstance(model, torch.nn.Module):
        return model
    owner = model.__self__ if hasattr(model, "__self__") else None
    return owner if isinstance(owner, torch.nn.Module) else None


def _prepare(
    model: Callable[..., object], vocab_size: int | None, block_size: int | None
) -> tuple[ModelAdapter, dict[str, str]]:
    notes: dict[str, str] = {}
    owner = _module_of(model)
    if owner is not None and owner is not model:
        owner.eval()
    if isinstance(model, torch.nn.Module):
        model, note = working_copy(model)
        model.eval()
        if note:
            notes["copy"] = note
    adapter = adapt(model, vocab_size, block_size)
    return replace(adapter, copies=not notes), notes


def _sharpened(adapter: ModelAdapter) -> tuple[ModelAdapter, torch.dtype]:
    """The model in fp64 where it runs so, which tells rounding from leaks by far."""
    own = adapter.dtype or torch.float32
    if adapter.module is None or own == torch.float64:
        return adapter, own
    for dtype in (torch.float64, torch.float32):
        copy, note = working_copy(adapter.module)
        if note:
            break
        sharp = adapter.replaced(copy.to(dtype))
        try:
            finite = bool(sharp.logits(torch.zeros(1, adapter.block_size).long()).isfinite().all())
        except (*REFUSALS, BadInput):
            continue
        if finite:
            return sharp, dtype
    return adapter, own


# What a map of who reads whom is called where nothing is known of the inside.
_READS_AHEAD = {
    "flipped_mask", "inverted_mask", "late_leak", "no_mask", "off_by_one", "reads_ahead",
    "reads_some_ahead", "single_leaks",
}  # fmt: skip


@dataclass
class _Case:
    """What the detectors share.

    Args:
        shaken: the copy with noise on its weights, once there is one.
    """

    adapter: ModelAdapter
    sharp: ModelAdapter
    dtype: torch.dtype
    lengths: list[int]
    generator: torch.Generator
    seconds: float = 0.8
    shaken: ModelAdapter | None = None

    @property
    def tolerance(self) -> float:
        """What counts as rounding in the maps."""
        return TOLERANCE[self.dtype]


def _examine(
    adapter: ModelAdapter, generator: torch.Generator, prove: bool
) -> tuple[list[Finding], dict[str, str]]:
    lengths = blackbox.accepted_lengths(adapter)
    findings = [blackbox.finite(adapter, lengths, generator)]
    if findings[0].status is Status.OK:
        same = blackbox.deterministic(adapter, lengths, generator)
        if same.cause == "dropout_on":
            adapter = replace(adapter, seeded=True, rows=1)
        findings += [same, blackbox.rows_independent(adapter, lengths, generator)]
        if findings[-1].cause == "rows_mix":
            adapter = replace(adapter, rows=1)
    sharp, dtype = _sharpened(adapter)
    case = _Case(adapter, sharp, dtype, lengths, generator)
    calls, numbers, blind = _watch(case)
    inside = _inside(case, calls, blind)
    if findings[0].status is Status.OK:
        findings += _outside(case, calls)
        if not any(
            f.detector in ("future", "disturbed", "gradient") and f.status is Status.FAULT
            for f in findings
        ):
            findings += _hidden(case, calls, numbers)
        findings += extras.all_of(adapter, sharp, generator)
        if prove and adapter.copies:
            findings.append(prove_by_training(adapter, generator))
    findings += inside
    settings = {
        "vocab_size": str(adapter.vocab_size),
        "block_size": str(adapter.block_size),
        "lengths": ", ".join(map(str, lengths)),
        "dtype": f"{_word(adapter.dtype)}, maps in {_word(dtype)}",
        "attention calls seen": str(len(calls)),
    }
    return _causes_outside(case, findings, calls), settings


def _word(dtype: torch.dtype | None) -> str:
    return "unknown" if dtype is None else str(dtype).removeprefix("torch.")


def _watch(case: _Case) -> tuple[list[AttentionCall], list[int], str]:
    adapter = case.sharp
    # No other size may be T, or a product of weights passes for scores.
    sizes = {n for p in adapter.parameters() for n in p.shape}
    free = [n for n in range(adapter.block_size, 10, -1) if n not in sizes]
    T = free[0] if free and len(case.lengths) > 1 else adapter.block_size
    return try_trace(adapter, T, case.generator)


def _inside(case: _Case, calls: list[AttentionCall], blind: str) -> list[Finding]:
    """What the calls themselves show."""
    if not calls:
        return [Finding("inside", Status.NOT_APPLICABLE, blind)]
    found = [f for call in calls for f in (whitebox.rows(call), whitebox.mask(call)) if f]
    named = {f.detector for f in found}
    if "rows" not in named:
        found.append(Finding("rows", Status.OK, "every query's weights sum to 1 over the keys"))
    if "mask" not in named:
        found.append(Finding("mask", Status.OK, f"all {len(calls)} attention patterns are causal"))
    critical = math.sqrt(2 * math.log(case.adapter.block_size))
    found += whitebox.scale(calls, critical, extras.looks_untrained(case.adapter))
    return [*found, *whitebox.heads(calls), whitebox.head_order(calls)]


def _outside(case: _Case, calls: list[AttentionCall]) -> list[Finding]:
    """What asking shows."""
    few = case.lengths[:1] + [n for n in case.lengths[1:] if n > 2][1::2]
    maps = [_map(case, case.sharp, few[0], rounds=2)]
    maps += [_map(case, case.sharp, T, rounds=1) for T in few[1:]]
    found = [blackbox.future(maps, _shapes(calls))]
    jittered = None
    if case.sharp.module is not None and case.sharp.copies:
        jittered = _disturbed_map(case)
        if jittered is not None and found[0].status is Status.OK and bool(jittered.ahead.any()):
            found.append(blackbox.future([jittered], _shapes(calls), detector="disturbed"))
    found.append(blackbox.past(maps[0], jittered))
    if found[0].cause in ("flipped_mask", "inverted_mask"):
        found.pop()
    single = case.adapter.dtype == torch.float32
    slopes = gradient_map(case.adapter if single else case.sharp, maps[0].T, case.generator)
    found.append(blackbox.gradients(slopes, maps[0]))
    found.append(blackbox.prefixes(case.sharp, case.lengths, case.generator))
    return found


def _disturbed_map(case: _Case) -> Dependence | None:
    case.shaken = disturbed(case.sharp, case.generator)
    return _finite_map(case, case.shaken, case.adapter.block_size, rounds=1)


def _finite_map(case: _Case, adapter: ModelAdapter, T: int, *, rounds: int) -> Dependence | None:
    """The map, or None where the model refuses, as one may that checks its own values."""
    try:
        map_ = _map(case, adapter, T, rounds=rounds)
    except REFUSALS:
        return None
    return map_ if bool(map_.single[:, map_.tried].isfinite().all()) else None


def _map(case: _Case, adapter: ModelAdapter, T: int, *, rounds: int) -> Dependence:
    """Who reads whom, from as many random sequences and other tokens as there are rounds."""
    return dependence(
        adapter,
        T,
        case.generator,
        tolerance=case.tolerance,
        bases=rounds,
        alternatives=rounds,
        seconds=case.seconds,
    )


def _shapes(calls: list[AttentionCall]) -> list[tuple[int, int]]:
    """(layers, heads) that the model has, or may have where nothing was seen of its inside."""
    if calls:
        return [(len(calls), len(calls[0].raw))]
    return [(layers, H) for layers in range(1, 9) for H in (2, 3, 4, 6, 8, 12, 16)]


def _hidden(case: _Case, calls: list[AttentionCall], numbers: list[int]) -> list[Finding]:
    """What shows only under stress, after training or with a cache."""
    found = []
    if calls:
        T = calls[0].raw.shape[-1]
        pull = partial(stress, case.sharp, numbers, calls, case.generator, T)
        found.append(attempt("stress", pull, REFUSALS))
    if case.sharp.module is not None and case.sharp.copies:
        half = case.seconds / 2
        teach = partial(
            learned_leak, case.adapter, case.generator, case.dtype, case.tolerance, half
        )
        found.append(attempt("trained", teach, REFUSALS))
    remember = partial(extras.cache, case.sharp, case.generator)
    return [*found, attempt("cache", remember, REFUSALS)]


def _causes_outside(
    case: _Case, findings: list[Finding], calls: list[AttentionCall]
) -> list[Finding]:
    """Where every attention pattern is sound and the model reads ahead all the same, say so."""
    sound = calls and not any(
        f.detector in ("mask", "rows", "stress") and f.status in (Status.FAULT, Status.SUSPICIOUS)
        for f in findings
    )
    if not sound:
        return findings
    T = calls[0].raw.shape[-1]
    return [
        replace(f, cause="outside", headline=_though_causal(f.headline))
        if f.detector in ("future", "disturbed")
        and f.cause in _READS_AHEAD
        and _reads_ahead_at(case, f.detector, T)
        else f
        for f in findings
    ]


def _reads_ahead_at(case: _Case, detector: str, T: int) -> bool:
    """Does it read ahead at this very length too, the one at which the patterns were seen?

    A model that cannot be asked says nothing against its patterns.
    """
    adapter = case.shaken if detector == "disturbed" else case.sharp
    assert adapter is not None, "a finding on a disturbed copy has one"
    map_ = _finite_map(case, adapter, T, rounds=2)
    return map_ is None or bool(map_.ahead.any())


def _though_causal(headline: str) -> str:
    return f"{headline.split(': ')[0]}, though every attention pattern is causal"
