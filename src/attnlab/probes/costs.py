"""What the attention of a model costs: parameters, FLOPs, and numbers in the cache."""

from collections.abc import Iterable
from copy import deepcopy
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from attnlab.attention.cache import KVCache
from attnlab.attention.layer import Attention
from attnlab.attention.properties import properties_of
from attnlab.model import GPT
from attnlab.probes.capture import attention_layers, called, extended, invented_memo
from attnlab.probes.layer_check import by_user

aten = torch.ops.aten
# Operators that create, copy or move numbers.
MOVES = set(
    "_to_copy _unsafe_view arange cat clone constant_pad_nd eye flip gather lift_fresh".split()
    + "masked_fill_ new_zeros ones ones_like promote_types scalar_tensor tril triu".split()
    + "zeros zeros_like".split()
)


def costs(net: GPT, T: int | None = None) -> dict[str, Any]:
    """What all attention layers of a GPT cost together at length T, by default its `block_size`.

    FLOPs are those of a forward pass for each position. They count matrix products only, two for
    each multiplication, as torch.utils.flop_counter does. The causal mask is not subtracted, as is
    usual (Chowdhery et al. 2022, appendix B): a query has T keys, or those of its window. Returns

    - "length": T,
    - "parameters": those of the attention layers,
    - "flops": of the algorithm, by `Attention.flops`; None if a layer has no formula,
    - "flops_counted": of this implementation, counted on the CPU,
    - "not_counted": operators that it does not count; elementwise ones are never counted,
    - "cached": how many numbers the caches hold after T positions, or the states of kernels that
      declare one, such as linear; None if a layer has no cache.
    """
    T = net.block_size if T is None else T
    if not 1 <= T <= net.block_size:
        raise ValueError(f"T = {T} must be from 1 to block_size = {net.block_size}")
    layers = attention_layers(net)
    x = torch.zeros(1, T, net.wte.embedding_dim)
    copies = [deepcopy(layer).to("cpu", x.dtype).eval() for layer in layers]
    counted, operators = zip(*(_counted(layer, x) for layer in copies), strict=True)
    return {
        "length": T,
        "parameters": sum(p.numel() for layer in layers for p in layer.parameters()),
        "flops": _sum(_flops(layer, T) for layer in copies),
        "flops_counted": round(sum(counted) / T),
        "not_counted": ", ".join(sorted(set().union(*operators))),
        "cached": _sum(_cached(layer, x) for layer in copies),
    }


def _sum(parts: Iterable[int | None]) -> int | None:
    known = list(parts)
    return None if None in known else sum(known)  # type: ignore[arg-type]


def _flops(layer: nn.Module, T: int) -> int | None:
    """Those of the layer's formula; the formula of attnlab's classes is not that of a user's."""
    if not isinstance(layer, Attention):
        return None
    owner = next(c for c in type(layer).__mro__ if vars(c).keys() & {"flops", "mix_flops"})
    inherited = owner.__module__.partition(".")[0] == "attnlab"
    return None if inherited and by_user(layer) else layer.flops(T)


def _cached(layer: nn.Module, x: Tensor) -> int | None:
    """The numbers in the cache after x (1, T, C), or in the state that could take its place."""
    if not (isinstance(layer, Attention) and layer.cacheable):
        return None
    cache = KVCache(x.shape[1])
    with torch.no_grad():
        extended(layer, x, cache, invented_memo(layer, x))
    declared = properties_of(vars(layer).get("kernel"))
    windowed = vars(layer).get("window") is not None  # old keys leave a window, but not a state
    if declared is None or declared.state is None or windowed or by_user(layer):
        return cache.numbers()
    carried = sum(part.numel() for part in cache.carried.values())
    return carried + layer.n_kv_head * declared.state(layer.head_size)


def _counted(layer: nn.Module, x: Tensor) -> tuple[int, set[str]]:
    """The FLOPs of a call, and the names of operators that are not counted."""
    # Gradients are on: without them, nn.MultiheadAttention is one operator, and FlexAttention has
    # a kernel of its own.
    memo = invented_memo(layer, x)
    formulas = {
        aten._scaled_dot_product_flash_attention_for_cpu: _sdpa,
        aten.linalg_solve_triangular: _solve,
    }
    called(layer, x, memo)  # masks and tables are made once
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter, _Seen() as seen:
        called(layer, x, memo)
    others = (op for op in seen.operators if op._overloadpacket not in counter.flop_registry)
    names = {
        op._overloadpacket.__name__
        for op in others
        if torch.Tag.pointwise not in op.tags and not op.is_view
    }
    return counter.get_total_flops(), {name.lstrip("_") for name in names - MOVES}


def _sdpa(
    q: Any, k: Any, v: Any, dropout: float = 0.0, is_causal: bool = False, *, out_shape: Any,
    attn_mask: Any = None, scale: float | None = None,
) -> int:  # fmt: skip
    """The operator with the shapes of tensors in place of the tensors, as `_solve`."""
    flops: int = sdpa_flop_count(q, k, v)
    return flops


def _solve(a: Any, b: Any, *, upper: bool, unitriangular: bool = False, out_shape: Any) -> int:
    """A triangular system (..., t, t) for right-hand sides (..., t, E), with ones on the diagonal:
    two for each multiplication by an entry below it."""
    *batch, t, E = b
    return prod(batch) * t * (t - 1) * E


class _Seen(TorchDispatchMode):
    """Records the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators.add(func)
        return func(*args, **(kwargs or {}))
