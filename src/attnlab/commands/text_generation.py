"""Text generation: a model with the functions that encode and decode its symbols."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from attnlab.data.corpora import decode, encode
from attnlab.model import GPT
from attnlab.sampling import sample

UNFINISHED = "\ufffd"  # decoded in place of the bytes of an incomplete character


@dataclass(frozen=True)
class TextGenerator:
    """A model that continues a text."""

    net: GPT  # in evaluation mode
    encode: Callable[[str], Tensor]  # a text to ids (N,)
    decode: Callable[[Sequence[int]], str]  # ids to a text
    end: int | None = None  # the id that ends a text, if there is one

    def generate(
        self, prompt: str, chars: int, *, temperature: float, seed: int, cache: bool = True
    ) -> Iterator[str]:
        """Yield the continuation of a prompt in pieces, up to `chars` characters or the end.

        A token may be part of a character; it is held back until the character is complete.
        Raises BadInput as `attnlab.model.sample` does, or if the model lacks a character.
        """
        ids = self.encode(prompt)
        # A character is four bytes at most, and a token at least one; `sample` refuses chars < 0.
        most = max(chars, 4 * chars)
        written, before, held = 0, ids.tolist(), list[int]()
        for i in sample(self.net, ids, most, temperature=temperature, seed=seed, cache=cache):
            if i == self.end:
                return
            held.append(i)
            # Decoded after the tokens before it, since decoders drop the space of the first token.
            piece = self.decode([*before, *held])[len(self.decode(before)) :]
            if piece.endswith(UNFINISHED) and len(held) < 4:
                continue
            before, held = [] if piece.endswith(UNFINISHED) else held, []
            yield piece[: chars - written]
            written += len(piece)
            if written >= chars:
                return


def open_generator(target: str, *, trust: bool = False) -> TextGenerator:
    """Load a run directory or checkpoint, or a GPT-2 of transformers by "hf:" and its name.

    Raises BadInput as `attnlab.training.checkpoints.load_model` does, or if it is not a GPT-2.
    """
    if target.startswith("hf:"):
        from attnlab.interop import from_gpt2, transformers_loading

        model, tokenizer = transformers_loading.load_language_model(target.removeprefix("hf:"))
        return TextGenerator(
            from_gpt2(model),
            lambda text: transformers_loading.encode(tokenizer, text),
            partial(tokenizer.decode, clean_up_tokenization_spaces=False),
            tokenizer.eos_token_id,
        )
    # Imports all of training, which a GPT-2 does not need.
    from attnlab.training.checkpoints import load_model

    net, alphabet = load_model(target, trust=trust)
    return TextGenerator(
        net, partial(encode, alphabet=alphabet), partial(decode, alphabet=alphabet)
    )
