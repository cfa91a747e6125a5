"""Corpora of characters: a text as ids, its alphabet, its split, and what is known about it."""

import codecs
import hashlib
import lzma
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnlab.data.batches import (
    Batch,
    Draw,
    Part,
    ValidationBatches,
    fixed_windows,
    random_windows,
)
from attnlab.errors import BadInput

MAX_ALPHABET = 1000
VALIDATION_SHARE = 0.1
TINYSHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
PIECE_BYTES = 2**22  # read and encoded at a time
PROGRESS_BYTES = 10**8  # a line of progress each


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text as ids, split by position: the first 90 % trains, the rest validates.

    Args:
        name: as recorded in metrics.json.
        alphabet: the symbols in order of their code points; the id of a symbol is its index.
        ids: the whole text, (N,); uint8, or uint16 where the alphabet has more than 256 symbols.
        sha256: of the text as UTF-8.
        val_floor: entropy of the validation text in nats per character, given the whole past,
            where the source is known exactly. No model without a leak gets below it, except by
            chance.
    """

    name: str
    alphabet: str
    ids: Tensor
    sha256: str
    val_floor: float | None = None

    @classmethod
    def from_pieces(
        cls, name: str, pieces: Iterable[str], val_floor: float | None = None
    ) -> "Corpus":
        """Encode a text that comes in pieces, in up to three bytes of memory a character."""
        digest = hashlib.sha256()
        # Until the alphabet is known, ids count first appearances, from 1; 0 is not yet seen.
        provisional = np.zeros(sys.maxunicode + 1, dtype=np.uint16)
        seen: list[int] = []  # code points
        encoded: list[NDArray[np.uint16]] = []
        for piece in pieces:
            digest.update(piece.encode())
            points = _code_points(piece)
            ids = provisional[points]
            if not ids.all():
                new = np.unique(points[ids == 0])
                if len(seen) + len(new) > MAX_ALPHABET:
                    raise BadInput(
                        f"{name} has an alphabet of more than {MAX_ALPHABET:,} symbols, too many "
                        "for a character model; remove rare symbols from the text"
                    )
                provisional[new] = np.arange(len(seen), len(seen) + len(new)) + 1
                seen += new.tolist()
                ids = provisional[points]
            encoded.append(ids)
        alphabet = sorted(seen)
        dtype = np.uint8 if len(alphabet) <= 256 else np.uint16
        final = np.zeros(len(alphabet) + 1, dtype=dtype)
        final[provisional[alphabet]] = np.arange(len(alphabet))
        whole = np.empty(sum(map(len, encoded)), dtype=dtype)
        end = len(whole)
        while encoded:  # from the end, so that each piece is freed once it is copied
            ids = encoded.pop()
            whole[end - len(ids) : end] = final[ids]
            end -= len(ids)
        return cls(
            name=name,
            alphabet="".join(map(chr, alphabet)),
            ids=torch.from_numpy(whole),
            sha256=digest.hexdigest(),
            val_floor=val_floor,
        )

    @property
    def record(self) -> dict[str, Any]:
        """The entry in metrics.json."""
        return {"name": self.name, "sha256": self.sha256, "characters": len(self.ids)}

    @property
    def text(self) -> str:
        """The whole text, decoded from the ids."""
        return decode(self.ids, self.alphabet)

    @property
    def train(self) -> Tensor:
        """The ids of the first 90 %, (N_train,)."""
        return self.ids[: split_at(len(self.ids))]

    @property
    def val(self) -> Tensor:
        """The ids of the last 10 %, (N_val,)."""
        return self.ids[split_at(len(self.ids)) :]

    def train_draw(self, block_size: int) -> Draw:
        """Draws training batches: random windows of the first 90 %."""
        return random_windows(self.train, block_size)

    def held_out(self, part: Part, block_size: int) -> Sequence[Batch]:
        """The validation text ("val"), or as long an end of the training text ("train")."""
        ids = self.val if part == "val" else self.train[-len(self.val) :]
        return ValidationBatches(ids, block_size)

    def windows(self, part: Part, block_size: int, count: int) -> Batch:
        """At most `count` windows at even distances: x and y, (count, T) int64 each."""
        return fixed_windows(self.val if part == "val" else self.train, block_size, count)

    def check_length(self, block_size: int) -> None:
        """Refuse, by BadInput, a text whose validation part is shorter than a window plus one."""
        if len(self.val) < block_size + 1:
            need = 10 * (block_size + 1)
            raise BadInput(
                f"{self.name} has {len(self.ids):,} characters, too few for windows of "
                f"block_size = {block_size}: about {need:,} are needed"
            )


def split_at(length: int) -> int:
    """The index of the first validation character of a text."""
    return int(length * (1 - VALIDATION_SHARE))


def encode(text: str, alphabet: str) -> Tensor:
    """Characters to ids: the indices of the characters in the (sorted) alphabet.

    Returns:
        (N,) int64.

    Raises:
        BadInput: the text has characters that are not in the alphabet.
    """
    points, known = _code_points(text), _code_points(alphabet)
    ids = np.searchsorted(known, points).clip(max=len(known) - 1)
    strangers = sorted({chr(point) for point in points[known[ids] != points]})
    if strangers:
        shown = ", ".join(map(repr, strangers[:5])) + ", ..." * (len(strangers) > 5)
        raise BadInput(f"the model's alphabet lacks {shown}; it is {alphabet!r}")
    return torch.from_numpy(ids.astype(np.int64))


def decode(ids: Tensor, alphabet: str) -> str:
    """Ids (N,) back to characters."""
    return _code_points(alphabet)[ids.cpu().numpy()].tobytes().decode("utf-32-le")


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


def tinyshakespeare() -> Corpus:
    """TinyShakespeare: 1,115,394 characters of Shakespeare's plays, in the public domain.

    Collected by Andrej Karpathy for char-rnn (2015); part of the package.

    Raises:
        BadInput: the file in the package is damaged.
    """
    file = Path(__file__).with_name("tinyshakespeare.txt.xz")
    try:
        content = lzma.decompress(file.read_bytes())
    except (OSError, lzma.LZMAError) as error:
        raise BadInput(f"{file} cannot be read: {error}; install attnlab again") from error
    if hashlib.sha256(content).hexdigest() != TINYSHAKESPEARE_SHA256:
        raise BadInput(f"{file} is not TinyShakespeare; install attnlab again")
    return Corpus.from_pieces("tinyshakespeare", [content.decode("ascii")])


def text(path: str) -> Corpus:
    """A text file of your own, in UTF-8; newlines are kept as they are.

    Raises:
        BadInput: the file is missing, not a regular file, not UTF-8, or empty, or its alphabet
            is too large.
    """
    try:
        file = Path(path).expanduser()
        status = file.stat()  # before opening: opening a FIFO waits for its writer
        if not stat.S_ISREG(status.st_mode):
            raise BadInput(f"data.path = {path} is not a regular file; give a text file")
        corpus = Corpus.from_pieces(file.name, _read_pieces(file, status.st_size))
    except UnicodeDecodeError as error:
        raise BadInput(f"data.path = {path} is not UTF-8: {error.reason}") from error
    except OSError as error:
        raise BadInput(f"data.path = {path} cannot be read: {error.strerror}") from error
    except (RuntimeError, ValueError) as error:  # ~nobody, or a null byte
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"data.path = {path!r} is not a path: {error}") from error
    if not len(corpus.ids):
        raise BadInput(f"data.path = {path} is empty")
    return corpus


def _read_pieces(file: Path, size: int) -> Iterator[str]:
    """The text of a file; what it cannot decode is named by its place in the file."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    done = 0
    with file.open("rb") as stream:
        while content := stream.read(PIECE_BYTES):
            before, done = done, done + len(content)
            yield _decoded(decoder, content, done, final=False)
            if size > PROGRESS_BYTES and before // PROGRESS_BYTES < done // PROGRESS_BYTES:
                told = f"reading {file.name}: {done / 1e6:,.0f} of {size / 1e6:,.0f} MB"
                print(told, file=sys.stderr, flush=True)
    yield _decoded(decoder, b"", done, final=True)


def _decoded(decoder: codecs.IncrementalDecoder, content: bytes, done: int, *, final: bool) -> str:
    try:
        return decoder.decode(content, final)
    except UnicodeDecodeError as error:
        at = done - len(error.object) + error.start
        error.reason = f"byte {at} is {error.object[error.start]:#x}"
        raise
