"""Watch the attention inside any torch model, whoever wrote it, by watching its operations.

A dispatch mode sees every matrix product. One that makes T x T numbers from two (T, D) operands
makes scores; the next one that takes what became of them mixes values. In between lie scale, mask
and softmax, however they are spelt. Scores that are no product, additive ones say, are known by
the softmax of T x T numbers. Fused kernels are seen with their arguments.

Letters: N heads (times batch, which is 1 here), T time, D channels of a head.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from attnlab.checkup.attention_calls import AttentionCall, flat, written_out

aten = torch.ops.aten
_PRODUCTS = {aten.bmm.default, aten.mm.default}
_SOFTMAXES = {aten._softmax.default, aten._safe_softmax.default}
_TIMES = {aten.mul.Tensor, aten.mul.Scalar, aten.mul_.Tensor, aten.mul_.Scalar}
_BY = {aten.div.Tensor, aten.div.Scalar, aten.div_.Tensor, aten.div_.Scalar}
# What a factor of queries, keys or scores survives. After a matrix product it is forgotten.
_CARRY = {
    aten.clone, aten._to_copy, aten.expand, aten.view, aten._unsafe_view, aten.permute, aten.add,
    aten.transpose, aten.cat, aten.neg, aten.sub, aten.mul, aten.index, aten.slice, aten.add_,
    aten.masked_fill, aten.masked_fill_, aten.where, aten.tanh, aten.contiguous, aten.unsqueeze,
    aten.squeeze, aten.select, aten.rsub, aten.stack, aten.copy_, aten.t, aten.alias,
}  # fmt: skip


class Watch(TorchDispatchMode):
    """Record every attention of one forward pass over one sequence of T tokens.

    Args:
        T: length of the sequence; unlike every width of the model, or products are mistaken.
        boost: scores are multiplied by this, as larger query and key weights would do.
        at: which products (by their number in the pass) make scores; needed to boost.
    """

    def __init__(self, T: int, boost: float = 1.0, at: frozenset[int] = frozenset()) -> None:
        super().__init__()
        self.T = T
        self.boost = boost
        self.at = at
        self.calls: list[AttentionCall] = []
        self.numbers: list[int] = []  # of the product that made each call's scores, 0 for none
        self.module = ""
        self._count = 0
        self._owner: dict[int, int] = {}  # data pointer -> call whose scores it stems from
        self._squares: dict[int, Tensor] = {}  # data pointer -> first T x T numbers behind it
        self._factors: dict[int, list[float]] = {}
        self._alive: list[Tensor] = []  # so that no pointer is used twice

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or the first operation imports torch's compiler, for seconds

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        given = dict(kwargs or {})
        if func in _PRODUCTS or func is aten.baddbmm.default:
            return self._product(func, args, given)
        if "scaled_dot_product" in str(func) and "backward" not in str(func):
            return self._fused(func, args, given)
        pointers = [a.data_ptr() for a in _tensors(args)]
        out = func(*args, **given)
        if isinstance(out, Tensor):
            self._follow(func, args, pointers, out)
        return out

    def _product(self, func: Callable[..., Tensor], args: tuple, given: dict) -> Tensor:
        self._count += 1
        *bias, a, b = args
        n = self._count
        if n in self.at:
            return func(*bias, a * self.boost, b, **given)
        out = func(*args, **given)
        mixed = self._mixed_by(a, b) is not None
        square = out.shape[-2:] == (self.T, self.T) and a.shape[-1] != self.T
        if square and not mixed and self.boost == 1.0:
            raw = a @ b if bias else out  # a mask or bias that is added at once is no score
            self._begin(a, b, raw, out, given.get("alpha", 1), n)
        return out

    def _begin(self, a: Tensor, b: Tensor, raw: Tensor, out: Tensor, alpha: float, n: int) -> None:
        before = [*self._factors.get(a.data_ptr(), []), *self._factors.get(b.data_ptr(), [])]
        factors = before if alpha == 1 else [*before, float(alpha)]
        self._owner[out.data_ptr()] = len(self.calls)
        self._factors[out.data_ptr()] = factors
        self._alive.append(out)
        call = AttentionCall(self.module, flat(a), flat(b).mT, flat(raw), factors=list(factors))
        call.scale_before = math.prod(before)
        self.calls.append(call)
        self.numbers.append(n)

    def _is_square(self, x: Tensor) -> bool:
        return x.shape[-2:] == (self.T, self.T) and x.is_floating_point() and self.boost == 1.0

    def _begin_without_product(self, masked: Tensor) -> int:
        """A call whose scores are known by their softmax alone; returns its number."""
        raw = self._squares.get(masked.data_ptr(), masked)
        raw = (raw if raw.shape == masked.shape else masked).detach().clone()
        self.calls.append(AttentionCall(self.module, None, None, flat(raw)))
        self.numbers.append(0)
        return len(self.calls) - 1

    def _mixed_by(self, a: Tensor, b: Tensor) -> AttentionCall | None:
        """If an operand stems from scores, this product averages values: keep both."""
        for pattern, values in ((a, b), (flat(b).mT, flat(a).mT)):
            call = self._stems_from(pattern if pattern is a else b)
            if call is None or pattern.shape[-2] != self.T:
                continue
            if call.pattern is None:
                call.pattern = flat(pattern).detach().clone()
                call.values = flat(values).detach().clone()
            return call
        return None

    def _stems_from(self, tensor: Tensor) -> AttentionCall | None:
        number = self._owner.get(tensor.data_ptr())
        return None if number is None else self.calls[number]

    def _follow(
        self, func: torch._ops.OpOverload, args: tuple, pointers: list[int], out: Tensor
    ) -> None:
        """Pass on where a tensor stems from, and what it was multiplied by."""
        self._alive.append(out)
        new = out.data_ptr()
        owners = [self._owner[p] for p in pointers if p in self._owner]
        if not owners and func in _SOFTMAXES and self._is_square(args[0]):
            owners = [self._begin_without_product(args[0])]
        elif not owners and self._is_square(out):
            behind = (self._squares[p] for p in pointers if p in self._squares)
            self._squares[new] = next(behind, out)
        call = self.calls[owners[0]] if owners else None
        if call is not None:
            self._note(call, func, args, out)
            if out.numel() >= 0.9 * call.raw.numel():  # sums and maxima are no scores
                self._owner[new] = owners[0]
        known = [self._factors[p] for p in pointers if p in self._factors]
        base = known[0] if known else []
        number = _scalar(args[1]) if len(args) > 1 else None
        if func in _TIMES | _BY and number is not None:
            self._factors[new] = [*base, 1 / number if func in _BY and number else number]
        elif known and func.overloadpacket in _CARRY:
            self._factors[new] = base
        if call is not None and call.masked is None and new in self._factors:
            call.factors = list(self._factors[new])

    def _note(
        self,
        call: AttentionCall,
        func: torch._ops.OpOverload,
        args: tuple,
        out: Tensor,
    ) -> None:
        """Keep the softmax's two ends, whether it is one operation or written by hand."""
        begins = func in _SOFTMAXES or func.overloadpacket in (aten.amax, aten.exp, aten.max)
        if begins and call.masked is None:
            call.masked = args[0].detach().clone()
            call.factors = list(self._factors.get(args[0].data_ptr(), call.factors))
            axis = args[1] if len(args) > 1 else None
            axis = axis[0] if isinstance(axis, list) and axis else axis
            call.axis = axis - args[0].ndim if isinstance(axis, int) and axis >= 0 else None
            call.axis = axis if isinstance(axis, int) and axis < 0 else call.axis
        by_hand = call.masked is not None and func is aten.div.Tensor
        if (func in _SOFTMAXES or by_hand) and call.softened is None:
            call.softened = out.detach().clone()

    def _fused(self, func: torch._ops.OpOverload, args: tuple, given: dict) -> object:
        names = [argument.name for argument in func._schema.arguments]
        values = {**dict(zip(names, args, strict=False)), **given}
        self._count += 1
        n = self._count
        if n in self.at:
            return func(args[0] * self.boost, *args[1:], **given)
        out = func(*args, **given)
        # Keys that are not the tokens, of another text or added to them, make no T x T pattern.
        square = values["query"].shape[-2] == values["key"].shape[-2] == self.T
        if self.boost == 1.0 and square:
            earlier = [f for x in args[:2] for f in self._factors.get(x.data_ptr(), [])]
            self.calls.append(written_out(self.module, str(func), values, earlier))
            self.numbers.append(n)
        return out


def watch(module: nn.Module, forward: Callable[[], object], mode: Watch) -> list[AttentionCall]:
    """Run a forward pass under a watch, with the names of the running modules known.

    Gradients are enabled, which keeps PyTorch's modules off the kernels that hide everything.
    """
    stack: list[str] = []

    def enter(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: object) -> None:
            stack.append(name)
            mode.module = name

        return hook

    def leave(_: nn.Module, inputs: object, output: object) -> None:
        stack.pop()
        mode.module = stack[-1] if stack else ""

    handles = []
    for name, part in module.named_modules():
        handles.append(part.register_forward_pre_hook(enter(name)))
        handles.append(part.register_forward_hook(leave))
    try:
        with torch.enable_grad(), mode:
            forward()
    finally:
        for handle in handles:
            handle.remove()
    return [call for call in mode.calls if call.pattern is not None]


def _tensors(args: tuple) -> list[Tensor]:
    flat = [item for a in args for item in (a if isinstance(a, (list, tuple)) else [a])]
    return [a for a in flat if isinstance(a, Tensor)]


def _scalar(value: object) -> float | None:
    """A number, or a tensor that holds just one; None for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, Tensor) and value.ndim == 0 and value.is_floating_point():
        return float(value.detach())
    return None
