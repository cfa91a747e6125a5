"""Pairs of sentences, generated or from the user, with their words as ids."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from random import Random
from typing import Any

from tavi import Pair, sentence

from attnlab.errors import BadInput
from attnlab.rng import stream_seed

PAD, START, END, UNKNOWN = range(4)
SPECIAL = ("<pad>", "<start>", "<end>", "<unknown>")
MOST_PAIRS = 100_000  # beyond, sentences that are new become too rare to be waited for
LONGEST = 60  # words of a sentence


@dataclass(frozen=True, eq=False)
class Pairs:
    """Sentences with their translations, no source sentence in both parts.

    Args:
        name: recorded in the run.
        train: pairs for training.
        val: pairs for validation.
    """

    name: str
    train: Sequence[Pair]
    val: Sequence[Pair]

    @cached_property
    def alphabet(self) -> tuple[str, ...]:
        """The special symbols and the words of the training pairs, of both languages, sorted.

        The id of a word is its index here.
        """
        words = {word for pair in self.train for word in (*pair.source, *pair.target)}
        return (*SPECIAL, *sorted(words))

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of all pairs as TSV, the training part first."""
        lines = (f"{' '.join(p.source)}\t{' '.join(p.target)}\n" for p in self._all())
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    @property
    def record(self) -> dict[str, Any]:
        """The content of metrics.json about the pairs."""
        return {"name": self.name, "sha256": self.sha256, "pairs": len(self.train) + len(self.val)}

    @property
    def is_aligned(self) -> bool:
        """Whether it is known which word translates which."""
        return all(pair.alignment for pair in self._all())

    @cached_property
    def longest(self) -> int:
        """Number of words of the longest translation."""
        return max(len(pair.target) for pair in self._all())

    def _all(self) -> list[Pair]:
        return [*self.train, *self.val]


def encode(words: Iterable[str], alphabet: tuple[str, ...]) -> list[int]:
    """Words to ids; words that are not in the alphabet become `UNKNOWN`."""
    places = _places(alphabet)
    return [places.get(word, UNKNOWN) for word in words]


def decode(ids: Iterable[int], alphabet: Sequence[str]) -> list[str]:
    """Ids to words, up to the first `END`."""
    words: list[str] = []
    for i in ids:
        if i == END:
            break
        words.append(alphabet[i])
    return words


def pairs(path: str | None = None, train: int = 4000, val: int = 500, seed: int = 0) -> Pairs:
    """English and Tavi, generated; or the user's pairs from a file.

    Args:
        path: of a UTF-8 file with one pair per line (source, tab, translation) and words separated
            by blanks; null for generated pairs. Text after a second tab is ignored, because Anki's
            files have their license there.
        train: number of generated pairs for training; ignored for a file.
        val: number of generated pairs for validation; ignored for a file.
        seed: of the generated pairs, independent of the run's seed, so that all runs use the same.

    Raises:
        BadInput: a number out of its range, or a file that cannot be read.
    """
    if path is not None:
        return from_tsv(path)
    for name, value, least in (("train", train, 1), ("val", val, 1), ("seed", seed, 0)):
        if value < least:
            raise BadInput(f"data.{name} = {value} must be at least {least}")
    if train + val > MOST_PAIRS:
        raise BadInput(
            f"data.train = {train} and data.val = {val} are more than {MOST_PAIRS:,} pairs"
        )
    chance = Random(stream_seed(seed, "pairs"))
    found: dict[tuple[str, ...], Pair] = {}
    while len(found) < train + val:
        pair = sentence(chance)
        found.setdefault(pair.source, pair)
    drawn = list(found.values())
    return Pairs("tavi", drawn[:train], drawn[train:])


def from_tsv(path: str) -> Pairs:
    """The user's pairs; every tenth source sentence, with all translations, is for validation.

    Raises:
        BadInput: the file is missing, is not UTF-8, has a line without a pair, or too few pairs.
    """
    file = Path(path).expanduser()
    try:
        lines = file.read_bytes().decode("utf-8-sig").splitlines()
    except OSError as error:
        raise BadInput(f"data.path = {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"data.path = {path} is not UTF-8: byte {error.start}") from error
    by_source: dict[tuple[str, ...], list[Pair]] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            pair = _pair(line, f"line {number} of data.path = {path}")
            by_source.setdefault(pair.source, []).append(pair)
    groups = list(by_source.values())
    if len(groups) < 10:
        raise BadInput(
            f"data.path = {path} has {len(groups)} different sentences; at least 10 are needed, "
            f"of which every tenth validates"
        )
    val = [pair for group in groups[9::10] for pair in group]
    train = [pair for i, group in enumerate(groups) if i % 10 != 9 for pair in group]
    return Pairs(file.name, train, val)


@lru_cache(maxsize=8)
def _places(alphabet: tuple[str, ...]) -> dict[str, int]:
    return {word: place for place, word in enumerate(alphabet)}


def _pair(line: str, where: str) -> Pair:
    fields = line.split("\t")
    if len(fields) < 2:
        raise BadInput(f"{where} has no tab: it must be source, tab, translation")
    source, target = (tuple(field.split()) for field in fields[:2])
    for name, words in (("source", source), ("translation", target)):
        if not 1 <= len(words) <= LONGEST:
            raise BadInput(
                f"{where}: its {name} has {len(words)} words; it must have 1 to {LONGEST}"
            )
    return Pair(source, target)
