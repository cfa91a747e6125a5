"""Reading a text piece by piece: what the attention layers computed of it is kept."""

from functools import partial

import torch
from torch import Tensor

from attnlab.attention.kv_cache import KVCache
from attnlab.attention.layer import Attention
from attnlab.model import GPT, Block


class Reader:
    """A GPT that goes on with a text from where it is, up to `block_size` symbols.

    Args:
        net: for which `supports_cache` is true, in evaluation mode.
    """

    def __init__(self, net: GPT) -> None:
        self.net = net
        self.tail = torch.empty(1, 0, dtype=torch.long)  # (B, up to smear) the last symbols
        self.caches = [KVCache(net.block_size) for _ in net.blocks]

    def __len__(self) -> int:
        """How many symbols it has read."""
        return len(self.caches[0])

    def read(self, ids: Tensor) -> Tensor:
        """What `net` of the whole text would give at its last T symbols, these.

        Args:
            ids: (B, T) int64, the symbols that follow those it has read.

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
    """Whether a `Reader` gives what the model gives: every attention layer says so for itself.

    Classes derived from ours may do anything, so they are always asked for the whole text.
    """
    return type(net) is GPT and all(
        type(block) is Block and isinstance(block.attn, Attention) and block.attn.cacheable
        for block in net.blocks
    )
