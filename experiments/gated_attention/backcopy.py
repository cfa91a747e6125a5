"""A task in which a head must attend to nothing most of the time."""

import torch

from attnlab.data.alphabets import Characters
from attnlab.data.contract import IGNORED, Batch
from attnlab.data.sequences import SYMBOLS, Sequences
from attnlab.errors import BadInput

TRIGGERS = 4


def backcopy(length: int, symbols: int = 32) -> Sequences:
    """A start symbol, then random ones; the answer to a trigger is the symbol before it.

    A quarter of the symbols after the start are one of four triggers. The answer to any other
    symbol depends on it alone, so a head has nothing to read there. It is the bigram-backcopy
    task of Guo et al. (2024), with a permutation in place of their random bigrams. Raises BadInput
    if a number is out of range.
    """
    if not (length >= 3 and 2 <= symbols < len(SYMBOLS) - TRIGGERS):
        raise BadInput(
            f"data.length = {length} must be at least 3, and data.symbols = {symbols} from 2 to "
            f"{len(SYMBOLS) - TRIGGERS - 1}"
        )

    def draw(B: int, g: torch.Generator) -> Batch:
        plain = torch.randint(symbols, (B, length - 1), generator=g) + 1
        trigger = torch.randint(TRIGGERS, (B, length - 1), generator=g) + symbols + 1
        triggered = torch.rand(B, length - 1, generator=g) < 0.25
        start = torch.zeros(B, 1, dtype=torch.long)
        x = torch.cat([start, plain.where(~triggered, trigger)], dim=1)  # (B, T)
        y = (x % symbols + 1)[:, 1:].where(~triggered, x[:, :-1])
        return x, torch.cat([torch.full_like(start, IGNORED), y], dim=1)

    alphabet = Characters(SYMBOLS[: symbols + TRIGGERS + 1])
    return Sequences(backcopy, alphabet, length, draw, {"symbols": symbols})
