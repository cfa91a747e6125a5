"""Whether the instruments tell the truth about a layer: its output against its pattern and mask.

Letters: B batch, H heads, T time, C channels.
"""

from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.attention.cache import KVCache
from attnlab.attention.kernels import masked_softmax, scores
from attnlab.attention.layer import Attention
from attnlab.attention.masks import LEAVES_QUERIES_WITHOUT_KEYS, name_of
from attnlab.attention.properties import SOFTMAX, Properties, properties_of
from attnlab.attention.self_attention import SelfAttention
from attnlab.errors import BadInput
from attnlab.model import GPT
from attnlab.probes.capture import called, eval_mode, extended, invented_memo, keys_with_weight
from attnlab.rng import generator

LENGTH = 16  # positions, of which each is changed in turn
NOISE = 0.02  # on the weights: a gate at 0 would hide what is behind it


def check_users_layers(net: Any) -> None:
    """`check_layer` for every attention layer of a GPT that is not attnlab's; BadInput if one
    fails. Prints a line on each kind of layer that declares no properties."""
    notes: dict[str, str] = {}
    for layer in users_layers(net):
        n_embd, block_size = net.wte.embedding_dim, net.block_size
        check_layer(layer, n_embd=n_embd, block_size=block_size)
        found = find_properties(layer, n_embd, block_size)
        if properties_of(layer) is None:
            layer.properties = found
            notes[_described(layer)] = (
                "so measures that assume a softmax are left out"
                if found is None
                else "but its pattern was found to be the softmax of its scores"
            )
    for name, note in notes.items():
        print(f"{name} declares no properties, {note}")


def users_layers(net: nn.Module) -> list[Any]:
    """The attention layers of a GPT that are `by_user`."""
    if not isinstance(net, GPT):
        return []
    layers = [vars(block)["_modules"].get("attn") for block in net.blocks]
    return [layer for layer in layers if layer is not None and by_user(layer)]


def check_layer(layer: nn.Module, *, n_embd: int, block_size: int) -> None:
    """Refuse a layer that reads ahead, or that computes something else than its pattern says.

    A copy of the layer, with some noise on its weights, gets random inputs in evaluation mode. Its
    mask must leave every query a key, and its output must be finite. The output must not depend on
    later positions, unless the mask allows that, or on positions that have no weight in the
    pattern. The output of a `SelfAttention` must be `proj(merge(pattern @ v, x, v))`. Properties
    that the layer declares must hold, and `extend` must give the outputs of `forward`. Of a layer
    without `pattern`, only the last position is changed, on which earlier outputs must not depend.

    Raises BadInput with the first requirement that fails.
    """
    layer, stream = deepcopy(layer), generator(0, "check")
    with eval_mode(layer):
        for parameter in layer.parameters():
            noise = torch.randn(parameter.shape, generator=stream)
            parameter.add_(NOISE * noise.to(parameter))
        x = torch.randn(2, block_size, n_embd, generator=stream).to(next(layer.parameters()))
        x[1, :-1] = x[0, :-1]  # only the last position differs
        ahead = _differ(*_output(layer, x)[:, :-1])
        if not hasattr(layer, "pattern"):
            if ahead.any():
                raise _leak(layer, int(ahead.nonzero()[0]), block_size - 1, "comes later")
            return
        _check_mask(layer, x)
        first = x[:1, :LENGTH]
        pattern = _pattern(layer, first)
        mask = keys_with_weight(layer, first, pattern)
        if isinstance(layer, Attention):  # what it should apply
            mask = layer.mask(first).view(-1, *mask.shape).any(0)
        _check_output(layer, first, pattern, mask)
        if not mask.triu(1).any() and ahead.any():
            raise _leak(layer, int(ahead.nonzero()[0]), block_size - 1)
        if isinstance(layer, Attention) and layer.properties is not None:
            _check_declared(layer, layer.properties, first, pattern)
            if layer.cacheable:
                _check_cache(layer, first)


