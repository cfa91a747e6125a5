"""Record the attention inside any torch model. Letters: N heads, T time, D head channels."""

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from attnlab.checkup.attention_calls import AttentionCall, Factor, Product, fused_call, merge_batch
from attnlab.checkup.model_adapter import ModelAdapter

aten = torch.ops.aten
Operation = torch._ops.OpOverload
_PRODUCTS = {aten.bmm.default, aten.mm.default, aten.baddbmm.default}
_SOFTMAXES = {aten._softmax.default, aten._safe_softmax.default}
_SOFTMAX_STARTS = {aten.amax, aten.max, aten.exp}  # of a softmax that is written out
_MULTIPLY = {aten.mul.Tensor, aten.mul.Scalar, aten.mul_.Tensor, aten.mul_.Scalar}
_DIVIDE = {aten.div.Tensor, aten.div.Scalar, aten.div_.Tensor, aten.div_.Scalar}
# Operations that keep the factor of queries, keys or scores. After a matrix product it is gone.
_KEEP_FACTORS = {
    aten.clone, aten._to_copy, aten.expand, aten.view, aten._unsafe_view, aten.permute, aten.add,
    aten.transpose, aten.cat, aten.neg, aten.sub, aten.mul, aten.index, aten.slice, aten.add_,
    aten.masked_fill, aten.masked_fill_, aten.where, aten.tanh, aten.contiguous, aten.unsqueeze,
    aten.squeeze, aten.select, aten.rsub, aten.stack, aten.copy_, aten.t, aten.alias,
}  # fmt: skip

_SHIFTS = {aten.add, aten.add_, aten.sub, aten.rsub}


