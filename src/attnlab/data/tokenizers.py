"""Tokenizers other than characters, as sequences of symbols; the id of a symbol is its index."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.errors import BadInput, first_line
from attnlab.files import read_file

LARGEST_FILE = 2**26  # of a tokenizer; those of 256,000 tokens take half as much


class Bytes(Sequence[str]):
    """The 256 bytes of UTF-8."""

    unit = "byte"
    stored = "bytes"  # in a checkpoint

    def __len__(self) -> int:
        return 256

    def __getitem__(self, i: Any) -> Any:
        return chr(i) if i < 128 else f"\\x{range(256)[i]:02x}"

    def encode(self, text: str) -> NDArray[np.int64]:
        """The bytes of a text, (N,)."""
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of bytes; U+FFFD for those of an incomplete character."""
        return bytes(ids).decode(errors="replace")

    def size_of(self, i: int) -> int:
        """How many bytes of a text a symbol stands for."""
        return 1


class Subwords(Sequence[str]):
    """The tokens of a tokenizer of the library `tokenizers`, such as GPT-2's.

    `content` is that of its tokenizer.json. Raises BadInput if the library cannot read it.
    """

    unit = "token"

    def __init__(self, content: str) -> None:
        import tokenizers

        try:
            self._library = tokenizers.Tokenizer.from_str(content)
        except Exception as error:  # the library raises no narrower type
            raise BadInput(f"not a file of tokenizers: {first_line(error)}") from error
        self._library.no_truncation()
        self._library.no_padding()
        self._size = max(self._library.get_vocab().values(), default=-1) + 1
        self.stored = str(self._library.to_str())  # in a checkpoint

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, i: Any) -> Any:
        return self.decode([range(self._size)[i]])

    def encode(self, text: str) -> NDArray[np.int64]:
        """The tokens of a text, (N,), without special ones at its ends."""
        ids = self._library.encode(text, add_special_tokens=False).ids
        return np.array(ids, dtype=np.int64)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens; U+FFFD for the bytes of an incomplete character."""
        return str(self._library.decode(list(ids), skip_special_tokens=False))

    def size_of(self, i: int) -> int:
        """How many bytes of a text a token stands for."""
        if "\ufffd" not in self[i]:
            return len(self[i].encode())
        token = str(self._library.id_to_token(i))  # a character for each byte, or "<0xE2>"
        return 1 if token.startswith("<0x") else len(token)


Tokenizer = Bytes | Subwords


def open_tokenizer(setting: str) -> Tokenizer:
    """The tokenizer of `data.tokenizer`.

    The setting is "bytes", or the path of a tokenizer.json or of a directory with one, or with the
    vocab.json and merges.txt of GPT-2. Raises BadInput if there is no such file, or if it is not
    a tokenizer.
    """
    if setting == Bytes.stored:
        return Bytes()
    import tokenizers

    try:
        file = Path(setting).expanduser()
        if file.is_dir() and not (file / "tokenizer.json").exists():
            pair = [file / name for name in ("vocab.json", "merges.txt")]
            if not all(map(Path.exists, pair)):
                raise BadInput("it holds no tokenizer.json, and no vocab.json with merges.txt")
            return Subwords(tokenizers.ByteLevelBPETokenizer(*map(str, pair)).to_str())
        file = file / "tokenizer.json" if file.is_dir() else file
        return Subwords(read_file(file, at_most=LARGEST_FILE).decode())
    except Exception as error:  # the library raises no narrower type
        raise BadInput(
            f"data.tokenizer = {setting!r} must be characters, bytes, a tokenizer.json, or its "
            f"directory: {first_line(error)}"
        ) from error


def from_plain(stored: Any) -> Sequence[str]:
    """The alphabet of what `attnlab.data.corpora.to_plain` gave; ValueError if it is none."""
    if isinstance(stored, dict):
        content = str(stored["tokenizer"])
        return Bytes() if content == Bytes.stored else Subwords(content)
    symbols = list(stored) if isinstance(stored, str | list | tuple) else []
    if not symbols or not all(isinstance(symbol, str) and symbol for symbol in symbols):
        raise ValueError("alphabet must be a text or a list of texts")
    "".join(symbols).encode()  # refuses half a surrogate pair
    if len(set(symbols)) < len(symbols):
        raise ValueError("alphabet holds a symbol twice")
    return stored if isinstance(stored, str) else tuple(symbols)
