"""Tasks with known answers: generated sequences in which some next symbols are certain.

Letters: B sequences, T positions. Only the certain symbols are predicted and counted, so a model
that solves the task has a loss of 0 and an accuracy of 1. Every training batch is new: it is drawn
from (seed, step).
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from attnlab.data.batches import IGNORED, Batch, Draw, Part
from attnlab.errors import BadInput
from attnlab.rng import generator

HELD_OUT = 512  # sequences of the validation, and of the piece for the final training loss
# More than 22,000 characters; the same ones in every version of Unicode.
SYMBOLS = " " + "".join(c for c in map(chr, range(33, 1500)) if c.isprintable())
SYMBOLS += "".join(map(chr, range(0x4E00, 0x9FA6)))  # ideographs


@dataclass(frozen=True, eq=False)
class Sequences:
    """A task whose sequences are generated."""

    name: str  # as recorded in metrics.json
    alphabet: str  # the id of a symbol is its index
    length: int  # T
    # Makes a batch of B sequences: x and y, (B, T) int64 each, y the next symbol where it is
    # certain, and `IGNORED` elsewhere.
    draw: Draw
    settings: str  # of the task, for its identity
    val_floor: ClassVar[float] = 0.0  # the loss of a model that knows the answers

    @property
    def sha256(self) -> str:
        """A digest of the settings, which determine every sequence."""
        return hashlib.sha256(f"{self.name} {self.length} {self.settings}".encode()).hexdigest()

    @property
    def record(self) -> dict[str, Any]:
        """The entry in metrics.json."""
        return {"name": self.name, "sha256": self.sha256, "length": self.length}

    @cached_property
    def _held_out(self) -> dict[str, Batch]:
        streams = {part: generator(0, f"{part} {self.settings}") for part in ("val", "train")}
        return {part: self.draw(HELD_OUT, stream) for part, stream in streams.items()}

    @property
    def val(self) -> Tensor:
        """The validation sequences one after the other, (N,) int64."""
        return self._held_out["val"][0].flatten()

    def check_length(self, block_size: int) -> None:
        """Refuse, by BadInput, a model whose windows are not as long as the sequences."""
        if block_size != self.length:
            raise BadInput(f"data.length = {self.length} must be model.block_size = {block_size}")

    def train_draw(self, block_size: int) -> Draw:
        """Draws training batches."""
        return self.draw

    def windows(self, part: Part, block_size: int, count: int) -> Batch:
        """The first sequences of "train" or "val", at most `count`: x and y."""
        x, y = self._held_out[part]
        return x[:count], y[:count]

    def held_out(self, part: Part, block_size: int) -> list[Batch]:
        """A fixed set of sequences, "train" or "val", in batches of 64."""
        x, y = self._held_out[part]
        return list(zip(x.split(64), y.split(64), strict=True))


def mqar(length: int, pairs: int = 8, symbols: int = 32) -> Sequences:
    """Multi-query associative recall (Arora et al. 2023, section 3): recall a value by its key.

    `pairs` different keys, each followed by its value, then random ones of these keys up to the
    length T. The answer to each is its value. There are `symbols` keys to choose from, and as many
    values. Raises BadInput if a number is out of range.
    """
    return _recall("mqar", length, pairs, symbols, noise=0)


def noisy_recall(length: int, pairs: int = 8, symbols: int = 32, noise: int = 32) -> Sequences:
    """`mqar` with `noise` symbols that mean nothing between the pairs, at random places.

    The noisy in-context recall of Poli et al. (2024), with all questions at the end. There are
    `symbols` different symbols of noise. Raises BadInput as `mqar` does.
    """
    _check("noise", noise, 1, length - 3)
    return _recall("noisy_recall", length, pairs, symbols, noise)


def _recall(name: str, length: int, pairs: int, symbols: int, noise: int) -> Sequences:
    kinds = 3 if noise else 2  # of symbols: keys, values, noise
    _check("length", length, 3, 2**20)
    _check("symbols", symbols, 1, (len(SYMBOLS) - 1) // kinds)
    _check("pairs", pairs, 1, min(symbols, (length - noise - 1) // 2))

    def draw(B: int, g: torch.Generator) -> Batch:
        keys = _distinct(B, symbols, pairs, g)
        values = torch.randint(symbols, (B, pairs), generator=g) + symbols
        told = 2 * pairs + noise
        asked = torch.randint(pairs, (B, length - told), generator=g)
        known = torch.stack([keys, values], dim=-1).flatten(1)  # (B, 2 pairs)
        if noise:
            place = _distinct(B, pairs + noise, pairs, g).sort(-1).values + torch.arange(pairs)
            places = torch.stack([place, place + 1], dim=-1).flatten(1)
            noises = torch.randint(symbols, (B, told), generator=g) + 2 * symbols
            known = noises.scatter(1, places, known)
        x = torch.cat([known, keys.gather(1, asked)], dim=1)
        return x, torch.cat([torch.full_like(known, IGNORED), values.gather(1, asked)], dim=1)

    settings = f"{pairs} {symbols} {noise}" if noise else f"{pairs} {symbols}"
    return Sequences(name, SYMBOLS[1 : kinds * symbols + 1], length, draw, settings)


def fuzzy_recall(length: int, pairs: int = 6, symbols: int = 8) -> Sequences:
    """`mqar` with keys of two symbols, of which other keys share the first or the second.

    `pairs` keys, each followed by its value; then questions up to the length T, each two symbols
    long, with the answer at the second.
    """
    _check("length", length, 5, 2**20)
    _check("symbols", symbols, 2, (len(SYMBOLS) - 1) // 3)
    _check("pairs", pairs, 1, min(symbols**2, (length - 2) // 3))

    def draw(B: int, g: torch.Generator) -> Batch:
        number = _distinct(B, symbols**2, pairs, g)
        keys = torch.stack([number // symbols, number % symbols + symbols], dim=-1)
        values = torch.randint(symbols, (B, pairs, 1), generator=g) + 2 * symbols
        asked = torch.randint(pairs, (B, (length - 3 * pairs + 1) // 2, 1), generator=g)
        known = torch.cat([keys, values], dim=-1).flatten(1)  # (B, 3 pairs)
        answers = values.gather(1, asked)
        questions = keys.gather(1, asked.expand(-1, -1, 2)).flatten(1)
        ignored = torch.full_like(answers, IGNORED)
        y = torch.cat([ignored, answers], dim=-1).flatten(1)
        x = torch.cat([known, questions], dim=1)
        return x[:, :length], torch.cat([torch.full_like(known, IGNORED), y], dim=1)[:, :length]

    settings = f"{pairs} {symbols}"
    return Sequences("fuzzy_recall", SYMBOLS[1 : 3 * symbols + 1], length, draw, settings)


def parity(length: int, symbols: int = 2) -> Sequences:
    """Random bits; the answer at every position is whether the number of ones so far is odd.

    No softmax attention of fixed depth represents it at every length (Hahn 2020), and a linear
    recurrence needs a negative eigenvalue (Grazzi et al. 2024). With more than two symbols, the
    answer is the sum so far modulo `symbols`. Raises BadInput if a number is out of range.
    """
    _check("length", length, 2, 2**20)
    _check("symbols", symbols, 2, 10)

    def draw(B: int, g: torch.Generator) -> Batch:
        x = torch.randint(symbols, (B, length), generator=g)
        return x, x.cumsum(1) % symbols

    return Sequences("parity", "0123456789"[:symbols], length, draw, f"{symbols}")


def copy(length: int, symbols: int = 32) -> Sequences:
    """Random symbols, a blank, and the same symbols again: the second half is the answer.

    The length T must be even. Raises BadInput if a number is out of range.
    """
    if length < 2 or length % 2:
        raise BadInput(f"data.length = {length} must be even for data=copy")
    _check("symbols", symbols, 2, 999)

    def draw(B: int, g: torch.Generator) -> Batch:
        text = torch.randint(symbols, (B, length // 2), generator=g) + 1
        whole = torch.cat([text, torch.zeros(B, 1, dtype=torch.long), text], dim=1)
        y = whole[:, 1:].clone()
        y[:, : length // 2] = IGNORED
        return whole[:, :-1], y

    return Sequences("copy", SYMBOLS[: symbols + 1], length, draw, f"{symbols}")


def induction(length: int, symbols: int = 32) -> Sequences:
    """A random text of distinct symbols, repeated with a period that differs between sequences.

    After the first period, the next symbol is the one that followed the last time (Olsson et al.
    2022). Periods are drawn from T/4 to T/2, so a position does not tell where to look.

    Raises BadInput if the length T is below 8, or if there are fewer than T/2 symbols.
    """
    _check("length", length, 8, 1998)
    _check("symbols", symbols, length // 2, 999)

    def draw(B: int, g: torch.Generator) -> Batch:
        text = _distinct(B, symbols, length // 2, g)
        low, high = length // 4, length // 2
        period = torch.randint(low, high + 1, (B, 1), generator=g)
        t = torch.arange(length + 1)
        whole = text.gather(1, t % period)  # (B, T + 1)
        return whole[:, :-1], whole[:, 1:].masked_fill(t[:-1] < period, IGNORED)

    return Sequences("induction", SYMBOLS[1 : symbols + 1], length, draw, f"{symbols}")


def _distinct(B: int, n: int, count: int, g: torch.Generator) -> Tensor:
    """`count` different numbers below n in each of B rows: (B, count)."""
    return torch.rand(B, n, generator=g).argsort(-1)[:, :count]


def _check(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise BadInput(f"data.{name} = {value} must be from {least} to {most}")
