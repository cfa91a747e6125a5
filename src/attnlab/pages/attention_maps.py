"""Attention maps of a trained model on a text, drawn and described in words."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from attnlab.errors import BadInput
from attnlab.plotting import maps
from attnlab.plotting.drawing import styled
from attnlab.probes import measures
from attnlab.probes.capture import View, by_head, views
from attnlab.probes.history_file import read_history
from attnlab.trained.checkpoints import open_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# For models whose training text is unknown.
TEXT = "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer"
SHOWN = 24  # symbols of a text that the user has not chosen
EQUAL = 1e-5  # the largest difference between the weights of two heads that are called equal
SHARP_START = 0.5  # entropy of a layer at the start; one with the scale has 0.9
SHARP = 0.3  # entropy below which a whole layer of an unknown model is worth a remark
SPREAD_OUT = 0.9  # entropy above which no place stands out
MOSTLY = 0.5  # weight on one place; more than all others together
OFTEN = 0.25  # weight on one place that is worth its name
FAVORED = 2.0  # times the weight that a symbol would have if all keys had equal weights
ENOUGH = 2 * measures.MIN_KEYS  # symbols, of which half of the queries count


@dataclass(frozen=True)
class Look:
    """The result of `attnlab look`."""

    figure: "Figure"  # the heatmaps, a row for each layer
    words: list[tuple[int, int, str]]  # layer, head, what it attends to
    remarks: list[str]  # heads that are equal, and layers with sharp patterns


def look(
    target: Path | str,
    text: str | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    trust: bool = False,
) -> Look:
    """Run a model on a text, and draw and describe what its heads attend to.

    Raises BadInput if the text does not fit the model, or the model, layer or head does not exist.

    Args:
        target: a run directory or a checkpoint, or "hf:" and the directory or hub name of a model
            of transformers.
        text: from two characters or tokens to as many as the model takes; by default the start of
            the validation text of its training, and a line of Hamlet for a model of transformers.
        layer, head: the only one to show, from 0; None shows all.
        trust: as for `attnlab.trained.checkpoints.open_model`.
    """
    seen, labels, unit = views_of(target, text, trust=trust)
    titles: list[str] = []
    pictures: list[maps.Pixels] = []
    words: list[tuple[int, int, str]] = []
    layers = chosen_numbers("layer", len(seen), layer)
    for view in [seen[number] for number in layers]:
        entropies = measures.entropy(view.pattern[:1], view.mask).tolist()
        mask = view.mask.cpu().numpy()
        for n in chosen_numbers("head", len(entropies), head):
            words.append((view.layer, n, where_it_looks(view, n, unit, labels)))
            entropy = "" if math.isnan(entropies[n]) else f"  entropy {entropies[n]:.2f}"
            titles.append(f"L{view.layer}H{n}{entropy}")
            pictures.append(maps.shades(view.pattern[0, n].cpu().numpy(), mask))
    columns = max(1, len(pictures) // len(layers))
    with styled():
        figure = maps.grid(pictures, titles, labels, columns=columns)
    remarks = [*equal_heads(seen), *sharp_layers(seen, Path(target))]
    if len(labels) < ENOUGH:
        remarks.append(f"{len(labels)} symbols are few: a query has few keys; take a longer text")
    return Look(figure, words, remarks)


def views_of(
    target: Path | str, text: str | None, *, trust: bool = False
) -> tuple[list[View], list[str], str]:
    """Run a model on a text; `look` has the arguments and errors.

    Returns a view of each layer that has a pattern, the symbols, and their unit, such as
    "character".
    """
    if str(target).startswith("hf:"):
        from attnlab.trained.transformers import views_of_transformers

        return *views_of_transformers(str(target).removeprefix("hf:"), text or TEXT), "token"
    opened = open_model(target, trust=trust)
    net = opened.net
    alphabet = opened.alphabet
    if text is None:
        ids = torch.tensor(opened.text[:SHOWN])
    else:
        ids = torch.tensor(alphabet.encode(text), dtype=torch.long)
    if not 2 <= len(ids) <= net.block_size:
        raise BadInput(f"the text has {len(ids)} symbols; the model takes 2 to {net.block_size}")
    seen = list(views(net, ids[None]))
    if not seen:
        raise BadInput(f"no attention layer of {target} has a method pattern; see docs/own.md")
    return seen, [alphabet[i] for i in ids.tolist()], alphabet.unit


def chosen_numbers(what: str, count: int, number: int | None) -> Sequence[int]:
    """All numbers from 0, or the one that was asked for; BadInput if there is no such one."""
    if number is not None and not 0 <= number < count:
        raise BadInput(f"{what} = {number} must be one of 0 to {count - 1}")
    return range(count) if number is None else [number]


def equal_heads(seen: Sequence[View]) -> Iterator[str]:
    """A sentence for each layer with heads that have equal patterns, where there was a choice."""
    for view in seen:
        pattern = view.pattern[0]
        if not measures.rows_with_choice(view.mask).any():
            continue
        left = list(range(len(pattern)))
        while left:
            same = [h for h in left if pattern[h].allclose(pattern[left[0]], rtol=0, atol=EQUAL)]
            if len(same) > 1:
                heads = f"{', '.join(map(str, same[:-1]))} and {same[-1]}"
                yield f"L{view.layer}: heads {heads} are equal: check that they start differently"
            left = [h for h in left[1:] if h not in same]


def sharp_layers(seen: Sequence[View], folder: Path) -> Iterator[str]:
    """A sentence for each layer whose patterns were sharp at the start, which a run's history
    tells, or else are now."""
    history = read_history(folder) if folder.is_dir() else None
    first = history["snapshots"][0] if history else None
    starts = first is not None and first["step"] == 0
    for number, view in enumerate(seen):
        found: dict[str, list[float | None]]
        if first is not None and starts:
            found = {name: of[number] for name, of in first["measures"].items()}
        else:
            found = {name: values.tolist() for name, values in by_head(view).items()}
        entropies = [math.nan if x is None else x for x in found["entropy"]]
        entropy = sum(entropies) / len(entropies)
        rows = sum(x or 0.0 for x in found["saturated_rows"]) / len(entropies)
        said = f"entropy {entropy:.2f} of 1, {rows:.0%} of its rows on one key"
        if starts and entropy < SHARP_START:
            yield f"L{view.layer} was sharp at the start ({said}): check the scale"
        elif not starts and max(entropies) < SHARP:
            yield f"L{view.layer} is sharp ({said}): if it is untrained, check the scale"


def where_it_looks(
    view: View, head: int, unit: str = "character", labels: Sequence[str] = ()
) -> str:
    """Describe what a head attends to; `unit` is the unit of a position, `labels` the symbol at
    each one."""
    of = {name: float(values[head]) for name, values in by_head(view).items()}
    has_choice = bool(measures.rows_with_choice(view.mask).any())
    if not has_choice and view.pattern[:, head].isfinite().all():
        return "the one key that its mask allows"  # which has no entropy
    if math.isnan(of["entropy"]):
        return "nowhere: its pattern is not a number"
    places = {
        f"the previous {unit}": of["previous_mass"],
        "itself": of["self_mass"],
        f"the first {unit}": of["first_mass"],
        f"later {unit}s": of["future_mass"],
    }
    favorite, its_mass = favorite_symbol(view, head, labels)
    if favorite:
        places[f"the {unit} “{favorite}”"] = its_mass
    place, mass = max(places.items(), key=lambda item: item[1])
    back = of["distance_back"]
    far = f"{abs(back):.1f} {unit}s {'back' if back >= 0 else 'ahead'} on average"
    breadth = f"{of['effective_keys']:.1f} keys in effect, {far}"
    if of["entropy"] > SPREAD_OUT:
        return f"spread out ({breadth})"
    if mass > MOSTLY:
        return f"mostly {place} ({mass:.0%})"
    if mass > OFTEN:
        return f"often {place} ({mass:.0%}; {breadth})"
    return f"here and there ({breadth})"


def favorite_symbol(view: View, head: int, labels: Sequence[str]) -> tuple[str, float]:
    """The symbol of the text that has most of a head's weight, wherever it stands, with this
    weight; ("", 0) if none has more than FAVORED times what equal weights would give it.

    A symbol that occurs once is a position, not a symbol.
    """
    counted = measures.rows_with_choice(view.mask)
    weights = view.pattern[:, head].mean(0)[counted]  # (rows, T)
    equal = view.mask[counted] / view.mask[counted].sum(-1, keepdim=True)
    best = ("", 0.0)
    for symbol in dict.fromkeys(labels):
        at = torch.tensor([label == symbol for label in labels])
        mass = float(weights[:, at].sum(-1).mean())
        by_chance = float(equal[:, at].sum(-1).mean())
        if at.sum() > 1 and mass > max(best[1], FAVORED * by_chance):
            best = (symbol.translate(maps.VISIBLE), mass)
    return best
