"""A third model with the interface of transformers: padding mask, cache, labels.

Letters: B batch, T time, C channels, S tokens with those in the cache.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Output:
    """What a forward pass returns."""

    logits: Tensor
    loss: Tensor | None = None
    past_key_values: tuple[Tensor, Tensor] | None = None


class Served(nn.Module):
    """One layer of attention with a cache; the faults are in cache, padding, and labels."""

    vocab_size, block_size = 29, 48

    def __init__(self, fault: str, C: int = 24) -> None:
        super().__init__()
        self.fault = fault
        self.embed, self.place = nn.Embedding(29, C), nn.Embedding(48, C)
        self.q, self.k, self.v = nn.Linear(C, C), nn.Linear(C, C), nn.Linear(C, C)
        self.head = nn.Linear(C, 29, bias=False)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: tuple[Tensor, Tensor] | None = None,
        labels: Tensor | None = None,
        use_cache: bool = False,
    ) -> Output:
        T = input_ids.shape[1]
        before = 0 if past_key_values is None else past_key_values[0].shape[1]
        first = 0 if self.fault == "cache_restarts" else before
        x = self.embed(input_ids) + self.place(torch.arange(first, first + T))
        if (
            self.fault == "cache_smeared" and attention_mask is None
        ):  # the predecessor is not cached
            x = x + F.pad(x, (0, 0, 1, -1))
        q, k, v = self.q(x), self.k(x), self.v(x)
        if past_key_values is not None and self.fault != "cache_forgets":
            k, v = (torch.cat(pair, 1) for pair in zip(past_key_values, (k, v), strict=True))
        S = k.shape[1]
        if self.fault == "cache_top_left" or (self.fault == "cache_top_left_in_steps" and T > 1):
            visible = torch.ones(T, S, dtype=torch.bool).tril()
        elif self.fault == "cache_unmasked" and before:
            visible = torch.ones(T, S, dtype=torch.bool)
        elif self.fault == "cache_off_by_one" and before:
            visible = torch.ones(S, S, dtype=torch.bool).tril()[S - T :]
            visible[:, before - 1] = False
        else:
            visible = torch.ones(S, S, dtype=torch.bool).tril()[S - T :]
        visible = visible.expand(len(q), T, S)
        if attention_mask is not None and self.fault != "padding_ignored":
            keep = attention_mask if self.fault != "padding_of_row_0" else attention_mask[:1]
            visible = visible & (keep.bool() ^ (self.fault == "padding_inverted"))[:, None]
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(~visible, torch.finfo(scores.dtype).min).softmax(-1)
        logits = self.head(x + weights @ v)
        loss = None
        if labels is not None:
            shifts = {"labels_shifted_twice": 2, "labels_backwards": -1, "labels_not_shifted": 0}
            shift = shifts.get(self.fault, 1)
            aligned = labels.roll(-shift, 1)
            without = torch.arange(T) >= T - shift if shift >= 0 else torch.arange(T) < -shift
            aligned[:, without] = -100
            loss = F.cross_entropy(logits.flatten(0, 1), aligned.flatten(), ignore_index=-100)
        return Output(logits, loss, (k, v) if use_cache else None)


def build(fault: str, seed: int = 0) -> Served:
    """The served model with a fault of `tests.faults.planted.FAULTS`, or "healthy"."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Served(fault)
