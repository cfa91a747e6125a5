"""Texts sampled from a GPT, with a cache where its attention allows one.

Letters: B batch, T time, V symbols.
"""

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from attnlab.attention.cache import KVCache, takes_memo
from attnlab.attention.layer import Attention
from attnlab.errors import BadInput
from attnlab.model import GPT, Block
from attnlab.rng import generator


class CachedDecoder:
    """Extends a text with a GPT and caches the keys and values of the text so far.

    The GPT must be in evaluation mode, and one that `supports_cache`.
    """

    def __init__(self, net: GPT) -> None:
        self.net = net
        self.tail = torch.empty(1, 0, dtype=torch.long)  # (B, up to smear) the last symbols
        self.caches = [KVCache(net.block_size) for _ in net.blocks]

    def __len__(self) -> int:
        """Number of symbols read so far, at most `block_size`."""
        return len(self.caches[0])

    def read(self, ids: Tensor) -> Tensor:
        """The logits (B, T, V) of the next T symbols, ids (B, T) int64, as on the whole text.

        Raises ValueError if the text becomes longer than `block_size`.
        """
        # Smearing needs the symbols before these; their own embeddings are then dropped.
        known, start = self.tail.shape[1], len(self)
        text = torch.cat([self.tail.expand(len(ids), -1).to(ids.device), ids], dim=1)
        x = self.net.embed(text, start=start - known)[:, known:]
        self.tail = text[:, max(0, text.shape[1] - len(self.net.smear)) :]
        memo = {"ids": ids}
        for block, cache in zip(self.net.blocks, self.caches, strict=True):
            assert isinstance(block, Block) and isinstance(block.attn, Attention)
            extend = partial(block.attn.extend, cache=cache)
            named = takes_memo(type(block.attn).extend)
            x = block.around(partial(extend, memo=memo) if named else extend, x)
        return self.net.unembed(x)


def supports_cache(net: GPT) -> bool:
    """Whether a `CachedDecoder` gives the logits of the model; never for a subclass of `GPT`."""
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
    """Yield symbols that continue a prompt; the model sees at most the last `block_size`.

    With `cache`, keys and values are cached if the model supports it, until the text fills the
    block. Each further symbol shifts the positions of all, so the whole window is computed again,
    as it always is without `cache`: the same text, but slower.

    The model must be in evaluation mode. The prompt is ids (N,) int64, N >= 1. The temperature
    divides the logits; 0 takes the most likely symbol. The seed is that of the stream "sample".
    Raises BadInput for an empty prompt, a negative length or temperature, or logits that are not
    finite.
    """
    if not len(prompt):
        raise BadInput("the prompt is empty; give at least one character")
    if length < 0:
        raise BadInput(f"chars = {length} must be at least 0")
    if not (temperature >= 0 and math.isfinite(temperature)):
        raise BadInput(f"temperature = {temperature} must be a number of at least 0")
    stream = generator(seed, "sample")
    decoder = CachedDecoder(net) if cache and supports_cache(net) else None
    ids = new = prompt[None, -net.block_size :]  # (1, T): the window, and its new symbols
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
