"""Where a model first computes a number that is not finite."""

from collections.abc import Iterable, Iterator

from torch import Tensor, nn

from attnlab.attention.layer import Attention
from attnlab.model import GPT
from attnlab.probes.capture import attention_layers, called, eval_mode, inputs_of

Finding = dict[str, int | str | None]  # {"layer": number or None, "quantity": name}


def first_nonfinite(net: GPT, ids: Tensor) -> Finding | None:
    """The first quantity that is not finite, in the order of the computation, on ids (B, T)."""
    return first_nonfinite_weight(net) or _first_nonfinite(_quantities(net, ids))


def first_nonfinite_weight(net: nn.Module) -> Finding | None:
    """The first parameter that is not finite, in the order of the model."""
    return _first_nonfinite((None, f"weight {n}", w) for n, w in net.named_parameters())


def first_nonfinite_gradient(net: nn.Module) -> Finding | None:
    """The first gradient of the backward pass that is not finite."""
    return _first_nonfinite(
        (int(n.split(".")[1]) if n.startswith("blocks.") else None, f"gradient of {n}", w.grad)
        for n, w in reversed(list(net.named_parameters()))
        if w.grad is not None
    )


def _first_nonfinite(quantities: Iterable[tuple[int | None, str, Tensor]]) -> Finding | None:
    for layer, name, values in quantities:
        if not values.isfinite().all():
            return {"layer": layer, "quantity": name}
    return None


def in_words(found: Finding) -> str:
    """The sentence about a finding in status.json."""
    layer = "" if found["layer"] is None else f" of layer {found['layer']}"
    return f"first in the {found['quantity']}{layer}"


def _quantities(net: GPT, ids: Tensor) -> Iterator[tuple[int | None, str, Tensor]]:
    layers = attention_layers(net)
    with eval_mode(net):
        inputs = inputs_of(net, layers, ids)
        for number, (attn, (x, memo)) in enumerate(zip(layers, inputs, strict=True)):
            yield number, "input of the attention", x
            if isinstance(attn, Attention):
                for name, part in zip(("queries", "keys", "values"), attn.split(x), strict=True):
                    yield number, name, part
                yield number, "scores", attn.scores(x)
            yield number, "pattern", attn.pattern(x)  # type: ignore[operator]
            yield number, "output of the attention", called(attn, x, memo)
        yield None, "logits", net(ids)