def _check_cache(layer: Attention, x: Tensor) -> None:
    """Compare the outputs of x (1, T, C) with those of pieces of it."""
    cache, memo, size = KVCache(layer.block_size), invented_memo(layer, x), -(-x.shape[1] // 2)
    outputs = []
    if type(layer).extend is not Attention.extend:
        ids, values = memo["ids"].split(size, 1), memo["values"].split(size, 2)
        for number, piece in enumerate(x.split(size, 1)):
            of_piece = {"ids": ids[number], "values": values[number]}
            outputs.append(extended(layer, piece, cache, of_piece))
    if not outputs or _differ(torch.cat(outputs, dim=1), _output(layer, x)).any():
        raise BadInput(
            f"{_described(layer)} declares cacheable, but its `extend` does not give the outputs "
            "of `forward`; correct it, or declare cacheable=False"
        )


def _check_mask(layer: nn.Module, x: Tensor) -> None:
    if isinstance(layer, Attention) and layer.may_attend not in LEAVES_QUERIES_WITHOUT_KEYS:
        if (mask := layer.mask(x)).dtype != torch.bool:
            raise BadInput(
                f"the mask of {_described(layer)} is {mask.dtype}; return bool, True = may attend"
            )
        empty = ~mask.any(-1).view(-1, x.shape[1]).all(0)
        if empty.any():
            query = int(empty.nonzero()[0])
            raise BadInput(
                f"the mask of {_described(layer)} leaves query {query} of {x.shape[1]} without "
                f"keys; let every query attend to at least one key"
            )


def _pattern(layer: nn.Module, x: Tensor) -> Tensor:
    pattern: Tensor = layer.pattern(x)  # type: ignore[operator]
    shape, T = tuple(pattern.shape), x.shape[1]
    if len(shape) != 4 or shape != (len(x), shape[1], T, T):
        raise BadInput(
            f"the pattern of {_described(layer)} has the shape {shape}; it must be "
            f"(B, H, T, T) = ({len(x)}, H, {T}, {T})"
        )
    return pattern


def _check_output(layer: nn.Module, x: Tensor, pattern: Tensor, mask: Tensor) -> None:
    """Check which inputs x (1, T, C) the output depends on, and that it is the pattern's."""
    T, stream = x.shape[1], generator(0, "check/changed")
    texts = x.repeat(T + 1, 1, 1)  # x, and T copies that differ from it in one position
    i = torch.arange(T)
    texts[i + 1, i] = torch.randn(x.shape[1:], generator=stream).to(x)
    outputs = _output(layer, texts)
    if not outputs.isfinite().all() and not _has_empty_rows(layer):
        raise BadInput(f"the output of {_described(layer)} is not finite for random inputs")
    depends = _differ(outputs[:1], outputs[1:]).mT  # (T outputs, T inputs)
    later = torch.ones_like(mask).triu(1)
    if not (mask & later).any() and (depends & later).any():
        raise _leak(layer, *(depends & later).nonzero()[0].tolist())
    if not isinstance(layer, SelfAttention):
        others = ~torch.eye(T, dtype=torch.bool, device=mask.device)
        hidden = depends & others & ~keys_with_weight(layer, x, pattern)
        for i, j in hidden.nonzero().tolist()[:1]:
            raise BadInput(
                f"the output of {_described(layer)} at position {i} depends on position {j}, "
                f"which has no weight in its pattern; make `pattern` describe `forward`"
            )
    elif layer.properties is None or layer.properties.linear_in_values:
        v = _values(layer, x)
        expected = layer.proj(layer.merge(pattern.to(v.dtype) @ v, x, v))
        if (differs := _differ(outputs[:1], expected)).any():
            raise BadInput(
                f"the output of {_described(layer)} at position {int(differs.nonzero()[0, 1])} is "
                f"not proj(merge(pattern @ values)), so measures of its pattern would be wrong; "
                f"make `pattern` describe `forward`, or declare linear_in_values=False"
            )


def _output(layer: nn.Module, x: Tensor) -> Tensor:
    return called(layer, x, invented_memo(layer, x))


def _values(layer: SelfAttention, x: Tensor) -> Tensor:
    v, memo = layer.split(x)[2], invented_memo(layer, x)
    if layer.first:  # its own values are those of the first layer
        memo["values"] = layer.shared_once(v)
    return layer.values(v, memo)


def _check_declared(layer: Attention, declared: Properties, x: Tensor, pattern: Tensor) -> None:
    sums = pattern.sum(-1)
    softmax = masked_softmax(layer.scores(x), layer.mask(x))
    holds = {
        "rows_sum_to_1": not _differ(sums[..., None], torch.ones_like(sums)[..., None]).any(),
        "nonnegative": bool((pattern >= 0).all()),
        "is_softmax": not _differ(pattern, softmax).any(),
    }
    for name, there in holds.items():
        if vars(declared)[name] and not there and not _has_empty_rows(layer):
            raise BadInput(f"{_described(layer)} declares {name}, which its pattern contradicts")


def find_properties(layer: nn.Module, n_embd: int, block_size: int) -> Properties | None:
    """What a layer that declares nothing is found to be by trying: a softmax of its scores, with
    values that are x W_v; None for any other layer. Sets `bilinear` by trying, too."""
    if not isinstance(layer, SelfAttention) or len(layer.qkv.weight) != sum(layer.qkv_sizes):
        return None
    stream = generator(0, "check")
    with eval_mode(layer):
        x = torch.randn(1, min(block_size, LENGTH), n_embd, generator=stream).to(layer.qkv.weight)
        parts = (x @ layer.qkv_of_heads().mT).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (layer.n_head, -1)).transpose(1, 2) for part in parts)
        of_layer = layer.scores(x)
        layer.bilinear = not _differ(of_layer, scores(q, k, scale=layer.scale)).any()
        softmax = masked_softmax(of_layer, layer.mask(x))
        values = _values(layer, x)
        if _differ(layer.pattern(x), softmax).any() or _differ(values, v).any():
            return None
    return replace(SOFTMAX, cacheable=False)


