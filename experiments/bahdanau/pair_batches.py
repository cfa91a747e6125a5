"""Batches of pairs by step: the batch of step n depends only on (seed, n)."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from sentence_pairs import END, PAD, START, encode
from tavi import Pair
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import IterableDataset

from attnlab.errors import BadInput
from attnlab.rng import generator


class Batch(NamedTuple):
    """Sentences as ids, each padded to the longest of its kind.

    Args:
        source: with `END`, (B, S).
        given: input of the decoder, `START` first, (B, T).
        target: words to predict, `END` last, (B, T).
    """

    source: Tensor
    given: Tensor
    target: Tensor


class PairBatches(IterableDataset[Batch]):
    """Batches in a new order in each epoch; step n is the same for every variant and resumed run.

    An epoch drops the last, incomplete batch.

    Args:
        pairs: the training pairs.
        alphabet: of `Pairs`.
        batch_size: B, of all ranks together.
        seed: of the stream "data".
        steps: the number of batches from the start of the training to its end.
        start: the first step to return.
        rank, world_size: of a distributed run; a rank takes every world_size-th pair.

    Raises:
        BadInput: the batch size is not a multiple of the world size, or there are fewer pairs.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        alphabet: tuple[str, ...],
        *,
        batch_size: int,
        seed: int,
        steps: int,
        start: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if batch_size < 1 or batch_size % world_size:
            raise BadInput(
                f"data.batch_size = {batch_size} must be a positive multiple of the number of "
                f"devices, {world_size}"
            )
        if len(pairs) < batch_size:
            raise BadInput(
                f"data.batch_size = {batch_size} is more than the {len(pairs)} pairs to train on"
            )
        self.pairs = pairs
        self.alphabet = alphabet
        self.batch_size = batch_size
        self.seed = seed
        self.steps = steps
        self.start = start
        self.rank = rank
        self.world_size = world_size

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> Batch:
        """The rank's rows of the batch of one step."""
        return batch_of(self.rows(step)[self.rank :: self.world_size], self.alphabet)

    def rows(self, step: int) -> list[Pair]:
        """The pairs of one step, of all ranks."""
        epoch, place = divmod(step, steps_an_epoch(len(self.pairs), self.batch_size))
        order = _order(self.seed, epoch, len(self.pairs))
        rows = order[place * self.batch_size : (place + 1) * self.batch_size]
        return [self.pairs[i] for i in rows]

    def __iter__(self) -> Iterator[Batch]:
        return (self[step] for step in range(self.start, self.steps))


def steps_an_epoch(pairs: int, batch_size: int) -> int:
    """The number of complete batches of the pairs."""
    return pairs // batch_size


def batch_of(pairs: Sequence[Pair], alphabet: tuple[str, ...]) -> Batch:
    """Pairs as ids."""
    sources = [[*encode(pair.source, alphabet), END] for pair in pairs]
    targets = [[*encode(pair.target, alphabet), END] for pair in pairs]
    return Batch(
        _padded(sources), _padded([[START, *ids[:-1]] for ids in targets]), _padded(targets)
    )


def validation_batches(
    pairs: Sequence[Pair], alphabet: tuple[str, ...], batch_size: int = 100
) -> list[Batch]:
    """All pairs in order, each once."""
    starts = range(0, len(pairs), batch_size)
    return [batch_of(pairs[start : start + batch_size], alphabet) for start in starts]


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, count: int) -> list[int]:
    order: list[int] = torch.randperm(count, generator=generator(seed, "data", epoch)).tolist()
    return order


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)
