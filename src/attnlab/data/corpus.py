"""A corpus of characters: its text, its alphabet, its split, and what is known of it."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnlab.errors import BadInput

MAX_ALPHABET = 1000
VALIDATION_SHARE = 0.1


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text, split by position: the first 90 % train, the rest validates.

    Args:
        name: as the run records it.
        text: the whole text.
        val_floor: entropy of the validation text in nats a character given the whole past, where
            its source is known exactly; no honest model of it gets below, but for chance.

    Raises:
        BadInput: the alphabet is larger than 1,000 symbols.
    """

    name: str
    text: str
    val_floor: float | None = None

    def __post_init__(self) -> None:
        if len(self.alphabet) > MAX_ALPHABET:
            raise BadInput(
                f"{self.name} has an alphabet of {len(self.alphabet):,} symbols; "
                f"a character model takes at most {MAX_ALPHABET:,}"
            )

    @cached_property
    def alphabet(self) -> str:
        """The symbols in order of their code points; a symbol's id is its place here."""
        return "".join(sorted(set(self.text)))

    @cached_property
    def sha256(self) -> str:
        """Of the text as UTF-8."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def record(self) -> dict[str, Any]:
        """What metrics.json says of it."""
        return {"name": self.name, "sha256": self.sha256, "characters": len(self.text)}

    @cached_property
    def ids(self) -> Tensor:
        """The whole text, (N,) int64."""
        return encode(self.text, self.alphabet)

    @property
    def train(self) -> Tensor:
        """The first 90 %, (N_train,) int64."""
        return self.ids[: self._cut]

    @property
    def val(self) -> Tensor:
        """The last 10 %, (N_val,) int64."""
        return self.ids[self._cut :]

    @property
    def _cut(self) -> int:
        return int(len(self.text) * (1 - VALIDATION_SHARE))

    def check_length(self, block_size: int) -> None:
        """Refuse a text whose validation part is shorter than a window and its next character.

        Raises:
            BadInput: it is.
        """
        if len(self.val) < block_size + 1:
            need = 10 * (block_size + 1)
            raise BadInput(
                f"{self.name} has {len(self.text):,} characters, too few for windows of "
                f"block_size = {block_size}: about {need:,} are needed"
            )


def encode(text: str, alphabet: str) -> Tensor:
    """Characters to ids: the places of the characters in the (sorted) alphabet.

    Returns:
        (N,) int64.

    Raises:
        BadInput: the text has characters that the alphabet lacks.
    """
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    known = np.frombuffer(alphabet.encode("utf-32-le"), dtype=np.uint32)
    ids = np.searchsorted(known, points).clip(max=len(known) - 1)
    strangers = sorted({chr(point) for point in points[known[ids] != points]})
    if strangers:
        shown = ", ".join(repr(symbol) for symbol in strangers[:5])
        raise BadInput(f"the corpus lacks the characters {shown}; it knows {alphabet!r}")
    return torch.from_numpy(ids.astype(np.int64))


def decode(ids: Tensor, alphabet: str) -> str:
    """Ids (N,) back to characters."""
    return "".join(alphabet[i] for i in ids.tolist())