class AttentionTracer(TorchDispatchMode):
    """Record every attention call of one forward pass over one sequence of T tokens.

    A matrix product that turns two (T, D) operands into T x T numbers computes scores; the next
    product with what became of them averages the values. In between lie the scale, the mask and
    the softmax, however they are written. Scores that are not a product, such as additive ones,
    are recognized by the softmax of T x T numbers. Fused kernels are seen with their arguments.
    Tensors are identified by their data pointer.

    Args:
        T: length of the sequence. It should differ from every width of the model, or other
            products can be mistaken for scores.
        boost: multiply scores by this, as larger query and key weights would.
        at: which products compute scores, by module and number in it; needed to boost them.
    """

    def __init__(self, T: int, boost: float = 1.0, at: frozenset[Product] = frozenset()) -> None:
        super().__init__()
        self.T = T
        self.boost = boost
        self.at = at
        self.weights: set[int] = set()  # data pointers of the storage of the model's parameters
        self.calls: list[AttentionCall] = []
        self.running: list[str] = []  # names of the modules, from the outermost in
        self._count: Counter[str] = Counter()  # of products, by module
        self._call_of: dict[int, AttentionCall] = {}  # the call that a tensor's numbers belong to
        self._first_square: dict[int, Tensor] = {}  # the first T x T tensor that led to it
        self._factors: dict[int, list[Factor]] = {}  # what it has been multiplied by
        self._alive: list[Tensor] = []  # keeps pointers from being used twice

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise the first operation imports torch's compiler, which takes seconds

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        given = dict(kwargs or {})
        if func in _PRODUCTS:
            return self._product(func, args, given)
        if "scaled_dot_product" in str(func) and "backward" not in str(func):
            return self._fused_kernel(func, args, given)
        if torch.Tag.nondeterministic_seeded in func.tags and isinstance(args[0], Tensor):
            call = self._call_of.get(args[0].data_ptr())
            if call is not None and call.masked is None:
                call.dropped = True
        out = func(*args, **given)
        if isinstance(out, Tensor):
            items = [item for a in args for item in (a if isinstance(a, (list, tuple)) else [a])]
            inputs = [item.data_ptr() for item in items if isinstance(item, Tensor)]
            self._alive.append(out)
            self._follow_call(func, args, inputs, out)
            self._keep_factors(func, args, inputs, out)
        return out

    def _product(self, func: Callable[..., Tensor], args: tuple, given: dict) -> Tensor:
        """A matrix product: it computes scores, averages values, or has no part in attention."""
        *bias, a, b = args
        product = self._next_product()
        if product in self.at:
            return func(*bias, a * self.boost, b, **given)
        out = func(*args, **given)
        of_weights = any(x.untyped_storage().data_ptr() in self.weights for x in (a, b))
        is_scores = self._is_square(out) and a.shape[-1] != self.T and not of_weights
        if self._averages_values(a, b) or not is_scores:
            return out
        before = self._factors_of(a, b)
        alpha = float(given.get("alpha", 1))
        factors = before if alpha == 1 else [*before, (product[0], alpha)]
        raw = a @ b if bias else out  # without a mask or a bias that is added in the same step
        # What follows may change the scores in place.
        q, k, raw = merge_batch(a), merge_batch(b).mT, merge_batch(raw).detach().clone()
        call = AttentionCall(product[0], q, k, raw, product, factors, before=len(before))
        self.calls.append(call)
        self._alive.append(out)
        self._call_of[out.data_ptr()] = call
        self._factors[out.data_ptr()] = factors
        return out

    def _fused_kernel(self, func: Operation, args: tuple, given: dict) -> object:
        product = self._next_product()
        if product in self.at:
            return func(args[0] * self.boost, *args[1:], **given)
        out = func(*args, **given)
        values = _named(func, args, given)
        # Keys of another text, or further keys, give no T x T pattern.
        square = values["query"].shape[-2] == values["key"].shape[-2] == self.T
        if square and self.boost == 1.0:
            self.calls.append(fused_call(product, values, self._factors_of(*args[:2])))
        return out

    def _factors_of(self, a: Tensor, b: Tensor) -> list[Factor]:
        return [*self._factors.get(a.data_ptr(), []), *self._factors.get(b.data_ptr(), [])]

    def _next_product(self) -> Product:
        """Products are counted by module: experts multiply only if a token needs them."""
        module = self.running[-1]
        self._count[module] += 1
        return module, self._count[module]

    def _is_square(self, x: Tensor) -> bool:
        """Whether a tensor may hold scores; none is recorded while scores are boosted."""
        return x.shape[-2:] == (self.T, self.T) and x.is_floating_point() and self.boost == 1.0

    def _averages_values(self, a: Tensor, b: Tensor) -> bool:
        """If an operand comes from scores, keep it as the pattern and the other as the values."""
        for source, pattern, values in ((a, a, b), (b, merge_batch(b).mT, merge_batch(a).mT)):
            call = self._call_of.get(source.data_ptr())
            if call is None or pattern.shape[-2] != self.T:
                continue
            if call.pattern is None:
                call.pattern = merge_batch(pattern).detach().clone()
                call.values = merge_batch(values).detach().clone()
            return True
        return False

    def _follow_call(self, func: Operation, args: tuple, inputs: list[int], out: Tensor) -> None:
        """Assign an operation's output to the attention call that its inputs belong to."""
        call = next((self._call_of[p] for p in inputs if p in self._call_of), None)
        if call is None and func in _SOFTMAXES and self._is_square(args[0]):
            # Its scores were not a product: the softmax shows that they are scores.
            raw = self._first_square.get(args[0].data_ptr(), args[0])
            raw = (raw if raw.shape == args[0].shape else args[0]).detach().clone()
            call = AttentionCall(self.running[-1], None, None, merge_batch(raw))
            self.calls.append(call)
        if call is None:
            if self._is_square(out):
                squares = (self._first_square[p] for p in inputs if p in self._first_square)
                self._first_square[out.data_ptr()] = next(squares, out)
            return
        # The softmax's input and output, whether it is one operation or written out.
        starts = func in _SOFTMAXES or func.overloadpacket in _SOFTMAX_STARTS
        if starts and call.masked is None:
            call.masked = args[0].detach().clone()
            call.factors = self._factors.get(args[0].data_ptr(), call.factors)
            call.axis = _axis_from_end(args)
        ends = func in _SOFTMAXES or func is aten.div.Tensor  # exp(x) / sum
        if ends and call.masked is not None and call.softened is None:
            call.softened = out.detach().clone()
        if out.numel() >= 0.9 * call.raw.numel():  # not the sums and maxima of scores
            self._call_of[out.data_ptr()] = call

    def _keep_factors(self, func: Operation, args: tuple, inputs: list[int], out: Tensor) -> None:
        """Keep what a tensor has been multiplied by, up to the softmax."""
        new = out.data_ptr()
        # Those of the scores come first, whatever the order of a sum of scores and a bias.
        ordered = sorted(inputs, key=lambda p: p not in self._call_of)
        known = [self._factors[p] for p in ordered if p in self._factors]
        number = _number(args[1]) if len(args) > 1 else None
        if number is not None and (func in _MULTIPLY or func in _DIVIDE):
            factor = 1 / number if func in _DIVIDE and number else number
            self._factors[new] = [*(known[0] if known else []), (self.running[-1], factor)]
        elif number is not None and func.overloadpacket in _SHIFTS:
            pass  # a x + 1 is not x scaled by a
        elif known and func.overloadpacket in _KEEP_FACTORS:
            self._factors[new] = known[0]
        call = next((self._call_of[p] for p in inputs if p in self._call_of), None)
        if call is not None and call.masked is None and new in self._factors:
            call.factors = self._factors[new]


