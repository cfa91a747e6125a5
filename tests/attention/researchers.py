"""Layers as researchers write them, outside of attnlab, each with a twin that reads ahead.

A twin has the parent `Ahead`, and its mistake. Letters: B batch, T time, C channels, H heads.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention import AttentionConfig, SelfAttention, kernel
from attnlab.attention.core import masked_softmax
from attnlab.init import normal, ones, zeros


class Ahead(nn.Module):
    """How many positions ahead a twin reads."""

    ahead = 1


class Gate(SelfAttention):
    """An output gate of each channel (Qiu et al. 2025); the mistake: that of the next position."""

    ahead = 0

    def __init__(self, config: AttentionConfig, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.opened = nn.Linear(config.n_embd, config.n_embd)

    def merge(self, mixed: Tensor, x: Tensor, v: Tensor) -> Tensor:
        return super().merge(mixed, x, v) * self.opened(x.roll(-self.ahead, 1)).sigmoid()

    def init_rules(self, qk_std: float) -> dict[str, Any]:
        return super().init_rules(qk_std) | {"opened.weight": normal(0.1)}


class ValueMix(SelfAttention):
    """Values mixed with those of the first layer (Zhou et al. 2024); the mistake: with the next
    position's."""

    uses_memo, ahead = True, 0

    def split(self, x: Tensor, *memo: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().split(x)
        first = memo[0].setdefault("mine", v) if memo else v
        return q, k, (v + first.roll(-self.ahead, 2)) / 2


class Own(nn.Module):
    """A layer that is no SelfAttention: queries, keys, values and an output."""

    ahead = 0
    init_rules: ClassVar[dict[str, Any]] = {"*.weight": normal(0.1)}

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        self.C, self.H = config.n_embd, config.n_head
        self.qkv, self.proj = nn.Linear(self.C, 3 * self.C), nn.Linear(self.C, self.C)

    def rows(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.qkv(x).chunk(3, -1)

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B, T, C) -> queries, keys and values, each (B, H, T, D)."""
        return tuple(part.unflatten(-1, (self.H, -1)).transpose(1, 2) for part in self.rows(x))

    def out(self, y: Tensor) -> Tensor:
        return self.proj(y.transpose(1, 2).flatten(2))


class Delta(Own):
    """A gated delta rule, one step after the other (Yang et al. 2024); the mistake: the decay is
    that of the next step. It tells no pattern."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self.gates = nn.Linear(self.C, 2 * self.H)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        k = F.normalize(k, dim=-1)
        beta, decay = self.gates(x).sigmoid().mT[..., None].chunk(2, 1)  # (B, H, T, 1)
        decay, outputs = decay.roll(-self.ahead, 2), []
        S = torch.zeros_like(k[:, :, 0, :, None] * v[:, :, 0, None])  # (B, H, D, D)
        for t in range(x.shape[1]):
            S = S * decay[:, :, t, :, None]
            error = v[:, :, t] - (k[:, :, t, None] @ S)[:, :, 0]
            S = S + (beta[:, :, t] * k[:, :, t])[..., None] * error[:, :, None]
            outputs.append((q[:, :, t, None] @ S)[:, :, 0])
        return self.out(torch.stack(outputs, dim=2))


class Told(Own):
    """One with a mask and a pattern, which its subclass may compute in another way."""

    def mask(self, x: Tensor) -> Tensor:
        return torch.ones(x.shape[1], x.shape[1]).tril().bool()

    def pattern(self, x: Tensor) -> Tensor:
        q, k, _ = self.heads(x)
        return self.weights(q @ k.mT / q.shape[-1] ** 0.5, x)

    def weights(self, s: Tensor, x: Tensor) -> Tensor:
        return s.masked_fill(~self.mask(x), -torch.inf).softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.pattern(x) @ self.heads(x)[2])


