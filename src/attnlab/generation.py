"""Sampling from a GPT, one symbol at a time, with cached keys and values."""

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from attnlab.attention.layer import Attention, KVCache
from attnlab.errors import BadInput
from attnlab.model import GPT, Block
from attnlab.rng import generator


class CachedDecoder:
    """Continues a text with a GPT, keeping the keys and values of what it has read.

    Args:
        net: in evaluation mode; `supports_cache(net)` must be true.
    """

    def __init__(self, net: GPT) -> None:
        self.net = net
        self.tail = torch.empty(1, 0, dtype=torch.long)  # (B, up to smear) the last symbols
        self.caches = [KVCache(net.block_size) for _ in net.blocks]

    def __len__(self) -> int:
        """Number of symbols read so far, at most `block_size`."""
        return len(self.caches[0])

    def read(self, ids: Tensor) -> Tensor:
        """Read T more symbols; the logits equal those of `net` on the whole text.

        Args:
            ids: (B, T) int64, the symbols that follow those read so far.

        Returns:
            logits (B, T, V).

        Raises:
            ValueError: the text is longer than `block_size`.
        """
        # Smeared embeddings need the symbols before these, which are then cut off again.
        known, start = self.tail.shape[1], len(self)
        text = torch.cat([self.tail.expand(len(ids), -1).to(ids.device), ids], dim=1)
        x = self.net.embed(text, start=start - known)[:, known:]
        self.tail = text[:, max(0, text.shape[1] - len(self.net.smear)) :]
        for block, cache in zip(self.net.blocks, self.caches, strict=True):
            assert isinstance(block, Block) and isinstance(block.attn, Attention)
            x = block.around(partial(block.attn.extend, cache=cache), x)
        return self.net.unembed(x)


def supports_cache(net: GPT) -> bool:
    """Whether a `CachedDecoder` gives the same logits as the model.

    Each attention layer answers for itself. Subclasses may compute anything, so they are always
    given the whole text.
    """
    return type(net) is GPT and all(
        type(block) is Block and isinstance(block.attn, Attention) and block.attn.cacheable
        for block in net.blocks
    )


@torch.inference_mode()
def sample(
    net: GPT,
    prompt: Tensor,
    length: int,
    *,
    temperature: float = 1.0,
    seed: int = 0,
    cache: bool = True,
) -> Iterator[int]:
    """Draw symbols that continue a prompt; the model sees at most the last `block_size`.

    Keys and values are cached, where the model allows it, until the text fills the block. After
    that each new symbol shifts the window and with it every position, so nothing can be reused
    and the whole window is read again.

    Args:
        net: in evaluation mode.
        prompt: ids (N,) int64, N >= 1.
        length: number of symbols.
        temperature: divides the logits; 0 takes the most likely symbol.
        seed: of the random stream "sample".
        cache: False reads the whole window for every symbol: same text, slower.

    Yields:
        the id of each symbol, as it is drawn.

    Raises:
        BadInput: an empty prompt, a negative length or temperature, or logits that are NaN.
    """
    if not len(prompt):
        raise BadInput("the prompt is empty; give at least one character")
    if length < 0:
        raise BadInput(f"chars = {length} must be at least 0")
    if not (temperature >= 0 and math.isfinite(temperature)):
        raise BadInput(f"temperature = {temperature} must be a number of at least 0")
    stream = generator(seed, "sample")
    decoder = CachedDecoder(net) if cache and supports_cache(net) else None
    ids = new = prompt[None, -net.block_size :]  # (1, T): the window, and what is new in it
    for _ in range(length):
        if decoder is not None and len(decoder) + new.shape[1] <= net.block_size:
            logits = decoder.read(new)[0, -1]  # (V,)
        else:
            logits = net(ids)[0, -1]
        logits = logits.cpu()  # drawn on the CPU, the same for every device
        if not logits.isfinite().all():
            raise BadInput("the model's logits are not finite: its training diverged")
        drawn = logits.argmax()
        if temperature > 0:  # shifted first, so that a tiny temperature cannot overflow
            p = ((logits - logits.max()).double() / temperature).softmax(-1)
            drawn = torch.multinomial(p, 1, generator=stream)
        yield int(drawn)
        new = drawn.view(1, 1).to(ids.device)
        ids = torch.cat([ids, new], dim=1)[:, -net.block_size :]
