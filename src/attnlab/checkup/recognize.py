"""Recognize the mistake behind a map: bool (T, T), row t is the reader, column j what it reads."""

from collections.abc import Iterable

import torch
from torch import Tensor

from attnlab.checkup.findings import number_of, read_causes, span

# A cause (a key of `attnlab.checkup.findings.causes()`) and a sentence about this map.
Explanation = tuple[str, str]
Shapes = Iterable[tuple[int, range]]  # possible numbers of heads, each with those of layers


def explain(
    reads: Tensor, tried: Tensor, *, shapes: Shapes = (), clean_up_to: int = 0
) -> Explanation | None:
    """Name the mistake that lets positions read ahead; None if nothing does.

    Args:
        reads: (T, T) bool, for a model of any depth.
        tried: (T,) bool, the columns that were tried.
        shapes: of the model, to recognize mistakes in splitting heads.
        clean_up_to: the longest sequence length without a leak, 0 if there is none.
    """
    T = len(reads)
    future = torch.ones(T, T, dtype=torch.bool).triu(1) & tried
    ahead = reads & future
    if not ahead.any():
        return None
    past = reads & tried & torch.ones(T, T, dtype=torch.bool).tril(-1)
    if not past.any() and bool(ahead[0].any()) and ahead.sum() > T:
        if bool(reads.diagonal()[tried].any()):
            headline = "a position reads itself and later positions, never earlier ones"
            return "flipped_mask", f"{headline}: the mask is flipped"
        headline = "a position reads exactly what a causal mask blocks"
        return "inverted_mask", f"{headline}: the mask's polarity is inverted"
    reshaped = explain_scramble(reads, tried, shapes)
    if reshaped is not None:
        return reshaped
    if clean_up_to >= T // 4:
        rows = ahead.any(-1).nonzero().flatten().tolist()
        return _few(ahead, tried) or (
            "late_leak",
            f"the logits at {span('position', rows)} depend on later tokens in sequences of {T}, "
            f"but none do in sequences of {clean_up_to}",
        )
    if bool((ahead == future).all()):
        return "no_mask", f"every position reads all {T} positions, including later ones"
    t, j = ahead.nonzero()[0].tolist()
    some = f"{int(ahead.sum())} of {number_of(int(future.sum()), 'pair')} read ahead"
    some_first = "reads_some_ahead", f"{some}, position {t} reads {j} first"
    return _peek(ahead, future) or _few(ahead, tried) or _blocks(ahead, future) or some_first


def explain_pattern(support: Tensor) -> Explanation | None:
    """Name the mistake in the mask of a layer, if any, from where its pattern (T, T) is not 0."""
    full = support.all(-1)
    if int(full.sum()) == 1 and full[-1]:  # its keys may all be blocked, by equal numbers
        support = support & ~full[:, None]
    found = explain(support, torch.ones(len(support), dtype=torch.bool))
    if found is not None and found[0] == "off_by_one" and "up to" in found[1]:  # in one layer
        seen = found[1].split(":")[0]
        return "window_ahead", f"{seen}: the mask is a window that looks ahead"
    if found is not None:
        return found
    if support.any() and not support.diagonal()[1:].any():
        headline = "no query attends to its own position: the diagonal of the mask is blocked"
        return "self_blocked", headline
    return None


def _peek(ahead: Tensor, future: Tensor) -> Explanation | None:
    """Every position reads the same number of later ones."""
    T = len(ahead)
    i = torch.arange(T)
    distance = i[None, :] - i[:, None]
    k = int(distance[ahead].max())
    if k > T // 2 or bool((ahead != (future & (distance <= k))).any()):
        return None
    to, layers = ("", "") if k == 1 else ("up to ", f", as in {k} layers that look one ahead each")
    why = f"the mask's diagonal is off by one{layers}"
    return "off_by_one", f"position t reads {to}t+{k} and nothing later: {why}"


def _blocks(ahead: Tensor, future: Tensor) -> Explanation | None:
    """Positions are masked by blocks, inside of which everything is read."""
    i = torch.arange(len(ahead))
    for size in range(2, len(ahead) // 2 + 1):
        if not torch.equal(ahead[0], future[0] & (i < size)):
            continue
        block = i // size
        if torch.equal(ahead, future & (block[:, None] == block)):
            return "block_leak", f"positions read all of their own block of {size} positions"
    return None


def _few(ahead: Tensor, tried: Tensor) -> Explanation | None:
    """Only a few rows or columns read ahead."""
    rows = ahead.any(-1).nonzero().flatten().tolist()
    columns = ahead.any(0).nonzero().flatten().tolist()
    if len(rows) > max(len(ahead) // 8, 2) and len(columns) > max(int(tried.sum()) // 8, 2):
        return None
    pairs = [f"{t} reads {j}" for t, j in ahead.nonzero().tolist()[:6]]
    hidden = int(ahead.sum()) - len(pairs)
    more = f"; and {number_of(hidden, 'more pair')}" if hidden > 0 else ""
    rest = "no other pair does" if bool(tried.all()) else "not all other pairs were tried"
    return "single_leaks", f"position {'; '.join(pairs)}{more}; {rest}"


def scrambled(T: int, H: int, *, split: bool, merge: bool) -> Tensor:
    """Who reads whom in a causal layer that reshapes heads without a transpose.

    Args:
        split: whether (B, T, C) is viewed as (B, H, T, D) before attention.
        merge: whether (B, H, T, D) is viewed as (B, T, C) after it.
    """
    token = torch.arange(T).repeat_interleave(H).view(T, H)  # whose part is where
    places = token.reshape(H, T) if split else token.mT  # (H, T)
    # The first place of each head that holds a part of a token, (H, T); T if none does.
    index = torch.arange(T).expand(H, T)
    first = torch.full((H, T), T).scatter_reduce(1, places, index, "amin")
    parts = torch.arange(H * T)  # of the output, by head and place
    rows = parts.view(T, H) if merge else parts.view(H, T).mT
    reads = torch.eye(T, dtype=torch.bool)
    for part in rows.mT:  # (T,), one part of each row
        reads |= first[part // T] <= (part % T)[:, None]
    return reads


def explain_scramble(reads: Tensor, tried: Tensor, shapes: Shapes) -> Explanation | None:
    """Recognize heads that were split or merged without a transpose, whether they leak or not."""
    T = len(reads)
    own = torch.eye(T, dtype=torch.bool)  # read through the residual stream
    below = torch.ones(T, T, dtype=torch.bool).tril()
    for H, layers in shapes:
        if not 2 <= H < T:
            continue
        for cause, recipe in read_causes()["scrambles"].items():
            step = scrambled(T, H, split=recipe["split"], merge=recipe["merge"])
            if bool((step & ~(reads | own))[:, tried].any()):
                continue
            expected = step
            for n in range(1, layers.stop):
                plain = bool((expected == below)[:, tried].all() | expected[:, tried].all())
                same = bool(((reads == expected) | own)[:, tried].all())
                if n in layers and same and not plain:
                    return cause, recipe["sentence"].format(H=H)
                expected = (expected.float() @ step.float()) > 0  # through one more layer
    return None
