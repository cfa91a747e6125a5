"""Compare a kernel with attention in fp64 and, if it differs, with common mistakes.

Letters: B batch, H heads, T time, D channels of a head.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from .outcomes import REFUSALS, CannotCheck, CheckFailed, as_assertion

GivenKernel = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # q, k, v, mask -> (B, H, T, D)
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
    attention = partial(reference, q, k, v)  # of a mask
    everything = torch.ones_like(mask)
    wrong = {
        "scores are not scaled by 1/sqrt(D)": attention(mask, scale=1.0),
        "scores are scaled by 1/D, not by 1/sqrt(D)": attention(mask, scale=1 / D),
        "scores are multiplied by sqrt(D), not by 1/sqrt(D)": attention(mask, scale=D**0.5),
        "scores are scaled by the width of all heads": attention(mask, scale=(H * D) ** -0.5),
        "no mask is applied": attention(everything),
        "the mask's polarity is inverted: True = may attend": attention(~mask),
        "the mask is transposed: the future is visible": attention(mask.mT),
        "a query sees one key ahead: diagonal off by one": attention(everything.tril(1)),
        "a query does not see itself: diagonal off by one": attention(everything.tril(-1)),
        "the given mask is ignored for a causal one": attention(everything.tril()),
        "blocked scores become 0, and keep a weight of e^0": attention(mask, fill=0.0),
    }
    scores = q.double() @ k.double().mT * D**-0.5
    wrong["the mask is applied after the softmax"] = scores.softmax(-1) * mask @ v.double()
    wrong["the mask is added as 0 and 1"] = (scores + mask).softmax(-1) @ v.double()
    wrong["there is no softmax"] = scores.masked_fill(~mask, 0.0) @ v.double()
    for name, axis in (("queries", -2), ("heads", 1), ("batch", 0)):
        # Not -inf: what is blocked in all heads would be NaN.
        wrong[f"the softmax runs over the {name}"] = attention(mask, fill=-1e9, axis=axis)
    wrong_q, wrong_k, wrong_v = (x.transpose(1, 2).reshape(B, H, T, D) for x in (q, k, v))
    of_wrong_heads = reference(wrong_q, wrong_k, wrong_v, mask)
    wrong["heads are merged without transposing"] = _merged_wrongly(attention(mask))
    wrong["heads are split without transposing"] = of_wrong_heads
    wrong["heads are split and merged without transposing"] = _merged_wrongly(of_wrong_heads)
    for fill in FILLS:
        said = f"blocked scores are {fill:g}, which scores can exceed"
        wrong[said] = attention(mask, fill=fill)
    if k.shape[1] > 1:
        first = reference(q, k[:, :1], v[:, :1], mask)
        wrong["the keys and values of head 0 are used"] = first
    wrong["queries and keys are exchanged"] = reference(k, q, v, mask)
    wrong["keys are averaged instead of values"] = reference(q, k, k, mask)
    return wrong


def _merged_wrongly(y: Tensor) -> Tensor:
    """(B, H, T, D), read as (B, T, H, D)."""
    return y.reshape(B, T, H, D).transpose(1, 2)


@as_assertion
def assert_kernel_equal(kernel: GivenKernel, *, causal_only: bool = False) -> str:
    """Assert that a kernel computes attention and its gradients, for any mask and large scores.

    Args:
        kernel: from q, k, v (B, H, T, D) and a mask (T, T) bool, True = may attend, to the output;
            such as `lambda q, k, v, mask: mine(q, k, v, attn_mask=~mask)`.
        causal_only: whether it has a causal mask of its own, and no other is tried.

    Raises:
        CheckFailed: the message names the mistake that gives exactly this output, if one does.
        CannotCheck: the kernel cannot be called, or returns another shape.
    """
    rng = torch.Generator().manual_seed(0)
    q, k, v = 2 * torch.randn(3, B, H, T, D, generator=rng)
    tril = torch.ones(T, T, dtype=torch.bool).tril()
    try:
        y = kernel(q, k, v, tril)
        again = kernel(q, k, v, tril)
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
    error = error_of(y, right)
    if error <= limit:
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
    judged = right.isfinite()
    off = y.detach().double()[judged] - right[judged]
    if not bool(off.isfinite().all()):
        return math.inf
    return float(off.abs().max() / right[judged].std())


def _gradients(kernel: GivenKernel, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> None:
    given = [x.clone().requires_grad_() for x in (q, k, v)]
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    y = kernel(given[0], given[1], given[2], mask)
    right = reference(exact[0], exact[1], exact[2], mask)
    direction = torch.linspace(-1, 1, y.numel()).view(y.shape)
    found = torch.autograd.grad((y * direction).sum(), given, materialize_grads=True)
    expected = torch.autograd.grad((right * direction).sum(), exact)
    for name, a, b in zip("qkv", found, expected, strict=True):
        error = error_of(a, b)
        if error > 1e-3:
            raise CheckFailed(f"the gradient of {name} is off by {error:.2g} of its std")


def _grouped(kernel: GivenKernel, v: Tensor, mask: Tensor, rng: torch.Generator) -> str:
    """What is said of fewer key-value heads; CheckFailed if they are repeated in a wrong order."""
    q, k = torch.randn(2, B, 2 * H, T, D, generator=rng)
    try:
        y = kernel(q, k[:, :H], v, mask)
    except REFUSALS:
        return "; it refuses grouped heads"
    repeated = torch.arange(H).repeat_interleave(2)  # the key-value head of each query head
    tiled = torch.arange(H).repeat(2)
    if error_of(y, reference(q, k[:, tiled], v[:, tiled], mask)) <= 1e-4:
        raise CheckFailed("query head h uses key-value head h mod H_kv: tiled, not repeated")
    if error_of(y, reference(q, k[:, repeated], v[:, repeated], mask)) > 1e-4:
        used = [_head_used(y[:, h], q[:, h : h + 1], k[:, :H], v, mask) for h in range(2 * H)]
        if None in used:
            raise CheckFailed("grouped key-value heads give a wrong output")
        raise CheckFailed(
            f"query heads 0 to {2 * H - 1} use the key-value heads {used}, not {repeated.tolist()}"
        )
    return ", also with grouped heads"


def _head_used(y: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> int | None:
    """The key-value head of k and v (B, H, T, D) that gives the output y (B, T, D) of one query
    head (B, 1, T, D); None if none does."""
    outputs = reference(q, k, v, mask)
    for head in range(k.shape[1]):
        if error_of(y, outputs[:, head]) <= 1e-4:
            return head
    return None