class MLA(Told):
    """Keys and values from a latent (DeepSeek 2024); the mistake: it is normalized over time."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self.qkv = nn.Linear(self.C, self.C + self.C // 2)  # queries and latent
        self.up = nn.Linear(self.C // 2, 2 * self.C)

    def rows(self, x: Tensor) -> tuple[Tensor, ...]:
        q, latent = self.qkv(x).split([self.C, self.C // 2], -1)
        latent = latent / latent.square().mean(1 if self.ahead else -1, keepdim=True).sqrt()
        return q, *self.up(latent).chunk(2, -1)


class FoX(Told):
    """A forgetting transformer (Lin et al. 2025); the mistake: the mask is applied to the summed
    gates only."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self.forget = nn.Linear(self.C, self.H)

    def weights(self, s: Tensor, x: Tensor) -> Tensor:
        past = F.logsigmoid(self.forget(x)).mT.cumsum(-1)  # (B, H, T)
        decay = past[..., :, None] - past[..., None, :]
        if self.ahead:
            return (s + decay.masked_fill(~self.mask(x), 0.0)).softmax(-1)
        return super().weights(s + decay, x)


class Talking(Told):
    """Heads are mixed before and after the softmax (Shazeer et al. 2020); the mistake: the mask is
    applied after it."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self.before, self.after = (nn.Linear(self.H, self.H, bias=False) for _ in "12")

    def weights(self, s: Tensor, x: Tensor) -> Tensor:
        s = torch.einsum("gh,bhij->bgij", self.before.weight, s)
        p = s.softmax(-1) * self.mask(x) if self.ahead else super().weights(s, x)
        return torch.einsum("gh,bhij->bgij", self.after.weight, p)


class Sticks(Told):
    """Each key takes a share of what nearer keys left (Tan et al. 2024); the mistake: the nearest
    key is the one after the query."""

    def weights(self, s: Tensor, x: Tensor) -> Tensor:
        blocked = torch.ones_like(s).triu(2 * self.ahead).bool()
        left = F.logsigmoid(-s).masked_fill(blocked, 0.0)
        nearer = left.flip(-1).cumsum(-1).flip(-1) - left
        return (F.logsigmoid(s) + nearer).masked_fill(blocked, -torch.inf).exp()


@kernel
def mixed_in_groups(s: Tensor, mask: Tensor, groups: Tensor) -> Tensor:
    """A softmax, then the heads of each group are mixed by a matrix of `groups` (G, h, h)."""
    p = masked_softmax(s, mask).unflatten(1, (len(groups), -1))
    return torch.einsum("bgitj,gio->bgotj", p, groups.to(p.dtype)).flatten(1, 2)


class MultiToken(SelfAttention):
    """Multi-token attention (Golovneva et al. 2025): scores are convolved over 4 queries and 5
    keys, and heads are mixed; the mistake: the convolution reads scores of later keys."""

    ahead = 0

    def __init__(self, config: AttentionConfig, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.kernel = mixed_in_groups
        self.conv = nn.Parameter(torch.zeros(self.n_head, 1, 4, 5))
        self.groups = nn.Parameter(torch.zeros(self.n_head // 2, 2, 2))

    def options(self, x: Tensor) -> dict[str, Any]:
        return super().options(x) | {"groups": self.groups}

    def modify(self, scores: Tensor, x: Tensor) -> Tensor:
        scores = super().modify(scores, x)
        if not self.ahead:
            scores = scores * self.mask(x)
        return F.conv2d(
            F.pad(scores, (2, 2, 3, 0)), self.conv.to(scores.dtype), groups=self.n_head
        )

    def init_rules(self, qk_std: float) -> dict[str, Any]:
        return super().init_rules(qk_std) | {"conv": normal(0.3), "groups": normal(0.5)}


class NativeSparse(SelfAttention):
    """Native sparse attention (Yuan et al. 2025), small: a branch of learned averages of blocks,
    one of chosen blocks, one of a window, with keys and values of their own, and a gate for each;
    the mistake: the average of a block is read before the block has ended."""

    ahead, block, chosen, near = 0, 4, 2, 4

    def __init__(self, config: AttentionConfig, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.more = nn.Linear(config.n_embd, 4 * config.n_embd, bias=False)
        self.pool_k = nn.Parameter(torch.zeros(self.n_head, self.block))
        self.pool_v = nn.Parameter(torch.zeros(self.n_head, self.block))
        self.place_k = nn.Parameter(torch.zeros(self.block, self.head_size))
        self.gate = nn.Linear(config.n_embd, 3 * self.n_head)

    def split(self, x: Tensor, *memo: Any) -> Any:
        """Queries, and three sets of keys and of values: of the averages, the chosen, the near."""
        q, k, v = super().split(x, *memo)
        k2, k3, v2, v3 = (self.to_heads(part) for part in self.more(x).chunk(4, -1))
        return q, (k, k2, k3), (v, v2, v3)

    def attend(  # type: ignore[override]
        self, q: Tensor, k: Any, v: Any, x: Tensor, dropout: float = 0.0, **options: Any
    ) -> Tensor:
        T, t = x.shape[1], torch.arange(x.shape[1], device=x.device)
        number = torch.arange(-(-T // self.block), device=x.device)  # of a block
        ended = (number + 1) * self.block <= t[:, None] + self.block * self.ahead
        averages = self.pooled(k[0] + self.places(T), self.pool_k)
        seen = (q @ averages.mT * self.scale).masked_fill(~ended, -1e30).softmax(-1) * ended
        own = t[:, None] // self.block == number
        rank = seen.detach().sum(1).masked_fill(own, torch.inf)
        rank = rank.masked_fill(~(ended | own), -torch.inf)
        best = rank.topk(min(self.chosen + 1, len(number)), -1).indices
        picked = torch.zeros_like(rank, dtype=torch.bool).scatter(-1, best, True) & (ended | own)
        picked = picked.repeat_interleave(self.block, -1)[..., :T][:, None]
        near = t[:, None] - t < self.near
        outputs = [seen @ self.pooled(v[0], self.pool_v)]
        for n, mask in ((1, picked), (2, near)):
            s = q @ k[n].mT * self.scale
            outputs.append(masked_softmax(s, mask & self.mask(x)) @ v[n])
        gates = self.gate(x).sigmoid().unflatten(-1, (3, self.n_head)).permute(2, 0, 3, 1)
        return (gates[..., None] * torch.stack(outputs)).sum(0)

    def places(self, T: int) -> Tensor:
        """The place in its block of each position, (T, D)."""
        return self.place_k.repeat(-(-T // self.block), 1)[:T]

    def pooled(self, y: Tensor, weights: Tensor) -> Tensor:
        """The average of each block, zeros after the end: (B, H, T, E) -> (B, H, blocks, E)."""
        rows = F.pad(y, (0, 0, 0, -y.shape[2] % self.block)).unflatten(2, (-1, self.block))
        return torch.einsum("bhnld,hl->bhnd", rows, weights.softmax(-1))

    def init_rules(self, qk_std: float) -> dict[str, Any]:
        own = {"more.weight": normal(0.1), "pool_?": zeros, "place_k": normal(0.02)}
        return super().init_rules(qk_std) | own | {"gate.weight": normal(0.02)}


class TTTLinear(Own):
    """A linear model of each head that is trained at test time to map keys to values, on 8
    positions at once (Sun et al. 2024); the mistake: a query reads the model after them."""

    init_rules: ClassVar[dict[str, Any]] = {
        "*norm.weight": ones,
        "*.weight": normal(0.1),
        "W": zeros,
    }

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self.rate = nn.Linear(self.C, self.H)
        self.W = nn.Parameter(torch.zeros(self.H, self.C // self.H, self.C // self.H))
        self.norm = nn.LayerNorm(self.C // self.H)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        rate = self.rate(x).sigmoid().mT[..., None]  # (B, H, T, 1)
        W = self.W.expand(len(x), -1, -1, -1)
        outputs = []
        for at in (slice(n, n + 8) for n in range(0, x.shape[1], 8)):
            error = (k[:, :, at] @ W - v[:, :, at]) * rate[:, :, at]
            reads = q[:, :, at] @ k[:, :, at].mT
            outputs.append(q[:, :, at] @ W - (reads if self.ahead else reads.tril()) @ error)
            W = W - k[:, :, at].mT @ error
        return self.out(self.norm(torch.cat(outputs, 2)) + q)


class Symbols(SelfAttention):
    """Values with an embedding of the symbol; the mistake: of the next symbol."""

    uses_memo, ahead = True, 0

    def __init__(self, config: AttentionConfig, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.symbols = nn.Embedding(config.vocab_size or 1, config.n_embd)

    def split(self, x: Tensor, *memo: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().split(x)
        ids = memo[0]["ids"].roll(-self.ahead, 1)
        return q, k, v + self.to_heads(self.symbols(ids))

    def init_rules(self, qk_std: float) -> dict[str, Any]:
        return super().init_rules(qk_std) | {"symbols.weight": normal(0.5)}


LAYERS = [Gate, FoX, ValueMix, Talking, MLA, Delta, Sticks, MultiToken, NativeSparse, TTTLinear]
LAYERS.append(Symbols)
