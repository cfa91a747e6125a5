"""One page on a finished run: where every head looks in a text, as a picture and in words."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.table import Table
from torch import Tensor

from attnlab.data.corpora import encode
from attnlab.errors import BadInput
from attnlab.model import GPT
from attnlab.plotting import heatmaps
from attnlab.probes import measures
from attnlab.probes.capture import View, views
from attnlab.training.run import load_model

T = TypeVar("T")


@dataclass(frozen=True)
class Look:
    """What `attnlab look` shows.

    Args:
        page: the heatmaps, (height, width, 3) bytes, a row for each layer.
        words: (layer, head, where it looks).
    """

    page: heatmaps.Pixels
    words: list[tuple[int, int, str]]

    def table(self) -> Table:
        """The words, a row a head."""
        table = Table.grid(padding=(0, 2))
        for layer, head, where in self.words:
            table.add_row(f"L{layer}H{head}", where)
        return table


def look(target: str, text: str, *, layer: int | None = None, head: int | None = None) -> Look:
    """Run a model on a text and see where its heads look.

    Args:
        target: a run folder or a checkpoint; "hf:" and a folder or a name on the hub, for a BERT
            or GPT-2 of transformers.
        text: of at least two characters or tokens, and not more than the model takes.
        layer, head: from 0, to see one; None: all.

    Raises:
        BadInput: the text does not fit the model, there is no model, or no such layer or head.
    """
    if target.startswith("hf:"):
        from attnlab.interop.transformers_maps import views_of_transformers

        unit = "token"
        seen, labels = views_of_transformers(target.removeprefix("hf:"), text)
    else:
        unit = "character"
        net, alphabet = load_model(Path(target))
        seen, labels = list(views(net, _ids(net, text, alphabet))), list(text)
    chosen = _chosen("layer", seen, layer)
    shown = [
        (view, number)
        for view in chosen
        for number in _chosen("head", range(view.pattern.shape[1]), head)
    ]
    panels = [_panel(view, number) for view, number in shown]
    words = [(view.layer, number, where_it_looks(view, number, unit)) for view, number in shown]
    columns = max(1, len(shown) // len(chosen))
    return Look(heatmaps.grid(panels, labels, columns=columns, heading=target), words)


def _chosen(what: str, items: Sequence[T], number: int | None) -> Sequence[T]:
    if number is None:
        return items
    if not 0 <= number < len(items):
        raise BadInput(f"{what} = {number} must be one of 0 to {len(items) - 1}")
    return [items[number]]


def where_it_looks(view: View, head: int, unit: str = "character") -> str:
    """A head's habit in words, by the first window of the batch: its places, or its breadth.

    Args:
        view: of its layer.
        head: its number.
        unit: what stands at a position.
    """
    pattern, mask = view.pattern[:1, [head]], view.mask
    entropy = float(measures.entropy(pattern, mask))
    if math.isnan(entropy):
        return "nowhere: its pattern is not a number"
    keys = float(measures.effective_keys(pattern, mask))
    places = _places(pattern, mask, unit)
    place, mass = max(places.items(), key=lambda item: item[1])
    breadth = (
        f"{keys:.1f} keys in effect, {_far(float(measures.distance_back(pattern, mask)), unit)}"
    )
    if entropy > 0.9:
        return f"spread out ({breadth})"
    if mass > 0.5:
        return f"mostly {place} ({mass:.0%})"
    if mass > 0.25:
        return f"often {place} ({mass:.0%}; {breadth})"
    return f"here and there ({breadth})"


def _places(pattern: Tensor, mask: Tensor, unit: str) -> dict[str, float]:
    return {
        f"the previous {unit}": float(measures.previous_mass(pattern, mask)),
        "itself": float(measures.self_mass(pattern, mask)),
        f"the first {unit}": float(measures.first_mass(pattern, mask)),
        f"later {unit}s": float(measures.future_mass(pattern)),
    }


def _far(back: float, unit: str) -> str:
    return f"{abs(back):.1f} {unit}s {'back' if back >= 0 else 'ahead'} on average"


def _panel(view: View, head: int) -> heatmaps.Panel:
    entropy = float(measures.entropy(view.pattern[:1, [head]], view.mask))
    values, mask = view.pattern[0, head].numpy(), view.mask.numpy()
    return heatmaps.Panel(f"L{view.layer}H{head}  entropy {entropy:.2f}", values, mask)


def _ids(net: GPT, text: str, alphabet: str) -> Tensor:
    if len(text) < 2:
        raise BadInput(f"text = {text!r} must have at least two characters")
    if len(text) > net.block_size:
        raise BadInput(
            f"text is {len(text)} long; the model sees block_size = {net.block_size} at most"
        )
    return encode(text, alphabet)[None]
