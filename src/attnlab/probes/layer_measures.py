"""From the view of a layer to its named numbers, and from all layers to tags."""

from collections.abc import Iterable

import torch
from torch import Tensor

from attnlab.attention.layer import Attention
from attnlab.probes import measures
from attnlab.probes.capture import View
from attnlab.probes.random_energy import random_energy

Named = dict[str, Tensor]


def by_head(view: View) -> Named:
    """The numbers that each head has, (H,) under each name."""
    pattern, mask = view.pattern, view.mask
    named = {
        "entropy": measures.entropy(pattern, mask),
        "entropy_nats": measures.entropy_nats(pattern, mask),
        "effective_keys": measures.effective_keys(pattern, mask),
        "largest_weight": measures.largest_weight(pattern, mask),
        "saturated_rows": measures.saturated_rows(pattern, mask),
        "jacobian_trace": measures.jacobian_trace(pattern, mask),
        "future_mass": measures.future_mass(pattern),
        "self_mass": measures.self_mass(pattern, mask),
        "previous_mass": measures.previous_mass(pattern, mask),
        "first_mass": measures.first_mass(pattern, mask),
        "distance_back": measures.distance_back(pattern, mask),
        "row_sum_error": measures.row_sum_error(pattern),
    }
    if view.scores is not None:
        named["score_std"] = measures.score_std(view.scores, mask)
        named["largest_score"] = measures.largest_score(view.scores, mask)
    if pattern.shape[1] > 1:
        named |= {
            name: measures.with_others(matrix) for name, matrix in between_heads(view).items()
        }
    return named


def between_heads(view: View) -> Named:
    """The numbers that each pair of heads has, (H, H) under each name."""
    named = {
        "head_similarity": measures.pattern_similarity(view.pattern, view.mask),
        "js_divergence": measures.js_divergence(view.pattern, view.mask),
    }
    attn = view.attn
    if isinstance(attn, Attention) and len(attn.qkv.weight) == sum(attn.qkv_sizes):
        qkv, proj = attn.qkv_of_heads().detach(), attn.proj.weight.detach()
        if attn.bilinear:
            named["qk_similarity"] = measures.qk_similarity(qkv, attn.n_head)
        named["ov_similarity"] = measures.ov_similarity(qkv, proj, attn.n_head)
    return named


def by_layer(view: View) -> Named:
    """The numbers that a layer has as a whole, () under each name."""
    named = {"head_difference": measures.largest_difference(view.pattern, dim=1)}
    if view.outputs is not None:
        named["effective_heads"] = measures.effective_heads(view.outputs)
    if view.scores is not None:
        std = measures.score_std(view.scores, view.mask).square().mean().sqrt()
        rows = measures.rows_with_choice(view.mask)
        entropy, trace = random_energy(float(std), view.mask.sum(-1)[rows].cpu())
        named["entropy_nats_predicted"] = entropy.mean().float()
        named["jacobian_trace_predicted"] = trace.mean().float()
    return named


def scalars(seen: Iterable[View], *, heads: bool = True) -> dict[str, float]:
    """All numbers under their tags: `attn/entropy`, and `attn/entropy/L0H1` or `attn/entropy/L0`.

    The first is the mean over all layers and heads.

    Args:
        seen: views of the layers.
        heads: whether each head has its own tag, or each layer.
    """
    values: dict[str, Tensor] = {}
    parts: dict[str, list[Tensor]] = {}
    for view in seen:
        place = f"L{view.layer}"
        for name, of_heads in by_head(view).items():
            parts.setdefault(name, []).append(of_heads)
            if heads:
                values |= {f"attn/{name}/{place}H{h}": x for h, x in enumerate(of_heads)}
            else:
                values[f"attn/{name}/{place}"] = of_heads.mean()
        for name, of_layer in by_layer(view).items():
            parts.setdefault(name, []).append(of_layer[None])
            values[f"attn/{name}/{place}"] = of_layer
    values |= {f"attn/{name}": torch.cat(found).mean() for name, found in parts.items()}
    if not values:
        return {}
    numbers = torch.stack([x.cpu() for x in values.values()]).tolist()
    return dict(zip(values, numbers, strict=True))
