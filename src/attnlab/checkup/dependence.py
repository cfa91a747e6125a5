"""Which position reads which: change one token, or a whole suffix, and see which logits change.

Letters: B batch, T time, V symbols, C channels. A map is (T, T): row t is the reader, column j is
what it reads, as in an attention pattern.
"""

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnlab.checkup.model_adapter import REFUSALS, ModelAdapter

# Changes below these shares of the largest one are rounding. The rows of one call are computed in
# the same way, so true zeros are usually exact; the tolerance is for kernels that round.
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@dataclass(frozen=True)
class Dependence:
    """Which logits were seen to depend on which tokens.

    Args:
        single: (T, T), the largest change of the logits at t when token j alone changes, as a
            share of the largest change anywhere; NaN in columns that were not tried.
        suffix: (T, T), the same when all tokens from j on change.
        tolerance: the share up to which a change counts as rounding.
    """

    single: Tensor
    suffix: Tensor
    tolerance: float

    @property
    def T(self) -> int:  # noqa: N802
        """The length of the sequences."""
        return self.single.shape[0]

    @property
    def reads(self) -> Tensor:
        """(T, T) bool: the logits at t change with token j."""
        return self.single > self.tolerance

    @property
    def tried(self) -> Tensor:
        """(T,) bool: the tokens that were changed."""
        return ~self.single[0].isnan()

    @property
    def ahead(self) -> Tensor:
        """(T, T) bool: the logits at t change with later tokens, alone or together."""
        above = torch.ones(self.T, self.T, dtype=torch.bool).triu(1)
        return above & (self.reads | (self.suffix > self.tolerance))

    @property
    def largest_ahead(self) -> float:
        """The largest change by a later token, as a share of the largest change anywhere."""
        above = torch.cat([self.single.triu(1).flatten(), self.suffix.triu(1).flatten()])
        return float(above[~above.isnan()].max())


def dependence(
    adapter: ModelAdapter,
    T: int,
    generator: torch.Generator,
    *,
    tolerance: float,
    bases: int = 2,
    alternatives: int = 2,
    seconds: float = 2.0,
) -> Dependence:
    """Change every token alone, and every suffix, of several random sequences.

    If the model is too slow for all tokens, as many as fit into the time are changed: the ends,
    the middle and the powers of two first, where constants in masks show.

    Args:
        tolerance: see `Dependence`.
        bases: how many random sequences.
        alternatives: how many replacements of each token.
        seconds: after about that long no further sequence is begun; one is always completed.
    """
    begin = time.perf_counter()
    single, suffix = torch.full((2, T, T), torch.nan, dtype=torch.float64)
    columns = torch.arange(T)
    for base in range(bases):
        for alternative in range(alternatives):
            ids = adapter.tokens(generator, T)
            shift = 1 + torch.randint(adapter.vocab_size - 1, (T,), generator=generator)
            other = (ids + shift) % adapter.vocab_size  # another token at every position
            if base == alternative == 0:
                columns = _affordable(adapter, ids, seconds)
            alone = torch.where(torch.eye(T, dtype=torch.bool)[columns], other, ids)
            _raise(single, columns, _changes(adapter, ids, alone))
            if alternative == 0:
                after = torch.where(torch.arange(T) >= columns[:, None], other, ids)
                _raise(suffix, columns, _changes(adapter, ids, after))
            if time.perf_counter() - begin > seconds:
                break
    unit = float(torch.cat([single[:, columns], suffix[:, columns]]).max()) or 1.0
    return Dependence(single / unit, suffix / unit, tolerance)


def _changes(adapter: ModelAdapter, ids: Tensor, changed: Tensor) -> Tensor:
    """(T,), (N, T) -> (N, T): the largest change of any logit, row by row.

    Every call also holds the unchanged sequence, so that the same kernels compute it.
    """
    parts = []
    for part in changed.split(max(adapter.rows - 1, 1)):
        logits = adapter.logits(torch.cat([ids[None], part]))
        parts.append((logits[1:] - logits[:1]).abs().amax(-1))
    return torch.cat(parts)


def _raise(map_: Tensor, columns: Tensor, changes: Tensor) -> None:
    """Keep the larger value. NaN in a map means not tried yet; a NaN change is kept for good."""
    old = map_[:, columns]
    new = changes.mT  # (T readers, columns)
    map_[:, columns] = torch.where(old.isnan(), new, torch.maximum(old, new))


def _affordable(adapter: ModelAdapter, ids: Tensor, seconds: float) -> Tensor:
    """As many columns as fit into the time, the likeliest places of a fault first."""
    T = len(ids)
    rows = min(adapter.rows, 8, T)
    begin = time.perf_counter()
    adapter.logits(ids.expand(rows, T))
    per_row = (time.perf_counter() - begin) / rows
    count = int(seconds / (2 * per_row))
    if count >= T:
        return torch.arange(T)
    powers = [2**e + d for e in range(2, 13) for d in (0, 1)]
    first = [T - 1, T // 2, 1, 0, T - 2, *powers]
    spread = torch.linspace(0, T - 1, max(count, 2)).round().int().tolist()
    chosen = [j for j in dict.fromkeys([*first, *spread]) if 0 <= j < T]
    return torch.tensor(sorted(chosen[: max(count, 8)]))


def gradient_map(adapter: ModelAdapter, T: int, generator: torch.Generator) -> Tensor | None:
    """The map by backpropagation: row t holds the gradient of t's logits by each token.

    Each row of a batch of T equal sequences is asked about another position, so that one backward
    pass gives the whole map.

    Returns:
        (T, T) as shares of the largest entry; None if the tokens do not enter through an
        nn.Embedding or no gradient flows.
    """
    module = adapter.module
    if module is None or adapter.rows < 2:
        return None
    ids = adapter.tokens(generator, T)
    rows = []
    for asked in torch.arange(T).split(adapter.rows):
        row = _gradient_rows(adapter, module, ids, asked, generator)
        if row is None:
            return None
        rows.append(row)
    whole = torch.cat(rows)
    largest = float(whole.max())
    return whole / largest if largest > 0 else whole


def _gradient_rows(
    adapter: ModelAdapter,
    module: nn.Module,
    ids: Tensor,
    asked: Tensor,
    generator: torch.Generator,
) -> Tensor | None:
    entered: list[Tensor] = []
    batch = ids.expand(len(asked), len(ids))

    def keep(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        whole = inputs and inputs[0].shape == batch.shape == output.shape[:2]
        if whole and torch.equal(inputs[0].cpu(), batch):
            if output.is_leaf:  # frozen weights
                output.requires_grad_()
            entered.append(output)

    embeddings = [m for m in module.modules() if isinstance(m, nn.Embedding)]
    handles = [embedding.register_forward_hook(keep) for embedding in embeddings]
    try:
        with torch.enable_grad():
            logits = adapter.raw(batch)
            if not entered or not logits.requires_grad:
                return None
            picked = logits[torch.arange(len(asked)), asked.to(logits.device)]  # (rows, V)
            weights = torch.randn(picked.shape, generator=generator).to(picked)
            grads = torch.autograd.grad((picked * weights).sum(), entered, allow_unused=True)
    except REFUSALS:
        return None  # a missing gradient is not a verdict; changing tokens gives one
    finally:
        for handle in handles:
            handle.remove()
    found = [g.detach().cpu().double().norm(dim=-1) for g in grads if g is not None]
    return torch.stack(found).sum(0) if found else None
