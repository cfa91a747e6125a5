"""Seven layers as researchers write them, outside of attnlab, each with a twin that reads ahead.

A twin has the parent `Ahead`, and its mistake. Letters: B batch, T time, C channels, H heads.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention import AttentionConfig, SelfAttention
from attnlab.init import normal


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


LAYERS = [Gate, FoX, ValueMix, Talking, MLA, Delta, Sticks]
