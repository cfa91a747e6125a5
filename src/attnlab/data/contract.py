"""What a model trains and validates on, as the other parts of attnlab see it.

Letters: B sequences, T positions, N symbols one after the other.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

Batch = tuple[Tensor, Tensor]  # x and y, (B, T) int64 each, y one symbol later than x
Draw = Callable[[int, torch.Generator], Batch]  # B sequences from a random stream
Part = Literal["train", "val"]
Record = dict[str, str | int]  # what metrics.json says about data
IGNORED = -100  # a target that is neither predicted nor counted, as in F.cross_entropy


def count_predictions(y: Tensor) -> int:
    """The number of targets (B, T) that are predicted: those that are not IGNORED."""
    return int((y != IGNORED).sum())


class Alphabet(Protocol):
    """The symbols of a text in the order of their ids."""

    @property
    def unit(self) -> str:
        """What one symbol is: a character, a byte or a token."""

    @property
    def content(self) -> str:
        """All that a checkpoint needs to make the alphabet again."""

    def __len__(self) -> int: ...
    def __getitem__(self, i: int, /) -> str: ...  # IndexError beyond the last
    def __iter__(self) -> Iterator[str]: ...

    def encode(self, text: str) -> list[int]:
        """The ids of a text; BadInput for a character that the alphabet lacks."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""

    def size_of(self, i: int) -> int:
        """How many bytes of UTF-8 a symbol stands for."""


class Data(Protocol):
    """A text, or a task whose answers are known: what a function of the group `data` returns.

    A task counts only certain answers; all other targets are IGNORED. A text counts every symbol.
    """

    @property
    def name(self) -> str:
        """As recorded in metrics.json."""

    @property
    def alphabet(self) -> Alphabet:
        """The symbols; the model has one logit for each."""

    @property
    def sha256(self) -> str:
        """A digest of all that determines the sequences; part of the identity of a run."""

    @property
    def is_task(self) -> bool:
        """Whether only certain answers are predicted, so that an accuracy has a meaning."""

    @property
    def unit(self) -> str:
        """What one prediction is: a character, a byte, a token or an answer."""

    @property
    def val_floor(self) -> float | None:
        """The lowest possible validation loss in nats per prediction, where it is known."""

    @property
    def val(self) -> Tensor:
        """The symbols of the validation one after the other, (N,) int64."""

    @property
    def record(self) -> Record:
        """The entry in metrics.json."""

    def check_length(self, block_size: int) -> None:
        """Raise BadInput unless the data can be read in windows of `block_size` symbols."""

    def at_length(self, length: int) -> "Data":
        """The same data for windows of `length` symbols; BadInput if there are none."""

    def train_draw(self, block_size: int) -> Draw:
        """A function that draws training batches: B and a random stream -> x, y (B, T)."""

    def held_out(self, part: Part, block_size: int) -> list[Batch]:
        """A fixed piece of "train" or "val" in batches, each symbol predicted at most once.

        That of "val" is all validation data, that of "train" about as long.
        """

    def windows(self, part: Part, block_size: int, count: int) -> Batch:
        """At most `count` windows of "train" or "val", always the same: x, y (B, T)."""

    def bits_per_byte(self, loss: float) -> float | None:
        """A validation loss in nats per prediction, in bits per byte of UTF-8; None for a task."""
