"""A task in which every answer needs two look-ups."""

import torch

from attnlab.data.alphabets import Characters
from attnlab.data.contract import IGNORED, Batch
from attnlab.data.sequences import SYMBOLS, Sequences
from attnlab.errors import BadInput

NEAR, FAR = 1, 4  # positions back


def two_places(length: int, symbols: int = 8) -> Sequences:
    """Random symbols; the answer names the pair of those 1 and 4 positions back, in this order.

    There are `symbols` symbols and as many answers as ordered pairs of them, so a model that knows
    only one of the two, or both without their order, answers most questions wrong. The first four
    positions have no answer. Raises BadInput if a number is out of range.
    """
    if not (length > FAR and 2 <= symbols <= 30):
        raise BadInput(
            f"data.length = {length} must be above {FAR}, "
            f"and data.symbols = {symbols} from 2 to 30"
        )

    def draw(B: int, g: torch.Generator) -> Batch:
        x = torch.randint(symbols, (B, length), generator=g)
        y = torch.full_like(x, IGNORED)
        near, far = x[:, FAR - NEAR : -NEAR], x[:, :-FAR]  # (B, T - 4) each
        y[:, FAR:] = symbols + symbols * near + far
        return x, y

    alphabet = Characters(SYMBOLS[: symbols + symbols**2])
    return Sequences(two_places, alphabet, length, draw, {"symbols": symbols})
