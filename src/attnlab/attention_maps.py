"""Attention maps of a trained model on a text, drawn and described in words."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.table import Table
from torch import Tensor

from attnlab.data.corpora import encode
from attnlab.errors import BadInput
from attnlab.model import GPT
from attnlab.plotting import heatmaps
from attnlab.probes import measures
from attnlab.probes.capture import View, views
from attnlab.training.checkpoints import load_model

T = TypeVar("T")


@dataclass(frozen=True)
class Look:
    """The result of `attnlab look`.

    Args:
        page: the heatmaps, (height, width, 3) bytes, a row for each layer.
        words: (layer, head, description).
    """

    page: heatmaps.Pixels
    words: list[tuple[int, int, str]]

    def table(self) -> Table:
        """The descriptions, one row for each head."""
        table = Table.grid(padding=(0, 2))
        for layer, head, where in self.words:
            table.add_row(f"L{layer}H{head}", where)
        return table


def look(
    target: str,
    text: str,
    *,
    layer: int | None = None,
    head: int | None = None,
    trust: bool = False,
) -> Look:
    """Run a model on a text and show what its heads attend to.

    Args:
        target: a run directory or a checkpoint, or "hf:" and the local directory or hub name of
            a BERT or GPT-2.
        text: at least two characters or tokens, at most as many as the model takes.
        layer, head: the only one to show, from 0; None for all.
        trust: as for `attnlab.training.checkpoints.load_model`.

    Raises:
        BadInput: the text does not fit the model, or the model, layer or head does not exist.
    """
    unit = "token" if target.startswith("hf:") else "character"
    seen, labels = views_of(target, text, trust=trust)
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


def views_of(target: str, text: str, *, trust: bool = False) -> tuple[list[View], list[str]]:
    """Run a model on a text; `look` has the arguments and errors.

    Returns:
        one view per layer, and the characters or tokens.
    """
    if target.startswith("hf:"):
        from attnlab.interop.transformers_maps import views_of_transformers

        return views_of_transformers(target.removeprefix("hf:"), text)
    net, alphabet = load_model(target, trust=trust)
    return list(views(net, _ids(net, text, alphabet))), list(text)


def _chosen(what: str, items: Sequence[T], number: int | None) -> Sequence[T]:
    if number is None:
        return items
    if not 0 <= number < len(items):
        raise BadInput(f"{what} = {number} must be one of 0 to {len(items) - 1}")
    return [items[number]]


def where_it_looks(view: View, head: int, unit: str = "character") -> str:
    """Describe what a head attends to in the first window of the batch.

    Args:
        view: of the head's layer.
        head: its number.
        unit: what one position is, "character" or "token".
    """
    pattern, mask = view.pattern[:1, [head]], view.mask
    entropy = float(measures.entropy(pattern, mask))
    if math.isnan(entropy):
        return "nowhere: its pattern is not a number"
    keys = float(measures.effective_keys(pattern, mask))
    places = {
        f"the previous {unit}": float(measures.previous_mass(pattern, mask)),
        "itself": float(measures.self_mass(pattern, mask)),
        f"the first {unit}": float(measures.first_mass(pattern, mask)),
        f"later {unit}s": float(measures.future_mass(pattern)),
    }
    place, mass = max(places.items(), key=lambda item: item[1])
    back = float(measures.distance_back(pattern, mask))
    far = f"{abs(back):.1f} {unit}s {'back' if back >= 0 else 'ahead'} on average"
    breadth = f"{keys:.1f} keys in effect, {far}"
    if entropy > 0.9:
        return f"spread out ({breadth})"
    if mass > 0.5:
        return f"mostly {place} ({mass:.0%})"
    if mass > 0.25:
        return f"often {place} ({mass:.0%}; {breadth})"
    return f"here and there ({breadth})"


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