def by_user(layer: nn.Module) -> bool:
    """Whether its class, kernel, mask or change of the scores is not attnlab's."""
    parts = (vars(layer).get(name) for name in ("kernel", "score_mod", "may_attend"))
    return not all(map(_of_attnlab, (type(layer), *parts)))


def _of_attnlab(part: Any) -> bool:
    if isinstance(part, partial):
        return all(map(_of_attnlab, (part.func, *part.args, *part.keywords.values())))
    if isinstance(part, type) or callable(part):
        return str(part.__module__).partition(".")[0] == "attnlab"
    return True  # a number, or nothing


def _has_empty_rows(layer: nn.Module) -> bool:
    return isinstance(layer, Attention) and layer.may_attend in LEAVES_QUERIES_WITHOUT_KEYS


def _differ(a: Tensor, b: Tensor) -> Tensor:
    """Where vectors (..., C) differ by more than rounding, relative to the largest number."""
    tolerance = torch.finfo(a.dtype).eps ** 0.5 * a.nan_to_num().abs().max()
    return (a - b).abs().amax(-1) > tolerance


def _leak(layer: nn.Module, query: int, key: int, which: str = "its mask blocks") -> BadInput:
    return BadInput(
        f"{_described(layer)} reads ahead: its output at position {query} depends on position "
        f"{key}, which {which}; apply the mask, or train it knowingly with check_layer=false"
    )


def _described(layer: nn.Module) -> str:
    kernel = vars(layer).get("kernel")
    name = type(layer).__name__
    return name if kernel is None or _of_attnlab(kernel) else f"{name} with {name_of(kernel)}"
