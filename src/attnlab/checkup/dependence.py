"""Which position reads which, by changing tokens. A map is (T, T): row t is the reader."""

import math
import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from attnlab.checkup.model_adapter import REFUSALS, ModelAdapter, hooked


@dataclass(frozen=True)
class Dependence:
    """Which logits were seen to depend on which tokens, as shares of the largest change."""

    T: int  # the length of the sequences
    single: Tensor  # (T, T), of the logits at t when token j alone changes; NaN where not tried
    suffix: Tensor  # (T, T), the same when all tokens from j on change
    tried: Tensor  # (T,) bool, the tokens that were changed
    tolerance: float  # the share up to which a change counts as rounding

    @property
    def reads(self) -> Tensor:
        """(T, T) bool: the logits at t change with token j."""
        return self.single > self.tolerance

    @property
    def finite(self) -> bool:
        """Whether all logits were finite."""
        return bool(self.single[:, self.tried].isfinite().all())

    @property
    def ahead(self) -> Tensor:
        """(T, T) bool: the logits at t change with later tokens, alone or together."""
        above = torch.ones(self.T, self.T, dtype=torch.bool).triu(1)
        return above & (self.reads | (self.suffix > self.tolerance))

    @property
    def largest_ahead(self) -> float:
        """The largest change by a later token, as a share of the largest change anywhere."""
        return float(torch.stack([self.single, self.suffix]).triu(1)[..., self.tried].max())


def dependence(
    adapter: ModelAdapter, T: int, *, rounds: int, seconds: float, again: bool = False
) -> Dependence:
    """Change every token alone, and every suffix, of several random sequences.

    Args:
        rounds: how many sequences get all their suffixes changed; `rounds` squared are drawn.
        seconds: of this thread, so that other processes do not change what is looked at; a
            sequence that would last longer is not begun, except for the first.
        again: whether this repeats a map with tiny leaks, of which only those that repeat count.
    """
    begin, place = time.thread_time(), torch.arange(T)
    columns = _affordable(adapter, adapter.tokens(T), seconds)
    alone, after = [], []  # changes (columns, T) by one token and by all from there on
    for n in range(rounds**2):
        ids = adapter.tokens(T)
        other = adapter.other_ids(ids)
        one, all_later = (place == columns[:, None]), (place >= columns[:, None])
        alone.append(changes(adapter, ids, torch.where(one, other, ids)))
        if n % rounds == 0:
            after.append(changes(adapter, ids, torch.where(all_later, other, ids)))
        if (time.thread_time() - begin) * (n + 2) / (n + 1) > seconds:
            break
    single, suffix = torch.full((2, T, T), torch.nan, dtype=torch.float64)
    single[:, columns], suffix[:, columns] = (torch.stack(x).amax(0).mT for x in (alone, after))
    unit = float(torch.cat([single[:, columns], suffix[:, columns]]).max()) or 1.0
    tried = torch.isin(place, columns)
    found = Dependence(T, single / unit, suffix / unit, tried, adapter.tolerance)
    if not again and found.ahead.any() and found.largest_ahead < 1e-6:
        # Parts in fp32 can round a last bit of fp64 to a larger one: a leak shows twice.
        second = dependence(adapter, T, rounds=rounds, seconds=seconds, again=True)
        single = torch.minimum(found.single, second.single)
        suffix = torch.minimum(found.suffix, second.suffix)
        return replace(found, single=single, suffix=suffix, tried=tried & second.tried)
    return found


def changes(adapter: ModelAdapter, ids: Tensor, changed: Tensor) -> Tensor:
    """(T,) and N sequences (N, T) -> (N, T): the largest change of any logit, row by row.

    Every call also holds the unchanged sequence, so that the same kernels compute it.
    """
    parts = changed.split(max(adapter.rows - 1, 1))
    return torch.cat([movement(adapter.logits(torch.cat([ids[None], part]))) for part in parts])


def movement(logits: Tensor) -> Tensor:
    """(1 + N, T, V) -> (N, T): how far the logits of each row are from those of the first."""
    return (logits[1:] - logits[:1]).abs().amax(-1)


def finite_map(adapter: ModelAdapter, T: int, *, rounds: int, seconds: float) -> Dependence | None:
    """The map, or None if the model refuses or returns NaN."""
    try:
        map_ = dependence(adapter, T, rounds=rounds, seconds=seconds)
    except REFUSALS:
        return None
    return map_ if map_.finite else None


def _affordable(adapter: ModelAdapter, ids: Tensor, seconds: float) -> Tensor:
    """As many columns as fit into the time: the ends, the middle and the powers of two first."""
    T = len(ids)
    rows = min(adapter.rows, 8, T)
    begin = time.thread_time()
    adapter.logits(ids.expand(rows, T))
    per_row = (time.thread_time() - begin) / rows
    count = int(seconds / (2 * per_row + 1e-9))  # some clocks are coarse, and show 0
    if count >= T:
        return torch.arange(T)
    powers = [2**e + d for e in range(2, 13) for d in (0, 1)]
    first = [T - 1, T // 2, 1, 0, T - 2, *powers]  # where constants in masks show
    spread = torch.linspace(0, T - 1, max(count, 2)).round().int().tolist()
    chosen = [j for j in dict.fromkeys([*first, *spread]) if 0 <= j < T]
    return torch.tensor(sorted(chosen[: max(count, 8)]))


def gradient_map(adapter: ModelAdapter, T: int, seconds: float) -> Tensor | None:
    """The map by backpropagation: row t holds the gradient of t's logits by each token.

    As shares of the largest; None if tokens enter through no nn.Embedding or no gradient flows.
    A model that refuses gradients raises one of `REFUSALS`.
    """
    if not adapter.is_module or adapter.rows < 2:
        return None
    ids = adapter.tokens(1, T)
    entered: list[Tensor] = []

    def keep(_: nn.Module, args: tuple[Tensor, ...], __: object, output: Tensor) -> None:
        whole = args and args[0].shape == ids.shape == output.shape[:2]
        if whole and torch.equal(args[0].cpu(), ids):
            if output.is_leaf:  # frozen weights
                output.requires_grad_()
            entered.append(output)

    embeddings = [m for m in adapter.module.modules() if isinstance(m, nn.Embedding)]
    with hooked(embeddings, keep), torch.enable_grad():
        logits = adapter.raw(ids)[0]  # (T, V)
        if not entered or not logits.requires_grad:
            return None
        map_ = slopes(logits * adapter.random_like(logits), entered, seconds)
    largest = float(map_.nan_to_num().max())
    return map_ / largest if 0 < largest < torch.inf else map_


def slopes(y: Tensor, inputs: list[Tensor], seconds: float = math.inf) -> Tensor:
    """(T, T) fp64: how much the sum of each row of y (T, ...) depends on x[0, j], all x added.

    NaN gradients are infinity; rows for which no seconds of this thread are left are NaN.
    """
    T, begin, asked = len(y), time.thread_time(), y.flatten(1).sum(-1)
    map_ = torch.full((T, T), torch.nan, dtype=torch.float64)
    for t in sorted(range(T), key=lambda t: -(t & -t)):  # spread evenly: T/2, T/4, 3T/4, ...
        row = torch.zeros(T, dtype=torch.float64)
        for grad in torch.autograd.grad(asked[t], inputs, retain_graph=True, allow_unused=True):
            if grad is not None:
                row += grad[0].flatten(1).cpu().double().norm(dim=-1)
        map_[t] = row.nan_to_num(nan=torch.inf, posinf=torch.inf)
        if time.thread_time() - begin > seconds:
            break
    return map_
