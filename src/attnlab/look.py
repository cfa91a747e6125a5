"""One page on a finished run: where every head looks in a text, as a picture and in words."""

import math
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from rich.table import Table
from torch import Tensor

from attnlab.data.corpus import encode
from attnlab.errors import BadInput
from attnlab.model import GPT
from attnlab.probes import measures
from attnlab.probes.view import View, views
from attnlab.report import heatmaps
from attnlab.training.run import load_model

LARGEST_WIDTH = 8000  # pixels; some viewers refuse more


@dataclass(frozen=True)
class Look:
    """What `attnlab look` shows.

    Args:
        page: the heatmaps, a row a layer.
        words: (layer, head, where it looks).
    """

    page: Image.Image
    words: list[tuple[int, int, str]]

    def table(self) -> Table:
        """The words, a row a head."""
        table = Table.grid(padding=(0, 2))
        for layer, head, where in self.words:
            table.add_row(f"L{layer}H{head}", where)
        return table


def look(target: Path, text: str) -> Look:
    """Run a model on a text and see where its heads look.

    Args:
        target: a run folder or a checkpoint.
        text: at least two characters of the run's alphabet, at most block_size.

    Raises:
        BadInput: the text does not fit the model, or there is no model.
    """
    net, alphabet = load_model(target)
    seen = list(views(net, _ids(net, text, alphabet)))
    heads = max(view.pattern.shape[1] for view in seen)
    panels = []
    for view in seen:
        panels += [_panel(view, head) for head in range(view.pattern.shape[1])]
    words = [
        (view.layer, head, where_it_looks(view, head))
        for view in seen
        for head in range(view.pattern.shape[1])
    ]
    return Look(heatmaps.grid(panels, text, columns=heads, heading=str(target)), words)


def where_it_looks(view: View, head: int) -> str:
    """A head's habit in words, by the first window of the batch: its places, or its breadth."""
    pattern, mask = view.pattern[:1, [head]], view.mask
    entropy = float(measures.entropy(pattern, mask))
    if math.isnan(entropy):
        return "nowhere: its pattern is not a number"
    keys = float(measures.effective_keys(pattern, mask))
    places = _places(pattern, mask)
    place, mass = max(places.items(), key=lambda item: item[1])
    breadth = f"{keys:.1f} keys in effect, {_far(float(measures.distance_back(pattern, mask)))}"
    if entropy > 0.9:
        return f"spread out ({breadth})"
    if mass > 0.5:
        return f"mostly {place} ({mass:.0%})"
    if mass > 0.25:
        return f"often {place} ({mass:.0%}; {breadth})"
    return f"here and there ({breadth})"


def _places(pattern: Tensor, mask: Tensor) -> dict[str, float]:
    return {
        "the previous character": float(measures.previous_mass(pattern, mask)),
        "itself": float(measures.self_mass(pattern, mask)),
        "the first character": float(measures.first_mass(pattern, mask)),
        "later characters": float(measures.future_mass(pattern)),
    }


def _far(back: float) -> str:
    return f"{abs(back):.1f} characters {'back' if back >= 0 else 'ahead'} on average"


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
