"""Whether a user's layer can be measured: its output must agree with its mask and pattern.

Letters: B batch, T time, C channels.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.attention.core import SelfAttention
from attnlab.attention.layer import HasMask, HasPattern, Memo, symbols_from, uses_memo
from attnlab.checkup import causal
from attnlab.checkup.models import CheckFailed, Subject, best_dtype, relative, state
from attnlab.errors import BadInput

LENGTH = 16  # positions, of which each is changed in turn


def check_layers(net: Any) -> None:
    """`check_layer` for every attention layer of a GPT; BadInput if one fails."""
    layers, C = [block.attn for block in net.blocks], net.wte.embedding_dim
    for number, layer in enumerate(layers):
        check_layer(
            layer,
            n_embd=C,
            block_size=net.block_size,
            vocab_size=net.vocab_size,
            before=layers[:number],
        )


def check_layer(
    layer: nn.Module,
    *,
    n_embd: int,
    block_size: int,
    vocab_size: int = 2,
    before: list[Any] | None = None,
) -> None:
    """Refuse a layer that reads what its mask blocks, or whose pattern is not that of its output.

    With noise on its weights, in evaluation mode and in training steps: the output at i may depend
    on j only if the mask of the layer lets it, or if it has none, if j is not later than i and has
    weight in its pattern, if it has one. If nothing may depend on later positions, the output of a
    prefix must be that in the whole. A `SelfAttention` must be proj(merge(pattern @ v, x, v)).

    Args:
        layer: called as layer(x), or layer(x, memo) where it declares `uses_memo`.
        n_embd, block_size: C, and the largest T.
        vocab_size: the number of symbols, for a layer that reads memo["ids"].
        before: the layers before it in a model, which fill the memo.

    Raises BadInput with the first requirement that fails.
    """
    called = partial(_called, before or [], vocab_size)
    sample = torch.randn(8, block_size, n_embd, generator=torch.Generator().manual_seed(0))
    tried, T = Subject(layer, sample, called, rows=32), min(block_size, LENGTH)
    dtype = best_dtype(tried)
    at = next(layer.parameters(), torch.empty(0))
    changed = partial(state, layer, dtype=dtype, change=causal.with_noise)
    with changed(), torch.no_grad():
        short, long = (tried.draw(1, n).to(at.device, dtype or at.dtype) for n in (T, block_size))
        (allowed, which), (allowed_long, _) = (_allowed(layer, x, called) for x in (short, long))
    step = replace(tried, rows=1, seeded=True, grad=True)  # a training step
    for asked, when in ((tried, ""), (step, " in training mode")):
        with changed(training=bool(when)), torch.no_grad():
            pairs = _forbidden(asked, T, allowed) or _beyond(asked, long[0].cpu(), allowed_long)
            if pairs:
                i, j = pairs[0]
                raise BadInput(
                    f"{described(layer)}: its output at position {i} depends on position {j}"
                    f"{when}, which {which}; apply the mask, make `pattern` describe `forward`, "
                    "or train it knowingly with check_layer=false"
                )
            if not when and not bool(allowed_long.triu(1).any()):
                try:
                    causal.check_prefixes(tried)
                except CheckFailed as failed:
                    raise BadInput(f"{described(layer)}: {failed}") from failed
            if not when and isinstance(layer, SelfAttention):
                _check_pattern(layer, short, called)


def _called(
    before: list[Any], vocab_size: int, layer: Any, x: Tensor, name: str = "forward"
) -> Any:
    """A method of the layer, with a memo that the layers before it have filled from x."""
    memo: Memo = {"ids": symbols_from(x, vocab_size)}
    with torch.no_grad():
        for each in before:
            if uses_memo(each):
                each(x.to(next(each.parameters())), memo)
    memo = {key: y.to(x) if y.is_floating_point() else y for key, y in memo.items()}
    arguments = (x, memo) if uses_memo(layer) else (x,)
    return getattr(layer, name)(*arguments)


def _allowed(layer: Any, x: Tensor, called: Any) -> tuple[Tensor, str]:
    """(T, T) bool: which positions the outputs may depend on, and what is said of the others."""
    T = x.shape[1]
    causal_order = torch.ones(T, T, dtype=torch.bool).tril()
    if isinstance(layer, HasMask):
        mask = layer.mask(x)
        if mask.dtype != torch.bool:
            said = f"is {mask.dtype}; return bool, True = may attend"
            raise BadInput(f"the mask of {described(layer)} {said}")
        mask = mask.reshape(-1, T, T).any(0).cpu()
        if not mask.any(-1).all():
            query = int((~mask.any(-1)).nonzero()[0])
            said = f"leaves query {query} of {T} without keys; let every query attend to one"
            raise BadInput(f"the mask of {described(layer)} {said}")
        return mask, "its mask blocks"
    if isinstance(layer, HasPattern):
        pattern = called(layer, x, "pattern")
        if pattern.ndim != 4 or pattern.shape[2:] != (T, T):
            said = f"has the shape {tuple(pattern.shape)}; it must be (B, H, {T}, {T})"
            raise BadInput(f"the pattern of {described(layer)} {said}")
        weighed = (pattern != 0).flatten(0, 1).any(0).cpu()
        return causal_order & weighed, "comes later, or has no weight in its pattern"
    return causal_order, "comes later"


def _forbidden(tried: Subject, T: int, allowed: Tensor) -> list[list[int]]:
    """Pairs of T positions: an output and an input on which it depends though it must not."""
    moved = causal.dependence(tried, tried.draw(2, T))
    if not bool(moved.isfinite().all()):
        raise BadInput(f"the output of {described(tried.model)} is not finite for random inputs")
    wrong = (moved > tried.tolerance) & ~allowed & ~torch.eye(T, dtype=torch.bool)
    return wrong.nonzero().tolist()


def _beyond(tried: Subject, x: Tensor, allowed: Tensor) -> list[list[int]]:
    """x (T, C), allowed (T, T): an output and the first of the last inputs that change it, though
    it may depend on none of them."""
    cuts = causal.cuts_of(len(x))
    changed, later = causal.with_other_suffixes(tried, x, cuts)
    moved = tried.moved(x, changed)
    may = torch.stack([allowed[:, cut:].any(1) for cut in cuts]) | later
    wrong = (moved > tried.tolerance * moved.max()) & ~may
    return [[t, cuts[n]] for n, t in wrong.nonzero().tolist()]


def _check_pattern(layer: SelfAttention, x: Tensor, called: Any) -> None:
    v = called(layer, x, "split")[2]
    if isinstance(v, Tensor):
        mixed = called(layer, x, "pattern").to(v.dtype) @ v
    else:  # several sets of values, each with a pattern of its own
        patterns = called(layer, x, "patterns")
        mixed = sum(p.to(values.dtype) @ values for p, values in zip(patterns, v, strict=True))
    y = layer.proj(layer.merge(mixed, x, v))
    if relative(called(layer, x), y) > 1e-4:
        raise BadInput(
            f"the output of {described(layer)} is not proj(merge(pattern @ values)), so measures "
            "of its pattern would be wrong; make `pattern` describe `forward`, or train it "
            "knowingly with check_layer=false"
        )


def described(layer: Any) -> str:
    """The class of a layer; for SelfAttention with a part of the user, also its kernel."""
    if type(layer) is not SelfAttention:
        return type(layer).__name__
    return f"SelfAttention with {getattr(layer.kernel, '__name__', type(layer.kernel).__name__)}"
