"""Watch the attention inside any torch model, whoever wrote it, by watching its operations.

A dispatch mode sees every matrix product. One that makes T x T numbers from two (T, D) operands
makes scores; the next one that takes what became of them mixes values. In between lie scale, mask
and softmax, however they are spelt. Fused kernels are seen with their arguments.

Letters: N heads (times batch, which is 1 here), T time, D channels of a head.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

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


@dataclass
class AttentionCall:
    """One attention inside a model, as it was computed.

    Args:
        module: name of the innermost module that was running, "" at the top.
        queries, keys: (N, T, D), as they entered the product.
        raw: (N, T, T) scores as the product gave them.
        factors: numbers other than 1 that the scores were multiplied by, before or after.
        masked: the softmax's input in the shape it had, or None where no softmax op was seen.
        softened: the softmax's output.
        pattern: (N, T, T), what the values were averaged with; sums to 1 over the last axis.
        values: (N, T, E).
        fused: the kernel's name, or "" for one that was written out.
        scale_before: the part of the scale that queries or keys had got before the product.
        axis: the softmax's axis counted from the end, -1 for the keys; None where unseen.
    """

    module: str
    queries: Tensor
    keys: Tensor
    raw: Tensor
    factors: list[float] = field(default_factory=list)
    masked: Tensor | None = None
    softened: Tensor | None = None
    pattern: Tensor | None = None
    values: Tensor | None = None
    fused: str = ""
    scale_before: float = 1.0
    axis: int | None = None

    @property
    def scores(self) -> Tensor | None:
        """(N, T, T) fp64, the softmax's input; None where it was not seen, or has further keys."""
        if self.masked is None or self.masked.numel() != self.raw.numel():
            return None
        return self.masked.detach().double().reshape(self.raw.shape)

    @property
    def has_sink(self) -> bool:
        """Whether the softmax ran over one key more than there are, which takes its share."""
        n = self.raw.shape[0] * self.raw.shape[1]
        return self.masked is not None and self.masked.numel() == self.raw.numel() + n

    @property
    def scale(self) -> float:
        """The factor of the scores in all."""
        return math.prod(self.factors)


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
        self.numbers: list[int] = []  # of the product that made the scores of each call
        self.module = ""
        self._count = 0
        self._owner: dict[int, int] = {}  # data pointer -> call whose scores it stems from
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
        call = AttentionCall(self.module, _3d(a), _3d(b).mT, _3d(raw), factors=list(factors))
        call.scale_before = math.prod(before)
        self.calls.append(call)
        self.numbers.append(n)

    def _mixed_by(self, a: Tensor, b: Tensor) -> AttentionCall | None:
        """If an operand stems from scores, this product averages values: keep both."""
        for pattern, values in ((a, b), (_3d(b).mT, _3d(a).mT)):
            call = self._stems_from(pattern if pattern is a else b)
            if call is None or pattern.shape[-2] != self.T:
                continue
            if call.pattern is None:
                call.pattern = _3d(pattern).detach().clone()
                call.values = _3d(values).detach().clone()
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
        if self.boost == 1.0 and values["query"].shape[-2] == self.T:
            earlier = [f for x in args[:2] for f in self._factors.get(x.data_ptr(), [])]
            self.calls.append(_written_out(self.module, str(func), values, earlier))
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


def _written_out(
    module: str, name: str, values: dict[str, object], earlier: list[float]
) -> AttentionCall:
    """What a fused kernel was told, computed again in the open, in fp64."""
    q, k, v = (values[key].detach().double() for key in ("query", "key", "value"))  # type: ignore[attr-defined]
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    given = values.get("scale")
    scale = 1 / math.sqrt(q.shape[-1]) if given is None else float(given)  # type: ignore[arg-type]
    raw = q @ k.mT  # (B, N, T, T)
    masked = raw * scale
    bias = values.get("attn_mask", values.get("attn_bias"))
    if isinstance(bias, Tensor):
        masked = masked + bias.double()
    if values.get("is_causal"):
        blocked = torch.ones(masked.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        masked = masked.masked_fill(blocked, -math.inf)
    pattern = masked.softmax(-1)
    pattern = pattern.masked_fill((masked == -math.inf).all(-1, keepdim=True), 0.0)
    return AttentionCall(
        module,
        _3d(q),
        _3d(k),
        _3d(raw),
        factors=[*earlier, scale],
        masked=masked,
        softened=pattern,
        pattern=_3d(pattern),
        values=_3d(v),
        fused=name,
        scale_before=math.prod(earlier),
        axis=-1,
    )


def _3d(x: Tensor) -> Tensor:
    return x.reshape(-1, *x.shape[-2:])


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
