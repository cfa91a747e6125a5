"""Attention maps of a trained model on a text, drawn and described in words."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from attnlab.data.corpora import encode, unit_of
from attnlab.errors import BadInput
from attnlab.plotting import heatmaps
from attnlab.probes import measures
from attnlab.probes.capture import View, pattern_measures, views
from attnlab.training.checkpoints import load_model


@dataclass(frozen=True)
class Look:
    """The result of `attnlab look`."""

    page: heatmaps.Pixels  # the heatmaps, a row for each layer
    words: list[tuple[int, int, str]]  # layer, head, description


def look(
    target: str,
    text: str,
    *,
    layer: int | None = None,
    head: int | None = None,
    trust: bool = False,
) -> Look:
    """Run a model on a text, and draw and describe what its heads attend to.

    Raises BadInput if the text does not fit the model, or the model, layer or head does not exist.

    Args:
        target: a run directory or a checkpoint, or "hf:" and the directory or hub name of a BERT
            or GPT-2.
        text: from two characters or tokens to as many as the model takes.
        layer, head: the only one to show, from 0; None shows all.
        trust: as for `attnlab.training.checkpoints.load_model`.
    """
    seen, labels, unit = views_of(target, text, trust=trust)
    chosen, panels, words = _chosen("layer", len(seen), layer), [], []
    for view in (seen[n] for n in chosen):
        entropies = measures.entropy(view.pattern[:1], view.mask).tolist()
        for n in _chosen("head", len(entropies), head):
            words.append((view.layer, n, where_it_looks(view, n, unit)))
            title = f"L{view.layer}H{n}  entropy {entropies[n]:.2f}"
            panels.append(heatmaps.Panel(title, view.pattern[0, n].numpy(), view.mask.numpy()))
    columns = max(1, len(panels) // len(chosen))
    return Look(heatmaps.grid(panels, labels, columns=columns, heading=target), words)


def views_of(target: str, text: str, *, trust: bool = False) -> tuple[list[View], list[str], str]:
    """Run a model on a text; `look` has the arguments and errors.

    Returns one view per layer, the symbols, and their unit, such as "character".
    """
    if target.startswith("hf:"):
        from attnlab.interop.transformers_loading import views_of_transformers

        return *views_of_transformers(target.removeprefix("hf:"), text), "token"
    net, alphabet = load_model(target, trust=trust)
    ids = encode(text, alphabet)
    if len(ids) < 2:
        raise BadInput(f"text = {text!r} must have at least two {unit_of(alphabet)}s")
    if len(ids) > net.block_size:
        raise BadInput(f"text has {len(ids)} symbols; block_size = {net.block_size} fit at most")
    labels = [alphabet[i] for i in ids.tolist()]
    return list(views(net, ids[None])), labels, unit_of(alphabet)


def _chosen(what: str, count: int, number: int | None) -> Sequence[int]:
    if number is not None and not 0 <= number < count:
        raise BadInput(f"{what} = {number} must be one of 0 to {count - 1}")
    return range(count) if number is None else [number]


def where_it_looks(view: View, head: int, unit: str = "character") -> str:
    """Describe what a head attends to in the first window; `unit` is the unit of a position."""
    found = pattern_measures(view.pattern[:1, [head]], view.mask)
    of = {name: float(value) for name, value in found.items()}
    if math.isnan(of["entropy"]):
        return "nowhere: its pattern is not a number"
    places = {
        f"the previous {unit}": of["previous_mass"],
        "itself": of["self_mass"],
        f"the first {unit}": of["first_mass"],
        f"later {unit}s": of["future_mass"],
    }
    place, mass = max(places.items(), key=lambda item: item[1])
    back = of["distance_back"]
    far = f"{abs(back):.1f} {unit}s {'back' if back >= 0 else 'ahead'} on average"
    breadth = f"{of['effective_keys']:.1f} keys in effect, {far}"
    if of["entropy"] > 0.9:
        return f"spread out ({breadth})"
    if mass > 0.5:
        return f"mostly {place} ({mass:.0%})"
    if mass > 0.25:
        return f"often {place} ({mass:.0%}; {breadth})"
    return f"here and there ({breadth})"
