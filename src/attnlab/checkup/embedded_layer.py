"""A layer after a random embedding, to be examined as a model. Letters: B batch, T time."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from attnlab.checkup.outputs import find_rows
from attnlab.errors import BadInput

Call = Callable[[nn.Module, Tensor], object]
_WIDTH_NAMES = ("n_embd", "embed_dim", "hidden_size", "d_model")
_SOURCE = "give n_embd, or set this attribute of the layer"


class EmbeddedLayer(nn.Module):
    """A layer after a random embedding; for the arguments and for BadInput, see
    `attnlab.checkup.checkup_attention`."""

    def __init__(
        self, layer: nn.Module, n_embd: int | None = None, call: Call | None = None
    ) -> None:
        super().__init__()
        widths = (m.in_features for m in layer.modules() if isinstance(m, nn.Linear))
        found = (n_embd, size_from(layer, _WIDTH_NAMES), next(widths, None))
        C = next((width for width in found if width is not None), None)
        if C is None:
            raise BadInput(f"the width C of the layer is not known; {_SOURCE}")
        if C < 2:
            raise BadInput(f"n_embd = {C} must be at least 2")
        self.layer, self.call, self.vocab_size = layer, call, min(C, 31)
        self.training = layer.training
        table = torch.randn(self.vocab_size, C, generator=torch.Generator().manual_seed(0))
        floats = [p for p in layer.parameters() if p.is_floating_point()]
        self.table = nn.Embedding.from_pretrained(table.to(floats[0]) if floats else table)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)  # (B, T) -> (B, T, C)
        output = self.layer(x) if self.call is None else self.call(self.layer, x)
        return find_rows(output, tuple(ids.shape), x.shape[2], ("layer", "outputs"))

    def refused(self, B: int, T: int, reason: str) -> BadInput:
        """The message if the layer fails on sequences of this shape."""
        C = self.table.embedding_dim
        return BadInput(
            f"the layer fails on (B, T, C) = {(B, T, C)}: {reason}; if C is not {C}, {_SOURCE}"
        )


def size_from(model: object, names: tuple[str, ...]) -> int | None:
    """The first of these attributes of the model or its config that is an integer."""
    configs = [getattr(model, name) for name in ("config", "cfg", "args") if hasattr(model, name)]
    pairs = ((place, name) for place in (model, *configs) for name in names)
    found = (getattr(place, name) for place, name in pairs if hasattr(place, name))
    return next((size for size in found if isinstance(size, int)), None)
