"""Small models in plain torch, into which the tables plant faults.

Letters: B batch, T time, C channels, H heads, D = C // H, V symbols.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

V, C, H, T = 29, 32, 4, 37
D = C // H


@dataclass(frozen=True)
class Row:
    """A model and what is asked of it.

    Args:
        name: what is wrong with it, or what it is.
        make: builds it.
        says: what the failure must say, or "" if it must pass; with `told`, if passed.
        check: "checkup", or the rest of the name of an assertion.
        options: arguments of the check.
        told: what the sentence of success must say.
        published: a report of such a fault, as owner/repository#number.
    """

    name: str
    make: Callable[[], Any]
    says: str = ""
    check: str = "checkup"
    options: dict[str, Any] = field(default_factory=dict)
    told: str = ""
    published: str = ""


def causal(i: Tensor, j: Tensor) -> Tensor:
    """Whether query i may attend to key j."""
    return j <= i


def every(i: Tensor, j: Tensor) -> Tensor:
    """No mask."""
    return (i + j) >= 0


def tril(n: int, diagonal: int = 0) -> Tensor:
    """(n, n) bool, True = may attend."""
    return torch.ones(n, n, dtype=torch.bool).tril(diagonal)


def split(x: Tensor) -> Tensor:
    """(B, T, C) -> (B, H, T, D)."""
    return x.unflatten(-1, (H, -1)).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    """(B, H, T, D) -> (B, T, C)."""
    return x.transpose(1, 2).flatten(2)


def scores(q: Tensor, k: Tensor) -> Tensor:
    """(B, H, T, S)."""
    return q @ k.mT / q.shape[-1] ** 0.5


def filled(q: Tensor, k: Tensor, may: Tensor, fill: float = -torch.inf) -> Tensor:
    """Masked scores."""
    return scores(q, k).masked_fill(~may, fill)


def softmax(q: Tensor, k: Tensor, v: Tensor, may: Tensor) -> Tensor:
    """Attention."""
    return filled(q, k, may).softmax(-1) @ v


def rotate(x: Tensor, place: Tensor, base: float = 100.0) -> Tensor:
    """Rotary positions of (..., T, D), at place (T,)."""
    half = x.shape[-1] // 2
    angle = place[:, None].to(x) * base ** (-torch.arange(half).to(x) / half)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


class Attention(nn.Module):
    """Attention with a mask and a kernel."""

    def __init__(self, mix: Any = softmax, may: Any = causal) -> None:
        super().__init__()
        self.qkv, self.proj, self.mix, self.may = nn.Linear(C, 3 * C), nn.Linear(C, C), mix, may

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        at = torch.arange(x.shape[1])
        return self.proj(merge(self.mix(q, k, v, self.may(at[:, None], at))))


class Block(nn.Module):
    """A mixer of positions and a feed-forward network."""

    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.n1, self.mixer, self.n2 = nn.LayerNorm(C), mixer, nn.LayerNorm(C)
        self.mlp = nn.Sequential(nn.Linear(C, 2 * C), nn.GELU(), nn.Linear(2 * C, C))

    def forward(self, x: Tensor, *args: Any) -> Tensor:
        x = x + self.mixer(self.n1(x), *args)
        return x + self.mlp(self.n2(x))


class LM(nn.Module):
    """Ids (B, T) -> logits (B, T, V), with a module `beside` the blocks."""

    vocab_size = V

    def __init__(
        self,
        mixer: Callable[[int], nn.Module] = lambda layer: Attention(),
        beside: nn.Module | None = None,
        *,
        layers: int = 2,
        length: int | None = T,
        places: bool = True,
    ) -> None:
        super().__init__()
        self.block_size = length
        self.wte, self.wpe = nn.Embedding(V, C), nn.Embedding(1024, C) if places else None
        self.blocks = nn.ModuleList(Block(mixer(n)) for n in range(layers))
        self.beside, self.norm, self.head = beside, nn.LayerNorm(C), nn.Linear(C, V, bias=False)

    def embedded(self, ids: Tensor, begin: int = 0) -> Tensor:
        """(B, T, C)."""
        at = torch.arange(begin, begin + ids.shape[1])
        return self.wte(ids) + (0 if self.wpe is None else self.wpe(at))

    def forward(self, ids: Tensor, *args: Any) -> Any:
        x = self.embedded(ids)
        for block in self.blocks:
            x = block(x, *args)
        if self.beside is not None:
            x = x + self.beside(x)
        return self.head(self.norm(x))


class Does(nn.Module):
    """A function of x (B, T, C), and of the module, which has `training`."""

    def __init__(self, function: Callable[..., Tensor], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


class Output(NamedTuple):
    """As of transformers."""

    logits: Tensor
    loss: Tensor | None
    past_key_values: Any


class Served(nn.Module):
    """One layer with the interface of transformers; faults of caches, padding and labels."""

    vocab_size, block_size = V, 48

    def __init__(self, fault: str = "", shift: int = 1) -> None:
        super().__init__()
        self.fault, self.shift = fault, shift
        self.embed, self.place = nn.Embedding(V, C), nn.Embedding(48, C)
        self.qkv, self.head = nn.Linear(C, 3 * C), nn.Linear(C, V, bias=False)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool = False,
    ) -> Output:
        n, fault = input_ids.shape[1], self.fault
        begin = 0 if past_key_values is None else past_key_values[0].shape[1]
        first = 0 if fault == "restarts" else begin
        x = self.embed(input_ids) + self.place(torch.arange(first, first + n))
        if fault == "smeared" and attention_mask is None:
            x = x + F.pad(x, (0, 0, 1, -1))
        q, k, v = self.qkv(x).chunk(3, -1)
        if past_key_values is not None and fault != "forgets":
            k, v = (torch.cat(pair, 1) for pair in zip(past_key_values, (k, v), strict=True))
        if fault == "of row 0" and begin:
            k = k[:1].expand_as(k)
        S = k.shape[1]
        may = tril(S)[S - n :]
        if fault == "top left" or (fault == "top left in steps" and n > 1):
            may = torch.ones(n, S, dtype=torch.bool).tril()
        if fault == "unmasked" and begin:
            may = torch.ones_like(may)
        if fault == "off by one" and begin:
            may[:, begin - 1] = False
        may = may.expand(len(q), n, S)
        unread = fault == "padding ignored" or (fault == "padding of one row" and len(q) == 1)
        if attention_mask is not None and not unread:
            keep = attention_mask if fault != "padding of row 0" else attention_mask[:1]
            may = may & (keep.bool() ^ (fault == "padding inverted"))[:, None]
        least = torch.finfo(q.dtype).min
        logits = self.head(x + filled(q, k, may, least).softmax(-1) @ v)
        loss = None
        if labels is not None:
            targets, at = labels.roll(-self.shift, 1), torch.arange(n) + self.shift
            targets[:, (at < 0) | (at >= n)] = -100
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return Output(logits, loss, (k, v) if use_cache else None)


# A module as text: a mean of the tokens up to position t, and of `later` more.
MEAN = """
import torch
from torch import nn

class Mean(nn.Module):
    vocab_size, block_size = 11, 13
    def __init__(self, later=0):
        super().__init__()
        self.later, self.embed, self.head = later, nn.Embedding(11, 8), nn.Linear(8, 11)
    def forward(self, ids):
        mask = torch.ones(ids.shape[1], ids.shape[1]).tril(self.later)
        return self.head(mask / mask.sum(-1, keepdim=True) @ self.embed(ids))
"""
