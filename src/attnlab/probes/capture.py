"""Observes the attention layers of a model without changing it."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.attention.cache import KVCache, Memo, takes_memo
from attnlab.attention.layer import Attention
from attnlab.attention.properties import properties_of
from attnlab.attention.self_attention import SelfAttention
from attnlab.model import GPT
from attnlab.probes import measures
from attnlab.rng import generator


@dataclass(frozen=True)
class View:
    """The tensors of one layer on a batch."""

    layer: int  # its number, from 0
    attn: nn.Module
    pattern: Tensor  # (B, H, T, T)
    mask: Tensor  # (T, T) bool, see `mask_of`
    scores: Tensor | None  # (B, H, T, T) before mask and softmax; None if nothing is declared
    values: Tensor | None  # (B, H, T, D); None if unknown
    ids: Tensor | None = None  # the symbols (B, T); None if unknown

    @property
    def is_softmax(self) -> bool:
        """Whether the layer declares that its pattern is the softmax of its scores."""
        declared = properties_of(self.attn)
        return declared is not None and declared.is_softmax


@contextmanager
def eval_mode(net: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients inside; each module's own mode afterward."""
    training = [module for module in net.modules() if module.training]
    net.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def attention_layers(net: GPT) -> list[nn.Module]:
    """The layers that have a pattern, in the order of the blocks."""
    return [block.attn for block in net.blocks]  # type: ignore[misc]