class SeenOperations(TorchDispatchMode):
    """Collect the operations for which `wanted(operation, named arguments)` is true.

    Args:
        held: outputs that they return, one after the other, instead of their own.
    """

    def __init__(self, wanted: Callable[..., bool], held: Iterable[object] = ()) -> None:
        super().__init__()
        self.wanted = wanted
        self.names: set[str] = set()
        self.outputs: list[object] = []
        self._held = iter(held)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        if self.wanted(func, _named(func, args, kwargs or {})):
            self.names.add(str(func.overloadpacket).removeprefix("aten."))
            out = next(self._held, out)
            self.outputs.append(out)
        return out


def draws_random_numbers(func: Operation, given: dict[str, Any]) -> bool:
    """Whether an operation draws random numbers; a fused kernel does if dropout_p is not 0."""
    return torch.Tag.nondeterministic_seeded in func.tags and bool(given.get("dropout_p", 1))


def ranks_along(func: Operation, given: dict[str, Any], T: int) -> bool:
    """Whether an operation ranks numbers along an axis of size T."""
    ranks = func.overloadpacket in (aten.topk, aten.sort, aten.kthvalue)
    return ranks and given["self"].shape[given.get("dim", -1)] == T


def _named(func: Operation, args: tuple, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an operation by name."""
    names = [argument.name for argument in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **given}


def trace(adapter: ModelAdapter, ids: Tensor, tracer: AttentionTracer) -> Tensor:
    """The logits of a forward pass under a tracer."""
    names = {part: name for name, part in adapter.module.named_modules()}
    tracer.weights = {p.untyped_storage().data_ptr() for p in adapter.parameters()}

    def enter(part: nn.Module, _: object) -> None:
        tracer.running.append(names[part])

    def leave(part: nn.Module, _: object, output: object) -> None:
        tracer.running.pop()

    # Without gradients, PyTorch's own modules use kernels that hide everything.
    with ExitStack() as handles, torch.enable_grad(), tracer:
        for part in names:
            handles.enter_context(part.register_forward_pre_hook(enter))
            handles.enter_context(part.register_forward_hook(leave))
        return adapter.raw(ids)


def _axis_from_end(args: tuple) -> int | None:
    """The axis of a softmax or a maximum, counted from the end: -1 is the last."""
    axis = args[1] if len(args) > 1 else None
    axis = axis[0] if isinstance(axis, list) and axis else axis
    if not isinstance(axis, int):
        return None
    return axis - args[0].ndim if axis >= 0 else axis


def _number(value: object) -> float | None:
    """A number, or the entry of a tensor without axes; None for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, Tensor) and value.ndim == 0 and value.is_floating_point():
        return float(value.detach())
    return None
