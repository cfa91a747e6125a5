"""Compare a kernel with attention in fp64 and, if it differs, with common mistakes.

Letters: B batch, H heads, T time, D channels of a head.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from .outcomes import REFUSALS, CannotCheck, CheckFailed

Kernel = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # q, k, v, mask -> (B, H, T, D)
B, H, T, D = 2, 3, 11, 5  # distinct primes, so that a wrong axis cannot hide
FILLS = (-1e2, -1e3, -1e4, -3e4, -65504.0, -1e5)


def reference(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *, scale: float | None = None,
    fill: float = -math.inf, axis: int = -1,
) -> Tensor:  # fmt: skip
    """Attention in fp64, (B, H, T, D); mask (T, T) bool, True = may attend.

    Mistakes: another scale, another fill, or a softmax over another axis.
    """
    q, k, v = q.double(), k.double(), v.double()
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    return scores.masked_fill(~mask, fill).softmax(axis) @ v


def mistakes(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """What is wrong, and the output that it gives."""
    of, every = partial(reference, q, k, v), torch.ones_like(mask)
    scores = q.double() @ k.double().mT * D**-0.5
    a, b, c = (x.transpose(1, 2).reshape(B, H, T, D) for x in (q, k, v))
    split = reference(a, b, c, mask)
    merged, neither = (y.reshape(B, T, H, D).transpose(1, 2) for y in (of(mask), split))
    return {
        "scores are not scaled by 1/sqrt(D)": of(mask, scale=1.0),
        "scores are scaled by 1/D, not by 1/sqrt(D)": of(mask, scale=1 / D),
        "scores are multiplied by sqrt(D), not by 1/sqrt(D)": of(mask, scale=D**0.5),
        "scores are scaled by the width of all heads": of(mask, scale=(H * D) ** -0.5),
        "no mask is applied": of(every),
        "the mask's polarity is inverted: True = may attend": of(~mask),
        "the mask is transposed: the future is visible": of(mask.mT),
        "a query sees one key ahead: diagonal off by one": of(every.tril(1)),
        "a query does not see itself: diagonal off by one": of(every.tril(-1)),
        "the given mask is ignored for a causal one": of(every.tril()),
        "blocked scores become 0, and keep a weight of e^0": of(mask, fill=0.0),
        "the mask is applied after the softmax": scores.softmax(-1) * mask @ v.double(),
        "the mask is added as 0 and 1": (scores + mask).softmax(-1) @ v.double(),
        "there is no softmax": scores.masked_fill(~mask, 0.0) @ v.double(),
        "the softmax runs over the queries": of(mask, fill=-1e9, axis=-2),
        "the softmax runs over the heads": of(mask, fill=-1e9, axis=1),
        "the softmax runs over the batch": of(mask, fill=-1e9, axis=0),
        "heads are merged without transposing": merged,
        "heads are split without transposing": split,
        "heads are split and merged without transposing": neither,
        **{f"blocked scores are {x:g}, which scores can exceed": of(mask, fill=x) for x in FILLS},
        "queries and keys are exchanged": reference(k, q, v, mask),
        "keys are averaged instead of values": reference(q, k, k, mask),
    }


def assert_kernel_equal(kernel: Kernel, *, causal_only: bool = False) -> str:
    """Assert that a kernel computes attention and its gradients, for any mask and large scores.

    Args:
        kernel: from q, k, v (B, H, T, D) and a mask (T, T) bool, True = may attend, to the output;
            such as `lambda q, k, v, mask: mine(q, k, v, attn_mask=~mask)`.
        causal_only: whether it has a causal mask of its own, and no other is tried.

    Raises:
        CheckFailed: the message names the mistake that gives exactly this output, if one does.
        CannotCheck: the kernel cannot be called, or returns another shape.
    """
    __tracebackhide__ = True
    rng = torch.Generator().manual_seed(0)
    q, k, v = 2 * torch.randn(3, B, H, T, D, generator=rng)
    tril = torch.ones(T, T, dtype=torch.bool).tril()
    try:
        y, again = kernel(q, k, v, tril), kernel(q, k, v, tril)
    except Exception as error:  # a kernel may raise anything
        raise CannotCheck(f"the kernel fails on {(B, H, T, D)}: {error!r}") from error
    if y.shape != q.shape:
        raise CannotCheck(f"the kernel returns {tuple(y.shape)}, not {tuple(q.shape)}")
    if error_of(again, y.double()) > 1e-4:
        raise CheckFailed("the same inputs give other outputs the second time: is dropout on?")
    _compare(y, q, k, v, tril)
    mask = (torch.rand(T, T, generator=rng) < 0.5) | torch.eye(T, dtype=torch.bool)
    if not causal_only:
        _compare(kernel(q, k, v, mask), q, k, v, mask)
        empty = tril.clone()
        empty[3] = False
        if error_of(kernel(q, k, v, empty), reference(q, k, v, empty)) > 1e-4:
            raise CheckFailed("a query without keys changes the outputs of others")
    large = 1e6 * D**0.5 / float((q @ k.mT).abs().max()) * q
    for sign in (1, -1):
        _compare(kernel(sign * large, k, v, tril), sign * large, k, v, tril, "scores of 1e6: ")
    _gradients(kernel, q, k, v, tril)
    return "the kernel and its gradients agree with fp64" + _grouped(kernel, v, tril, rng)


def _compare(y: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, when: str = "") -> None:
    right = reference(q, k, v, mask)
    limit = 1e-3 if when else 1e-4
    if (error := error_of(y, right)) <= limit:
        return
    wrong = [h for h in range(H) if error_of(y[:, h], right[:, h]) > 1e-4]
    where = f"in heads {wrong} only, " if len(wrong) < H else ""
    for said, output in mistakes(q, k, v, mask).items():
        if error_of(y[:, wrong], output[:, wrong]) <= limit:
            raise CheckFailed(f"{when}{where}{said}")
    many = "not finite" if not bool(y.isfinite().all()) else f"off by {error:.2g} of its std"
    raise CheckFailed(f"{when}{where}the output is {many}, by an unknown mistake")


def error_of(y: Tensor, right: Tensor) -> float:
    """The largest difference relative to the standard deviation, where the right result is finite;
    infinite if y is not finite there."""
    y, right = y.detach().double()[right.isfinite()], right[right.isfinite()]
    return float((y - right).abs().max() / right.std()) if y.isfinite().all() else math.inf


def _gradients(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> None:
    given = [x.clone().requires_grad_() for x in (q, k, v)]
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    y = kernel(given[0], given[1], given[2], mask)
    right = reference(exact[0], exact[1], exact[2], mask)
    direction = torch.linspace(-1, 1, y.numel()).view(y.shape)
    found = torch.autograd.grad((y * direction).sum(), given, materialize_grads=True)
    expected = torch.autograd.grad((right * direction).sum(), exact)
    for name, a, b in zip("qkv", found, expected, strict=True):
        if (error := error_of(a, b)) > 1e-3:
            raise CheckFailed(f"the gradient of {name} is off by {error:.2g} of its std")


def _grouped(kernel: Kernel, v: Tensor, mask: Tensor, rng: torch.Generator) -> str:
    """Are fewer key-value heads repeated in the right order?"""
    q, k = torch.randn(2, B, 2 * H, T, D, generator=rng)
    try:
        y = kernel(q, k[:, :H], v, mask)
    except REFUSALS:
        return "; it refuses grouped heads"
    of = torch.arange(H).repeat_interleave(2)  # the key-value head of each query head
    tiled = torch.arange(H).repeat(2)
    if error_of(y, reference(q, k[:, tiled], v[:, tiled], mask)) <= 1e-4:
        raise CheckFailed("query head h uses key-value head h mod H_kv: tiled, not repeated")
    if error_of(y, reference(q, k[:, of], v[:, of], mask)) > 1e-4:
        raise CheckFailed("grouped key-value heads give a wrong output")
    return ", also with grouped heads"
