"""Where a forward pass first leaves the finite numbers."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from attnlab.attention.layer import Attention
from attnlab.model import GPT
from attnlab.probes.capture import attention_layers, eval_mode, inputs_of

Finding = dict[str, int | str | None]


def first_nonfinite(net: GPT, ids: Tensor) -> Finding | None:
    """The first layer and quantity that is not finite, in the order of the computation.

    Args:
        net: with the weights that the failing step began with.
        ids: the failing batch, (B, T).

    Returns:
        {"layer": number or None, "quantity": words}, None where all is finite.
    """
    found = first_nonfinite_weight(net)
    if found is not None:
        return found
    for layer, quantity, values in _quantities(net, ids):
        if not values.isfinite().all():
            return {"layer": layer, "quantity": quantity}
    return None


def first_nonfinite_weight(net: nn.Module) -> Finding | None:
    """The first parameter that is not finite, in the order of the model."""
    for name, weight in net.named_parameters():
        if not weight.isfinite().all():
            return {"layer": None, "quantity": f"weight {name}"}
    return None


def first_nonfinite_gradient(net: nn.Module) -> Finding | None:
    """The gradient that went first: backward, hence the last parameter that has a bad one."""
    for name, weight in reversed(list(net.named_parameters())):
        if weight.grad is not None and not weight.grad.isfinite().all():
            number = name.split(".")[1] if name.startswith("blocks.") else None
            layer = None if number is None else int(number)
            return {"layer": layer, "quantity": f"gradient of {name}"}
    return None


def in_words(found: Finding) -> str:
    """A finding for status.json."""
    layer = "" if found["layer"] is None else f" of layer {found['layer']}"
    return f"first in the {found['quantity']}{layer}"


def _quantities(net: GPT, ids: Tensor) -> Iterator[tuple[int | None, str, Tensor]]:
    inputs = inputs_of(net, ids)
    with eval_mode(net), torch.no_grad():
        for number, (attn, x) in enumerate(zip(attention_layers(net), inputs, strict=True)):
            yield number, "input of the attention", x
            if isinstance(attn, Attention):
                for name, projected in zip(
                    ("queries", "keys", "values"), attn.split(x), strict=True
                ):
                    yield number, name, projected
                yield number, "scores", attn.scores(x)
            yield number, "pattern", attn.pattern(x)  # type: ignore[operator]
            yield number, "output of the attention", attn(x)
        yield None, "logits", net(ids)
