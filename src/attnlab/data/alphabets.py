"""Alphabets: a text as ids of characters, bytes or tokens, and back."""

from collections.abc import Sequence
from pathlib import Path

from attnlab.data.contract import Alphabet
from attnlab.errors import BadInput, first_line

MOST_CHARACTERS = 1000  # different ones; with more, bytes keep the embedding small


class Characters(Sequence[str]):
    """The different characters of a text, by code point; the id of a symbol is its index."""

    unit = "character"

    def __init__(self, content: str) -> None:
        self.content = content
        self.ids = {letter: i for i, letter in enumerate(content)}

    def __len__(self) -> int:
        return len(self.content)

    def __getitem__(self, i: int) -> str:  # type: ignore[override]  # no slices
        return self.content[i]

    def encode(self, text: str) -> list[int]:
        """The ids of a text; BadInput for an unknown character."""
        if unknown := sorted(set(text) - self.ids.keys()):
            raise BadInput(f"the model's alphabet lacks {', '.join(map(repr, unknown[:5]))}")
        return [self.ids[letter] for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.content[i] for i in ids)

    def size_of(self, i: int) -> int:
        return len(self.content[i].encode())


class Bytes(Sequence[str]):
    """The 256 bytes of UTF-8."""

    unit = "byte"

    def __init__(self, content: str = "") -> None:
        self.content = ""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, i: int) -> str:  # type: ignore[override]  # no slices
        if not 0 <= i < 256:
            raise IndexError(i)
        return chr(i) if i < 128 else f"\\x{i:02x}"

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """The text of bytes; U+FFFD for those of an incomplete character."""
        return bytes(ids).decode(errors="replace")

    def size_of(self, i: int) -> int:
        return 1


class Subwords(Sequence[str]):
    """The tokens of a tokenizer.json of the library `tokenizers`, such as GPT-2's."""

    unit = "token"

    def __init__(self, content: str) -> None:
        from tokenizers import Tokenizer

        self.library = Tokenizer.from_str(content)
        self.content = str(self.library.to_str())  # the same however the file was written
        # Ids may have gaps where tokens were deleted, so the count of tokens would be too few.
        self.size = 1 + max(self.library.get_vocab().values(), default=-1)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: int) -> str:  # type: ignore[override]  # no slices
        if not 0 <= i < self.size:
            raise IndexError(i)
        return self.decode([i])

    def encode(self, text: str) -> list[int]:
        return list(self.library.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.library.decode(list(ids), skip_special_tokens=False))

    def size_of(self, i: int) -> int:
        symbol = self[i]
        if "\ufffd" not in symbol:
            return len(symbol.encode())
        # A part of a character: the token has a letter for each byte, or is written <0xE2>.
        token = str(self.library.id_to_token(i))
        return 1 if token.startswith("<0x") else len(token)


KINDS = {kind.__name__: kind for kind in (Characters, Bytes, Subwords)}


def alphabet_of(text: str, tokenizer: str) -> Alphabet:
    """The alphabet for a text. The tokenizer: "characters", "bytes" or the path of a
    tokenizer.json. BadInput for another file, and for more than 1,000 different characters."""
    if tokenizer == "bytes":
        return Bytes()
    if tokenizer != "characters":
        try:
            return Subwords(Path(tokenizer).expanduser().read_text(encoding="utf-8"))
        except Exception as error:  # the library raises no narrower type
            known = f"characters, bytes, or the path of a tokenizer.json: {first_line(error)}"
            raise BadInput(f"data.tokenizer = {tokenizer} must be {known}") from error
    letters = "".join(sorted(set(text)))
    if len(letters) > MOST_CHARACTERS:
        raise BadInput("the text has more than 1,000 characters; use data.tokenizer=bytes")
    return Characters(letters)


def to_plain(alphabet: Alphabet) -> dict[str, str]:
    """An alphabet as plain values, as checkpoints hold it: its kind, and its content."""
    return {"kind": type(alphabet).__name__, "content": alphabet.content}


def from_plain(plain: dict[str, str]) -> Alphabet:
    """The inverse of `to_plain`; BadInput for another kind."""
    if plain.get("kind") not in KINDS:
        raise BadInput(f"an alphabet of the kind {plain.get('kind')} is unknown")
    return KINDS[plain["kind"]](plain["content"])
