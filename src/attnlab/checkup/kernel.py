"""The checkup of a kernel. Letters: B batch, H heads, T time, D channels of a head."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from attnlab.checkup.checkup_report import Report
from attnlab.checkup.findings import FAULT, SUSPICIOUS, Finding, collect, passed, skipped
from attnlab.checkup.kernel_adapter import (
    LAYOUTS,
    MASK_STYLES,
    Inputs,
    KernelAdapter,
    adapt_kernel,
    departures,
    mistakes,
)
from attnlab.checkup.model_adapter import REFUSALS
from attnlab.checkup.runner import name_of, preserve_state
from attnlab.errors import BadInput, first_line

B, H, T, D = 2, 3, 11, 5  # distinct primes, so that a wrong axis cannot hide


def checkup_kernel(
    fn: Callable[..., object],
    *,
    causal: bool = True,
    mask_style: str | None = None,
    layout: str | None = None,
    seed: int = 0,
) -> Report:
    """Examine a function of q, k and v, and of a mask and a scale if it takes them.

    Args:
        fn: takes q, k, v by position; by name, if it has them, a mask as `mask` or `attn_mask`, a
            scale as `scale`, causality as `is_causal`, dropout as `dropout` or `dropout_p`.
            Without a scale, 1/sqrt(D) is expected. It returns the shape of q, or (B, T, H D) if it
            merges the heads.
        causal: whether a kernel without a mask argument should be causal.
        mask_style: the meaning of the kernel's mask: "attend" (bool, True = may attend), "block"
            (bool, True = blocked) or "add" (0 and -inf); None to try all of them, which cannot
            detect a mask that is inverted by mistake.
        layout: "(B, H, T, D)", "(B, T, H, D)", "(B H, T, D)" or "(T, D)"; None to try them all.
        seed: for the random inputs.

    Returns:
        The report, which names the mistake that gives exactly this output.

    Raises:
        attnlab.errors.BadInput: the function cannot be called as described.
    """
    begin = time.perf_counter()
    findings: list[Finding] = []
    generator = torch.Generator().manual_seed(seed)
    kernel, visible = adapt_kernel(fn), torch.ones(T, T, dtype=torch.bool)
    if causal or {"mask", "causal"} & kernel.names.keys():
        visible = visible.tril()
    plain = _inputs(generator, visible, 0.3 if "scale" in kernel.names else None)
    with preserve_state(None):
        kernel = _recognize(kernel, plain, mask_style, layout)
        error = collect(findings, _examine(kernel, plain, generator))
    settings = {"B, H, T, D": f"{B}, {H}, {T}, {D}", "layout": kernel.layout, "mask": "none"}
    if "mask" in kernel.names:
        found = ", found by trying" if mask_style is None else ""
        settings["mask"] = MASK_STYLES[kernel.mask_style] + found
    return Report(name_of(fn), settings, tuple(findings), time.perf_counter() - begin, error)


def _inputs(generator: torch.Generator, mask: Tensor, scale: float | None) -> Inputs:
    q, k, v = 2 * torch.randn(3, B, H, T, D, generator=generator)
    return Inputs(q, k, v, mask, scale)


def _recognize(
    kernel: KernelAdapter, plain: Inputs, mask_style: str | None, layout: str | None
) -> KernelAdapter:
    """Find the layout and the meaning of the mask with which the kernel is right, if any."""
    if mask_style not in (None, *MASK_STYLES):
        raise BadInput(f"mask_style = {mask_style} must be {', '.join(MASK_STYLES)} or None")
    if layout not in (None, *LAYOUTS):
        raise BadInput(f"layout = {layout} must be one of {', '.join(LAYOUTS)}, or None")
    unknown = "mask" in kernel.names and mask_style is None
    styles = tuple(MASK_STYLES) if unknown else (mask_style or "attend",)
    works: list[KernelAdapter] = []
    reasons = []
    for shape, style in product((layout,) if layout else LAYOUTS, styles):
        if works and shape.count(",") != works[0].layout.count(","):
            break  # a function of four axes can be right by chance with fewer
        tried = replace(kernel, layout=shape, mask_style=style)
        try:
            y = tried(plain)
        except Exception as error:  # a kernel may raise anything
            reasons.append(first_line(error, with_class=not isinstance(error, BadInput)))
            continue
        if _error(y, plain.reference()) <= 1e-4:
            return tried
        works.append(tried)
    if not works:
        raise BadInput(f"the kernel fails on tensors {layout or LAYOUTS[0]}: {reasons[0]}")
    return works[0]


def _examine(kernel: KernelAdapter, plain: Inputs, rng: torch.Generator) -> Iterator[Finding]:
    first, again = kernel(plain), kernel(plain)
    if not torch.equal(first, again) and float((first - again).abs().max()) > 1e-4:
        headline = "the same inputs give different outputs the second time: dropout is left on"
        yield Finding("same twice", FAULT, headline, "dropout_on")
        return
    found = _compare(plain, first)
    yield from found
    if found[0].cause:
        return
    yield _stressed(kernel, plain)
    yield _backward(kernel, plain)
    yield _halved(kernel, plain)
    if "dropout" in kernel.names:
        yield _dropped(kernel, plain)
    if "mask" in kernel.names:
        yield _empty_row(kernel, plain)
        mask = torch.rand(T, T, generator=rng) < 0.5
        inputs = _inputs(rng, mask | torch.eye(T, dtype=torch.bool), plain.scale)
        yield from _compare(inputs, kernel(inputs), "another mask")
    if "scale" in kernel.names:
        inputs = _inputs(rng, plain.mask, None)
        try:
            y = kernel(inputs)
        except REFUSALS as error:
            yield skipped("its own scale", f"requires a scale ({first_line(error)})")
        else:
            yield from _compare(inputs, y, "its own scale")
    yield _grouped(kernel, plain, rng)


def _compare(inputs: Inputs, y: Tensor, detector: str = "reference") -> list[Finding]:
    """Is the output correct, or wrong in a known way, or in two?"""
    right = inputs.reference()
    error = _error(y, right)
    numbers = {"error": error}
    if error <= 1e-4:
        return [passed(detector, f"agrees with fp64 to {error:.1e}", numbers)]
    wrong = [h for h in range(y.shape[1]) if _error(y[:, h], right[:, h]) > 1e-4]
    for recipe in departures(2):
        if _error(y[:, wrong], inputs.reference(recipe)[:, wrong]) <= 1e-4:
            where = f"in heads {wrong} of {H} only: " if len(wrong) < H else ""
            made = [mistakes()[step] for step in recipe.items()]
            both = " and ".join(sentence for _, sentence in made)
            evidence = (f"the output agrees with a reference in which {both}",)
            return [
                Finding(detector, FAULT, where + sentence, cause, numbers, evidence)
                for cause, sentence in made
            ]
    if not bool(y.isfinite().all()):
        rows = (~y.isfinite()).any(-1)
        headline = f"{int(rows.sum())} of {rows.numel()} rows are not finite"
        return [Finding(detector, FAULT, headline, "not_finite", numbers)]
    if error <= 5e-2:
        headline = f"differs from fp64 by {error:.1e}, as half precision does"
        return [Finding(detector, SUSPICIOUS, headline, "imprecise", numbers)]
    gain = float((y.detach().double() * right).sum() / right.square().sum())
    if _error(y, gain * right) <= 1e-4:
        headline = f"the output is {gain:.3g} times what it should be: rows do not sum to 1"
        return [Finding(detector, FAULT, headline, "row_sums", numbers)]
    near = {step: _error(y, inputs.reference(dict([step]))) for step in mistakes()}
    closest = min(near, key=lambda step: near[step])
    headline = f"differs from fp64 by {error:.2g} of its standard deviation, by an unknown mistake"
    evidence = (f"closest: {mistakes()[closest][1]}, off by {near[closest]:.2g}",)
    return [Finding(detector, FAULT, headline, "wrong", numbers, evidence)]


def _error(y: Tensor, reference: Tensor) -> float:
    """The largest difference relative to the standard deviation, infinite if y is not finite."""
    asked = reference.isfinite()
    y = y.detach().double()[asked]
    if not bool(y.isfinite().all()) or not asked.any():
        return math.inf
    right = reference[asked]
    return float((y - right).abs().max() / (right.std() if right.std() > 0 else 1.0))


def _stressed(kernel: KernelAdapter, plain: Inputs) -> Finding:
    """Does the mask hold under scores of 2e5, without overflow?"""
    factor = 2e5 / float((plain.q @ plain.k.mT).abs().max() * plain.factor)
    strong = replace(plain, q=plain.q * factor)
    y = kernel(strong)
    if not bool(y.isfinite().all()):
        return Finding("stress", FAULT, "scores of 2e5 give NaN or infinity", "overflow")
    if _error(y, strong.reference()) <= 1e-3:
        return passed("stress", "the mask holds under scores of 2e5")
    for fill in (-1e2, -1e3, -1e4, -3e4, -65504.0, -1e5):
        if _error(y, strong.reference({"mask": "finite"}, fill)) <= 1e-3:
            headline = f"blocked scores are {fill:g}, a finite number that scores can exceed"
            return Finding("stress", FAULT, headline, "finite_fill")
    headline = "under scores of 2e5 the output differs from the reference"
    return Finding("stress", SUSPICIOUS, headline, "stress")


def _backward(kernel: KernelAdapter, plain: Inputs) -> Finding:
    """Do the gradients agree with the reference?"""
    exact = [x.double().requires_grad_() for x in (plain.q, plain.k, plain.v)]
    right = replace(plain, q=exact[0], k=exact[1], v=exact[2]).reference()
    given = [x.clone().requires_grad_() for x in (plain.q, plain.k, plain.v)]
    y = kernel(replace(plain, q=given[0], k=given[1], v=given[2]))
    if not y.requires_grad:
        return skipped("backward", "the output has no gradient")
    weights = torch.linspace(-1, 1, y.numel()).reshape(y.shape)
    slopes = torch.autograd.grad((y * weights).sum(), given, materialize_grads=True)
    expected = torch.autograd.grad((right * weights.double()).sum(), exact)
    errors = {n: _error(g, e) for n, g, e in zip("qkv", slopes, expected, strict=True)}
    worst = max(errors, key=lambda name: errors[name])
    if errors[worst] <= 1e-3:
        return passed("backward", "gradients agree with fp64", errors)
    headline = f"the gradient of {worst} is off by {errors[worst]:.2g} of its standard deviation"
    return Finding("backward", FAULT, headline, "wrong", errors)


def _halved(kernel: KernelAdapter, plain: Inputs) -> Finding:
    """Are scores and softmax computed in fp32 for bf16 inputs with large scores?"""
    q, k, v = (x.to(torch.bfloat16) for x in (8 * plain.q, plain.k, plain.v))
    inputs = replace(plain, q=q, k=k, v=v)
    try:
        off = _error(kernel(inputs), inputs.reference())
    except REFUSALS as error:
        return skipped("precision", f"does not take bf16: {first_line(error)}")
    numbers = {"error in bf16": off}
    if off <= 5e-2:
        return passed("precision", f"off by {off:.1e} in bf16", numbers)
    headline = f"in bf16 with large scores the output is off by {off:.2g} of its std"
    return Finding("precision", SUSPICIOUS, headline, "low_precision", numbers)


def _empty_row(kernel: KernelAdapter, plain: Inputs) -> Finding:
    """Does a query without keys change the output of other queries?"""
    name, mask = "empty row", plain.mask.clone()
    mask[3] = False
    inputs = replace(plain, mask=mask)
    try:
        y = kernel(inputs)
    except REFUSALS as error:
        return passed(name, f"a query without keys is refused: {first_line(error)}")
    others = torch.arange(T) != 3
    if _error(y[:, :, others], inputs.reference()[:, :, others]) > 1e-4:
        headline = "a query without keys changes the output of others"
        return Finding(name, FAULT, headline, "empty_row")
    row = y[:, :, 3]
    what = "NaN" if row.isnan().any() else "nonzero values" if row.any() else "zeros"
    return passed(name, f"a query without keys gets {what}")


def _dropped(kernel: KernelAdapter, plain: Inputs) -> Finding:
    """Is the expected output under dropout the output without?"""
    torch.manual_seed(0)
    n, y = 300, kernel(plain).detach().double()
    drawn = torch.stack([kernel(plain, dropout=0.3) for _ in range(n)]).double()
    spread = drawn.std(0)
    if not bool(spread.any()):
        return Finding("dropout", SUSPICIOUS, "dropout has no effect", "dropout_ignored")
    off = float(((drawn.mean(0) - y) / (spread / n**0.5 + 1e-6)).square().mean().sqrt())
    numbers = {"error in standard errors": off}
    if off < 2:  # 1 if the expectation is right
        return passed("dropout", "dropout keeps the expected output", numbers)
    headline = f"with dropout, the mean output is off by {off:.1f} standard errors"
    return Finding("dropout", FAULT, headline, "dropout_scale", numbers)


def _grouped(kernel: KernelAdapter, plain: Inputs, generator: torch.Generator) -> Finding:
    """Are fewer key-value heads than query heads expanded in the right order?"""
    name = "grouped heads"
    q = torch.randn(B, 6, T, D, generator=generator)
    k, v = torch.randn(2, B, 3, T, D, generator=generator)
    try:
        y = kernel(replace(plain, q=q, k=k, v=v))
    except REFUSALS as error:
        reason = "takes only equal numbers of query and key-value heads"
        return skipped(name, f"{reason} ({first_line(error)})")
    repeated, tiled = (
        replace(plain, q=q, k=k[:, heads], v=v[:, heads]).reference()
        for heads in ([0, 0, 1, 1, 2, 2], [0, 1, 2, 0, 1, 2])
    )
    if _error(y, repeated) <= 1e-4:
        return passed(name, "query head h uses key-value head h // 2 of 6 and 3")
    if _error(y, tiled) <= 1e-4:
        headline = "query head h uses key-value head h mod 3: they were tiled, not repeated"
        return Finding(name, FAULT, headline, "head_order")
    return Finding(name, FAULT, "grouped heads give a wrong output", "wrong")
