"""The checkup of one attention layer: a module (B, T, C) -> (B, T, C).

Letters: B batch, T time, C channels, V symbols.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from attnlab.checkup.findings import Report
from attnlab.checkup.model_adapter import size_from
from attnlab.checkup.runner import checkup
from attnlab.errors import BadInput

Call = Callable[[nn.Module, Tensor], object]
_WIDTH_NAMES = ("n_embd", "embed_dim", "hidden_size", "d_model")


class _Embedded(nn.Module):
    """A layer behind a random embedding, so that it can be examined like a model."""

    def __init__(self, layer: nn.Module, vocab_size: int, C: int, call: Call | None) -> None:
        super().__init__()
        self.layer = layer
        self.call = call
        generator = torch.Generator().manual_seed(0)
        table = torch.randn(vocab_size, C, generator=generator)
        floats = [p for p in layer.parameters() if p.is_floating_point()]
        self.table = nn.Embedding.from_pretrained(table.to(floats[0]) if floats else table)

    def forward(self, ids: Tensor) -> object:
        x = self.table(ids)  # (B, T) -> (B, T, C)
        return self.layer(x) if self.call is None else self.call(self.layer, x)


def checkup_attention(
    layer: nn.Module,
    *,
    n_embd: int | None = None,
    block_size: int = 32,
    call: Call | None = None,
    seed: int = 0,
) -> Report:
    """Examine a layer that mixes positions, as `checkup` examines a model.

    Args:
        layer: maps (B, T, C) to (B, T, C), or to a tuple that holds it.
        n_embd: C; None if the layer or its first linear map has it.
        block_size: the largest T.
        call: how to call the layer if it takes more than x, for example
            `lambda layer, x: layer(x, x, x, attn_mask=mask(x.shape[1]))`.
        seed: of the random inputs.

    Raises:
        attnlab.errors.BadInput: C is unknown, or the layer does not accept such input.
    """
    C = n_embd if n_embd is not None else size_from(layer, _WIDTH_NAMES)
    if C is None:
        linear = next((m for m in layer.modules() if isinstance(m, nn.Linear)), None)
        if linear is None:
            raise BadInput("the layer has no width that can be read; give n_embd")
        C = linear.in_features
    vocab_size = min(C, 31)
    if vocab_size < 2:
        raise BadInput(f"n_embd = {C} must be at least 2")
    model = _Embedded(layer, vocab_size, C, call)
    model.train(layer.training)
    return checkup(
        model, vocab_size=vocab_size, block_size=block_size, seed=seed, name=type(layer).__name__
    )
