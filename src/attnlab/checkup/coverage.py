"""What a checkup should look at, what it did, and what it did not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from attnlab.checkup.findings import FAULT, NOT_APPLICABLE, OK

if TYPE_CHECKING:
    from attnlab.checkup.examination import Examination

# From the model, ids (B, T), and the number of each token's document (B, T), to what it returns.
Documents = Callable[[Any, Tensor, Tensor], object]
NO_TIME = "not examined: no time was left; give more seconds"


@dataclass(frozen=True)
class Meant:
    """What the model is meant to do, where it is not to be guessed; see `checkup`."""

    window: int | Sequence[int | None] | None = None
    separator: int | None = None
    documents: Documents | None = None
    reset_positions: bool = False
    padding: str | None = None


def unseen(of: Examination) -> Iterator[str]:
    """What an unknown size or the budget left out of an examination that found no fault."""
    if any(f.status is FAULT for f in of.findings) or of.error:
        return
    numbers = {f.detector: f.numbers for f in of.findings}
    T, declared = max(of.lengths), of.adapter.declared
    T = max(T, int(numbers.get("lengths", {}).get("positions", 0)))
    if not declared:
        yield f"more than {T:,} positions (the model declares no length; give block_size)"
    elif declared > T:
        yield f"more than {T:,} of {declared:,} positions"
    if of.changed < of.lengths[0]:
        yield f"{of.lengths[0] - of.changed} of {of.lengths[0]} tokens changed alone"
    ids = numbers.get("tokens", {})
    if ids.get("tried", 0) < ids.get("ids", 0):
        yield f"{ids['ids'] - ids['tried']:,.0f} of {ids['ids']:,.0f} token ids"
    if of.meant.window is not None and not of.calls:
        yield "the windows (no attention was recognized)"
    if late := [f.detector for f in of.findings if f.headline == NO_TIME]:
        yield f"what {', '.join(late)} would show (no time was left)"
    if of.adapter.in_place:
        yield f"other weights and training mode ({of.adapter.in_place})"


def covered(by: Examination) -> dict[str, str]:
    """The lengths, modes and tokens that an examination looked at, for the report."""
    ran = {f.detector: f for f in by.findings if f.status is not NOT_APPLICABLE}
    drawn = "uniform" if by.adapter.text is None else "from the given ids"
    if "tokens" in ran and ran["tokens"].status is OK:
        count = ran["tokens"].numbers
        drawn += f"; {count['tried']:.0f} of {count['ids']:.0f} ids tried each"
    modes = "eval and training" if "training mode" in ran else "eval"
    return {"lengths": ", ".join(map(str, by.lengths)), "modes": modes, "tokens": drawn}
