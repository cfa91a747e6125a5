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
LONGER_T = 131  # of a second length, for kernels that take the keys in tiles; a prime, too
FILLS = (-1e2, -1e3, -1e4, -3e4, -65504.0, -1e5)
# By which share of the standard deviation a right kernel in fp32 may be off.
ROUNDING = 1e-4
ROUNDING_OF_LARGE = 1e-3  # of gradients, and of outputs of scores of 1e6


def reference(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *, scale: float | None = None,
    fill: float = -math.inf, axis: int = -1,
) -> Tensor:  # fmt: skip
    """Attention in fp64, (B, H, T, D); mask (T, T) bool, True = may attend.

    Another scale than 1/sqrt(D), another fill of blocked scores, and a softmax over another axis
    than that of the keys are common mistakes.
    """
    q, k, v = q.double(), k.double(), v.double()
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    return scores.masked_fill(~mask, fill).softmax(axis) @ v


def mistakes(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """The outputs (B, H, T, D) of attention with common mistakes, by a phrase that says what is
    wrong."""
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
    """The heads y (B, H, T, D) as a merge without a transpose gives them: read as (B, T, H, D)."""
    return y.reshape(B, T, H, D).transpose(1, 2)


@as_assertion
def assert_kernel_equal(kernel: GivenKernel, *, causal_only: bool = False) -> str:
    """Assert that a kernel computes attention and its gradients, for any mask and large scores.

    Args:
        kernel: from q, k, v (B, H, T, D) and a mask (T, T) bool, True = may attend, to the output;
            such as `lambda q, k, v, mask: mine(q, k, v, attn_mask=~mask)`.
        causal_only: whether it has a causal mask of its own, and no other is tried.

    Returns:
        What was compared, in a sentence.

    Raises:
        CheckFailed: the message names the mistake that gives exactly this output, if one does.
        CannotCheck: the kernel cannot be called, or returns another shape.
    """

    def on_copies(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """The output of the kernel, which may write into what it gets."""
        return kernel(q.clone(), k.clone(), v.clone(), mask)

    rng = torch.Generator().manual_seed(0)
    q, k, v = 2 * torch.randn(3, B, H, T, D, generator=rng)
    tril = torch.ones(T, T, dtype=torch.bool).tril()
    try:
        y = on_copies(q, k, v, tril)
        again = on_copies(q, k, v, tril)
    except Exception as error:  # a kernel may raise anything
        raise CannotCheck(f"the kernel fails on {(B, H, T, D)}: {error!r}") from error
    if y.shape != q.shape:
        raise CannotCheck(f"the kernel returns {tuple(y.shape)}, not {tuple(q.shape)}")
    if error_of(again, y.double()) > ROUNDING:
        raise CheckFailed("the same inputs give other outputs the second time: is dropout on?")
    _require_right(y, q, k, v, tril)
    mask = (torch.rand(T, T, generator=rng) < 0.5) | torch.eye(T, dtype=torch.bool)
    if not causal_only:
        _require_right(on_copies(q, k, v, mask), q, k, v, mask)
        without_keys = tril.clone()
        without_keys[3] = False  # of one query
        right = reference(q, k, v, without_keys)
        if error_of(on_copies(q, k, v, without_keys), right) > ROUNDING:
            raise CheckFailed("a query without keys changes the outputs of others")
    large = 1e6 * D**0.5 / float((q @ k.mT).abs().max()) * q  # the largest score is 1e6
    for sign in (1, -1):
        y = on_copies(sign * large, k, v, tril)
        _require_right(y, sign * large, k, v, tril, "scores of 1e6: ", ROUNDING_OF_LARGE)
    _require_right_gradients(on_copies, q, k, v, tril)
    lengths = _require_right_when_long(on_copies, rng)
    said = f"the kernel and its gradients agree with fp64, in texts of {lengths}"
    return said + _grouped(kernel, v, tril, rng)


def _require_right(
    y: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, when: str = "",
    limit: float = ROUNDING,
) -> None:  # fmt: skip
    """CheckFailed if the output y (B, H, T, D) of a kernel is off by more than a limit; the
    message begins with `when`, and names the wrong heads and the mistake that gives this output,
    if one does."""
    right = reference(q, k, v, mask)
    error = error_of(y, right)
    if error <= limit:
        return
    # The lower limit, for the std of a wrong head may be larger than that of all.
    wrong = [h for h in range(H) if error_of(y[:, h], right[:, h]) > ROUNDING]
    where = f"in heads {wrong} only, " if len(wrong) < H else ""
    for said, output in mistakes(q, k, v, mask).items():
        if error_of(y[:, wrong], output[:, wrong]) <= limit:
            raise CheckFailed(f"{when}{where}{said}")
    extent = "not finite" if not bool(y.isfinite().all()) else f"off by {error:.2g} of its std"
    raise CheckFailed(f"{when}{where}the output is {extent}, by an unknown mistake")


def _require_right_when_long(kernel: GivenKernel, rng: torch.Generator) -> str:
    """CheckFailed if a kernel that is right in texts of T is off in longer ones, with a causal
    mask. The lengths that were tried, in words."""
    q, k, v = 2 * torch.randn(3, B, H, LONGER_T, D, generator=rng)
    tril = torch.ones(LONGER_T, LONGER_T, dtype=torch.bool).tril()
    try:
        y = kernel(q, k, v, tril)
    except REFUSALS:
        return f"{T} (it refuses {LONGER_T})"
    right = reference(q, k, v, tril)
    error = error_of(y, right)
    if error > ROUNDING:
        wrong = [h for h in range(H) if error_of(y[:, h], right[:, h]) > ROUNDING]
        where = f"in heads {wrong} only, " if len(wrong) < H else ""
        raise CheckFailed(
            f"{where}the output is off by {error:.2g} of its std in texts of {LONGER_T}, not in "
            f"those of {T}: look for tiles, or a window"
        )
    return f"{T} and {LONGER_T}"


def error_of(y: Tensor, right: Tensor) -> float:
    """The largest difference of y from what is right, relative to its standard deviation; infinite
    if y is not finite. What is not finite in the right result is left out."""
    judged = right.isfinite()
    off = y.detach().double()[judged] - right[judged]
    if not bool(off.isfinite().all()):
        return math.inf
    return float(off.abs().max() / right[judged].std())


def _require_right_gradients(
    kernel: GivenKernel, q: Tensor, k: Tensor, v: Tensor, mask: Tensor
) -> None:
    """CheckFailed if the gradient of a weighted sum of a kernel's output by q, k or v is not that
    of attention in fp64."""
    in_fp32 = [x.clone().requires_grad_() for x in (q, k, v)]
    in_fp64 = [x.double().requires_grad_() for x in (q, k, v)]
    y = kernel(in_fp32[0], in_fp32[1], in_fp32[2], mask)
    right = reference(in_fp64[0], in_fp64[1], in_fp64[2], mask)
    weights = torch.linspace(-1, 1, y.numel()).view(y.shape)
    found = torch.autograd.grad((y * weights).sum(), in_fp32, materialize_grads=True)
    expected = torch.autograd.grad((right * weights).sum(), in_fp64)
    for name, a, b in zip("qkv", found, expected, strict=True):
        error = error_of(a, b)
        if error > ROUNDING_OF_LARGE:
            raise CheckFailed(f"the gradient of {name} is off by {error:.2g} of its std")


def _grouped(kernel: GivenKernel, v: Tensor, mask: Tensor, rng: torch.Generator) -> str:
    """Whether a kernel takes two query heads for each key-value head, as the end of a sentence;
    CheckFailed if it does, and query heads use wrong key-value heads."""
    q, k = torch.randn(2, B, 2 * H, T, D, generator=rng)
    try:
        y = kernel(q, k[:, :H], v, mask)
    except REFUSALS:
        return "; it refuses grouped heads"
    repeated = torch.arange(H).repeat_interleave(2)  # the key-value head of each query head
    tiled = torch.arange(H).repeat(2)
    if error_of(y, reference(q, k[:, tiled], v[:, tiled], mask)) <= ROUNDING:
        raise CheckFailed("query head h uses key-value head h mod H_kv: tiled, not repeated")
    if error_of(y, reference(q, k[:, repeated], v[:, repeated], mask)) > ROUNDING:
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
        if error_of(y, outputs[:, head]) <= ROUNDING:
            return head
    return None