def inputs_of(
    net: nn.Module, layers: Iterable[nn.Module], ids: Tensor
) -> list[tuple[Tensor, Memo | None]]:
    """The input (B, T, C) of each layer of a model, and its memo, by temporary hooks."""
    inputs: list[tuple[Tensor, Memo | None]] = []

    def keep(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        x = args[0] if args else options["hidden_states"]
        inputs.append((x.detach(), options.get("memo")))

    with ExitStack() as hooks, eval_mode(net):
        for layer in layers:
            hooks.enter_context(layer.register_forward_pre_hook(keep, with_kwargs=True))
        net(ids)
    return inputs


def views(net: GPT, ids: Tensor) -> Iterator[View]:
    """Every attention layer on a batch (B, T), one after the other."""
    layers = attention_layers(net)
    inputs = inputs_of(net, layers, ids)
    for number, (attn, (x, memo)) in enumerate(zip(layers, inputs, strict=True)):
        with eval_mode(net):
            view = view_of(number, attn, x, ids, memo)
        yield view


def called(attn: nn.Module, x: Tensor, memo: Memo | None) -> Tensor:
    """The output of a layer for x (B, T, C), which gets the memo if it names it."""
    y: Tensor = attn(x, memo=memo) if takes_memo(type(attn).forward) else attn(x)
    return y


def extended(attn: Attention, x: Tensor, cache: KVCache, memo: Memo) -> Tensor:
    """The output of a layer for x (B, T, C) after the cached positions."""
    named = takes_memo(type(attn).extend)
    return attn.extend(x, cache, memo=memo) if named else attn.extend(x, cache)  # type: ignore[call-arg]


def invented_memo(layer: nn.Module, x: Tensor) -> Memo:
    """A memo: the same symbol everywhere, and values that do not depend on x."""
    B, T, _ = x.shape
    memo = {"ids": torch.zeros(B, T, dtype=torch.long, device=x.device)}
    if isinstance(layer, Attention):
        shape = (layer.n_kv_head, T, layer.head_size)
        values = torch.randn(shape, generator=generator(0, "check/memo"))
        memo["values"] = values.to(x).expand(B, *shape)
    return memo


def view_of(
    number: int, attn: nn.Module, x: Tensor, ids: Tensor | None = None, memo: Memo | None = None
) -> View:
    """One attention layer on its input (B, T, C), with the memo of the forward pass."""
    pattern = attn.pattern(x).float()  # type: ignore[operator]
    mask, scores, values = mask_of(attn, x, pattern), None, None
    if isinstance(attn, Attention) and attn.properties is not None:
        scores = attn.scores(x).float()
    if isinstance(attn, SelfAttention):
        values = attn.values(attn.split(x)[2], memo).float()
    elif scores is not None:
        values = attn.split(x)[2].float()  # type: ignore[operator]
    return View(number, attn, pattern, mask, scores, values, ids)


def mask_of(attn: nn.Module, x: Tensor, pattern: Tensor) -> Tensor:
    """The (T, T) mask of a layer for x (B, T, C), True = may attend.

    It is the layer's `mask` if the layer overrides it or declares its properties. Any other mask
    is read off the patterns (B, H, T, T) of x and of zeros: the keys that get any weight. The
    scores of zeros are equal, so no weight is rounded to 0.
    """
    if isinstance(attn, Attention) and (
        attn.properties is not None or type(attn).mask is not Attention.mask
    ):
        return attn.mask(x)
    return keys_with_weight(attn, x, pattern)


def keys_with_weight(attn: nn.Module, x: Tensor, pattern: Tensor) -> Tensor:
    """The keys that get any weight in the patterns of x (B, T, C) and of zeros, (T, T) bool."""
    at_zero = attn.pattern(torch.zeros_like(x[:1]))  # type: ignore[operator]
    weights = torch.cat([pattern, at_zero.to(pattern)]).nan_to_num()
    return (weights != 0).flatten(0, 1).any(0)


def pattern_measures(pattern: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """The measures that need only a pattern (B, H, T, T), (H,) under each name."""
    return {
        "entropy": measures.entropy(pattern, mask),
        "entropy_nats": measures.entropy_nats(pattern, mask),
        "effective_keys": measures.effective_keys(pattern, mask),
        "largest_weight": measures.largest_weight(pattern, mask),
        "saturated_rows": measures.saturated_rows(pattern, mask),
        "future_mass": measures.future_mass(pattern),
        "self_mass": measures.self_mass(pattern, mask),
        "previous_mass": measures.previous_mass(pattern, mask),
        "first_mass": measures.first_mass(pattern, mask),
        "distance_back": measures.distance_back(pattern, mask),
        "row_sum_error": measures.row_sum_error(pattern),
    }


def by_head(view: View) -> dict[str, Tensor]:
    """The measures of each head, (H,) under each name."""
    named = pattern_measures(view.pattern, view.mask)
    if view.is_softmax:
        named["jacobian_trace"] = measures.jacobian_trace(view.pattern, view.mask)
    if view.ids is not None:
        named["induction_mass"] = measures.induction_mass(view.pattern, view.ids)
    if view.scores is not None:
        named["score_std"] = measures.score_std(view.scores, view.mask)
        named["largest_score"] = measures.largest_score(view.scores, view.mask)
    if view.pattern.shape[1] > 1:
        named |= {name: measures.with_others(x) for name, x in between_heads(view).items()}
    return named


def between_heads(view: View) -> dict[str, Tensor]:
    """The measures of each pair of heads, (H, H) under each name."""
    named = {
        "head_similarity": measures.pattern_similarity(view.pattern, view.mask),
        "js_divergence": measures.js_divergence(view.pattern, view.mask),
    }
    attn = view.attn
    if isinstance(attn, Attention) and attn.properties is not None:
        qkv, proj = attn.qkv_of_heads().detach(), attn.proj.weight.detach()
        if attn.bilinear:
            named["qk_similarity"] = measures.qk_similarity(qkv, attn.n_head)
        named["ov_similarity"] = measures.ov_similarity(qkv, proj, attn.n_head)
    return named


def by_layer(view: View) -> dict[str, Tensor]:
    """The measures of a whole layer, () under each name."""
    named = {"head_difference": measures.largest_difference(view.pattern, dim=1)}
    if view.values is not None:
        outputs = view.pattern.to(view.values.dtype) @ view.values  # (B, H, T, D)
        named["effective_heads"] = measures.effective_heads(outputs)
    if view.scores is not None and view.is_softmax:
        std = measures.score_std(view.scores, view.mask).square().mean().sqrt()
        rows = measures.rows_with_choice(view.mask)
        entropy, trace = measures.random_energy(float(std), view.mask.sum(-1)[rows].cpu())
        named["entropy_nats_predicted"] = entropy.mean().to(std)
        named["jacobian_trace_predicted"] = trace.mean().to(std)
    return named


def scalars(seen: Iterable[View]) -> dict[str, float]:
    """All measures by tag: `attn/entropy`, the mean over all layers and heads, `attn/entropy/L0H1`
    of each head or, of a whole layer, `attn/effective_heads/L0`, and `layers/entropy/L0`."""
    values: dict[str, Tensor] = {}
    parts: dict[str, list[Tensor]] = {}
    for view in seen:
        place = f"L{view.layer}"
        for name, of_heads in by_head(view).items():
            parts.setdefault(name, []).append(of_heads)
            values |= {f"attn/{name}/{place}H{h}": x for h, x in enumerate(of_heads)}
        values[f"layers/entropy/{place}"] = parts["entropy"][-1].mean()
        for name, of_layer in by_layer(view).items():
            parts.setdefault(name, []).append(of_layer[None])
            values[f"attn/{name}/{place}"] = of_layer
    values |= {f"attn/{name}": torch.cat(found).mean() for name, found in parts.items()}
    return numbers(values)


def numbers(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Tensors () as Python numbers, with one transfer from the device."""
    found = torch.stack(list(values.values())).tolist() if values else []
    return dict(zip(values, found, strict=True))
