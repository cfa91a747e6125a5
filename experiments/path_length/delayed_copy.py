"""The copying task of Hochreiter and Schmidhuber (1997) and Arjovsky et al. (2016)."""

import torch

from attnlab.data.alphabets import Characters
from attnlab.data.contract import IGNORED, Batch
from attnlab.data.sequences import SYMBOLS, Sequences
from attnlab.errors import BadInput


def delayed_copy(length: int, kept: int = 4, symbols: int = 8) -> Sequences:
    """`kept` random symbols, blanks, and the same symbols again.

    Each answer is the symbol T - kept positions back. The amount to remember does not grow with
    this distance.

    Raises:
        BadInput: a number is out of range.
    """
    if not (1 <= kept <= length // 2 and 2 <= symbols < len(SYMBOLS)):
        raise BadInput(
            f"data.kept = {kept} must be from 1 to data.length / 2 = {length // 2}, and "
            f"data.symbols = {symbols} from 2 to {len(SYMBOLS) - 1}"
        )

    def draw(B: int, g: torch.Generator) -> Batch:
        text = torch.randint(symbols, (B, kept), generator=g) + 1
        blanks = torch.zeros(B, length - 2 * kept + 1, dtype=torch.long)
        whole = torch.cat([text, blanks, text], dim=1)  # (B, T + 1)
        y = whole[:, 1:].clone()
        y[:, :-kept] = IGNORED
        return whole[:, :-1], y

    given = {"kept": kept, "symbols": symbols}
    return Sequences(delayed_copy, Characters(SYMBOLS[: symbols + 1]), length, draw, given)
