"""Text in, text out: a model with what turns characters into its symbols and back."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from attnlab.data.corpora import encode
from attnlab.generation import sample
from attnlab.model import GPT

UNFINISHED = "\ufffd"  # what stands for bytes that are no character yet


@dataclass(frozen=True)
class Writer:
    """A model that goes on with a text.

    Args:
        net: in evaluation mode.
        encode: a text to ids (N,).
        decode: ids to a text.
        end: the id that ends a text; None where there is none.
    """

    net: GPT
    encode: Callable[[str], Tensor]
    decode: Callable[[Sequence[int]], str]
    end: int | None = None

    def write(
        self, prompt: str, chars: int, *, temperature: float, seed: int, cache: bool = True
    ) -> Iterator[str]:
        """What comes after the prompt, in pieces, until it has `chars` characters or ends.

        A token may be a part of a character; it is held back until the character is whole.

        Raises:
            BadInput: as `attnlab.generation.sample`, or the prompt has strange characters.
        """
        ids = self.encode(prompt)
        # A character is four bytes at most, and a token at least one; `sample` refuses chars < 0.
        most = max(chars, 4 * chars)
        written, held = 0, list[int]()
        for i in sample(self.net, ids, most, temperature=temperature, seed=seed, cache=cache):
            if i == self.end:
                return
            held.append(i)
            piece = self.decode(held)
            if piece.endswith(UNFINISHED) and len(held) < 4:
                continue
            held.clear()
            yield piece[: chars - written]
            written += len(piece)
            if written >= chars:
                return


def open_generator(target: str) -> Writer:
    """The writer of a run folder or checkpoint, or of "hf:" and a GPT-2 of transformers.

    Raises:
        BadInput: there is no such model, or our GPT cannot express it.
    """
    if target.startswith("hf:"):
        from attnlab.interop import from_gpt2, transformers_loading

        model, tokenizer = transformers_loading.load_language_model(target.removeprefix("hf:"))
        return Writer(
            from_gpt2(model),
            lambda text: transformers_loading.encode(tokenizer, text),
            partial(tokenizer.decode, clean_up_tokenization_spaces=False),
            tokenizer.eos_token_id,
        )
    # The composition root is heavy, and a GPT-2 does not need it.
    from attnlab.training.run import load_model

    net, alphabet = load_model(Path(target))
    return Writer(
        net,
        lambda text: encode(text, alphabet),
        lambda ids: "".join(alphabet[i] for i in ids),
    )
