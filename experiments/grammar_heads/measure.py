"""Weight of attention heads on the dependencies of the plays' grammar.

There are two dependencies. A stage direction such as "[Ada looks coldly at Tom.]" must end with a
bracket because it began with one. An answer repeats the noun of its question: "Where is the
harp?", then "Why, the harp sinks." In both, the text shows which earlier characters determine the
later one, so the measure needs neither a parser nor annotations.
"""

import copy
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attnlab.attention import SelfAttention
from attnlab.data.alphabets import Characters
from attnlab.data.plays import Plays
from attnlab.init import init_weights
from attnlab.model import GPT

# `source` decides `copy`; a window ends with the last character of `copy`.
BRACKET = re.compile(r"(?P<source>\[)[^\]\n]{12,55}\.(?P<copy>\])")
NOUN = re.compile(
    r"(?P<source>[a-z]{2,})\?\n\n[A-Z][a-z]+:\n"
    r"(?:Why, the |What, my |Do not speak of the |As for the |Ask not for the |Oh, that )"
    r"[a-z](?<=(?P<first>.))(?P<copy>[a-z]+)\b"
)


class Windows(NamedTuple):
    """Windows of a text, each of which ends with a character that an earlier span decides.

    Args:
        ids: (B, T + 1).
        queries: the predictions that the span decides, (B, T) bool.
        start, stop: the span, (B,) each, positions in the window.
    """

    ids: Tensor
    queries: Tensor
    start: Tensor
    stop: Tensor


def find(dependency: re.Pattern[str], text: str, ids: Tensor, block_size: int) -> Windows:
    """Every occurrence of a dependency that fits into a window.

    Args:
        dependency: `BRACKET` or `NOUN`.
        text: the text.
        ids: the same, as the model reads it, (N,) int64.
        block_size: T.
    """
    rows = []
    queries = []
    spans = []
    for match in dependency.finditer(text):
        first = match.end() - block_size - 1
        if max(first, 0) > match.start("source") or first < 0:
            continue
        if dependency is NOUN and match["source"] != match["first"] + match["copy"]:
            continue
        rows.append(ids[first : match.end()])
        query = torch.zeros(block_size, dtype=torch.bool)
        query[match.start("copy") - first - 1 :] = True  # predicts `copy`, character by character
        queries.append(query)
        spans.append((match.start("source") - first, match.end("source") - first))
    start, stop = torch.tensor(spans).T
    return Windows(torch.stack(rows), torch.stack(queries), start, stop)


def weight_on_span(pattern: Tensor, queries: Tensor, start: Tensor, stop: Tensor) -> Tensor:
    """Weight on the span, mean over the queries of a window.

    Args:
        pattern: (B, H, T, T).
        queries: (B, T) bool.
        start, stop: (B,) each.

    Returns:
        (B, H), in [0, 1].
    """
    key = torch.arange(pattern.shape[-1])
    span = (key >= start[:, None]) & (key < stop[:, None])  # (B, T)
    on_span = (pattern * span[:, None, None]).sum(-1)  # (B, H, T)
    return (on_span * queries[:, None]).sum(-1) / queries.sum(-1)[:, None]


@torch.no_grad()
def patterns(net: GPT, ids: Tensor) -> Tensor:
    """Patterns of all layers' heads, layer after layer: (B, T) -> (B, L * H, T, T)."""
    x = net.embed(ids)
    found = []
    for block in net.blocks:
        found.append(block.attn.pattern(block.ln_1(x)))
        x = block(x)
    return torch.cat(found, dim=1)


def best_head(net: GPT, windows: Windows) -> dict[str, Any]:
    """The head with the largest excess weight on the span, in windows it was not chosen by.

    The excess is over the same head's weight on the spans of other windows, so that a head which
    always looks as far back as the span usually lies gains nothing.

    Args:
        net: a language model of the plays.
        windows: one dependency's.

    Returns:
        head: its number, counted through all layers; weight, shuffled and excess on the second
        half of the windows; loss of the decided predictions, and what it rises by when the
        output of this head is removed, and that of the next head of its layer; all_heads: the
        excess of every head, on all windows.
    """
    ids, queries, start, stop = windows
    pattern = patterns(net, ids[:, :-1])
    own = weight_on_span(pattern, queries, start, stop)  # (B, L * H)
    shuffled = weight_on_span(pattern, queries, start.roll(1), stop.roll(1))
    excess = own - shuffled
    half = len(ids) // 2
    head = int(excess[:half].mean(0).argmax())
    H = net.blocks[0].attn.n_head
    neighbor = head // H * H + (head + 1) % H
    loss = _loss(net, windows)
    return {
        "head": head,
        "windows": len(ids),
        "weight": float(own[half:, head].mean()),
        "shuffled": float(shuffled[half:, head].mean()),
        "excess": float(excess[half:, head].mean()),
        "loss": loss,
        "price of the head": _loss(without_head(net, head), windows) - loss,
        "price of its neighbor": _loss(without_head(net, neighbor), windows) - loss,
        "all heads": excess.mean(0).tolist(),
    }


@torch.no_grad()
def _loss(net: GPT, windows: Windows) -> float:
    logits = net(windows.ids[:, :-1])
    return float(F.cross_entropy(logits[windows.queries], windows.ids[:, 1:][windows.queries]))


def without_head(net: GPT, head: int) -> GPT:
    """A copy of the model that does not read the output of one head."""
    changed = copy.deepcopy(net)
    layer, h = divmod(head, net.blocks[0].attn.n_head)
    D = net.blocks[layer].attn.head_size
    with torch.no_grad():
        changed.blocks[layer].attn.proj.weight[:, h * D : (h + 1) * D] = 0
    return changed


def after_training(folder: Path) -> Mapping[str, Any]:
    """The best head for each dependency in a trained model, on plays that no run trains on."""
    from attnlab.trained.checkpoints import load_model

    net, alphabet = load_model(folder)
    return _both(net, alphabet.encode)


def untrained(seed: int) -> Mapping[str, Any]:
    """The same in a model of the same size that was not trained."""
    return _both(untrained_net(seed), Characters(Plays().alphabet).encode)


def untrained_net(seed: int, n_layer: int = 2) -> GPT:
    """A model of the plays in the size of the runs, as it is before training."""
    V = len(Plays().alphabet)
    net = GPT(SelfAttention, V, block_size=64, n_layer=n_layer, n_head=4, n_embd=64)
    init_weights(net, seed, "unit")
    return net.eval()


def _both(net: GPT, encode: Callable[[str], list[int]]) -> dict[str, Any]:
    text = fresh_plays()
    ids = torch.tensor(encode(text))
    found: dict[str, Any] = {}
    for name, dependency in (("bracket", BRACKET), ("noun", NOUN)):
        best = best_head(net, find(dependency, text, ids, net.block_size))
        found |= {f"{name}: {what}": value for what, value in best.items()}
    return found


@cache
def fresh_plays() -> str:
    """Plays that no run trains on: the corpus `plays` has seed 0."""
    return Plays().generate(seed=1, length=100_000)[0]
