"""Batches by step: the batch of step n is a function of (seed, n) and nothing else."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from attnlab.errors import BadInput
from attnlab.rng import generator

Batch = tuple[Tensor, Tensor]
Draw = Callable[[int, torch.Generator], Batch]
Part = Literal["train", "val"]
IGNORED = -100  # a target that is neither predicted nor counted, as in F.cross_entropy


def random_windows(ids: Tensor, block_size: int) -> Draw:
    """Draws x and y, (B, T) int64 each, y one character on, from a text (N,) of integers."""

    def draw(B: int, stream: torch.Generator) -> Batch:
        starts = torch.randint(len(ids) - block_size, (B, 1), generator=stream)
        windows = ids[starts + torch.arange(block_size + 1)].long()  # (B, T + 1)
        return windows[:, :-1], windows[:, 1:]

    return draw


def fixed_windows(ids: Tensor, block_size: int, count: int) -> Batch:
    """Cut windows out of a text at even distances, the same ones at every call.

    Returns:
        inputs and targets, int64 (<= count, T) each.
    """
    last = len(ids) - block_size - 1
    starts = torch.linspace(0, last, count).long().unique()
    windows = ids[starts[:, None] + torch.arange(block_size + 1)].long()
    return windows[:, :-1], windows[:, 1:]


class TrainBatches(IterableDataset[Batch]):
    """Random batches, the same at step n for every variant, resumed run and rank.

    Args:
        draw: makes a batch of B rows from a random stream.
        batch_size: B, of all ranks together.
        seed: of the stream "data".
        steps: the number of batches from the start of training to its end.
        start: the first step that is still to come.
        rank, world_size: of a distributed run; a rank takes every world_size-th row.

    Raises:
        BadInput: the batch size is not a positive multiple of the world size.
    """

    def __init__(
        self,
        draw: Draw,
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
        self.draw = draw
        self.batch_size = batch_size
        self.seed = seed
        self.steps = steps
        self.start = start
        self.rank = rank
        self.world_size = world_size

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> Batch:
        """The rank's rows of the batch of one step: x and y, each (B, T)."""
        x, y = self.draw(self.batch_size, generator(self.seed, "data", step))
        return x[self.rank :: self.world_size], y[self.rank :: self.world_size]

    def __iter__(self) -> Iterator[Batch]:
        return (self[step] for step in range(self.start, self.steps))


class ValidationBatches(Sequence[Batch]):
    """The whole text in windows that do not overlap, so that each character is predicted once.

    The first character has no past and is not predicted; the last window may be shorter. The
    batches are pairs x, y of shape (<= batch_size, <= block_size), int64, that hold N - 1
    predictions in all.

    Args:
        ids: (N,) of any integer dtype, N >= 2.
        block_size: T.
        batch_size: windows in a batch.
    """

    def __init__(self, ids: Tensor, block_size: int, batch_size: int = 64) -> None:
        self.ids = ids
        self.block_size = block_size
        self.batch_size = batch_size

    def __len__(self) -> int:
        windows, rest = divmod(len(self.ids) - 1, self.block_size)
        return -(-windows // self.batch_size) + (rest > 0)

    def __getitem__(self, index: int | slice) -> Any:
        chosen = range(len(self))[index]
        if isinstance(chosen, range):
            return [self[i] for i in chosen]
        T = self.block_size
        end_of_windows = (len(self.ids) - 1) // T * T
        start = min(chosen * self.batch_size * T, end_of_windows)
        stop = min(start + self.batch_size * T, end_of_windows)
        if start == end_of_windows:  # the last window, which is shorter
            stop = len(self.ids) - 1
            T = stop - start
        piece = self.ids[start : stop + 1].long()
        return piece[:-1].view(-1, T), piece[1:].view(-1, T)
