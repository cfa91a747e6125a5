"""Seven layers as researchers write them, outside of attnlab, each with a twin that reads ahead.

A twin is made with `ahead=1`, which is the mistake. Letters: B batch, T time, C channels, H heads.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention import AttentionConfig, SelfAttention
from attnlab.init import normal


def seen(T: int, ahead: int) -> Tensor:
    """(T, T) bool, True = may attend; up to `ahead` positions later."""
    return torch.ones(T, T).tril(ahead).bool()


class Own(nn.Module):
    """A layer that is no SelfAttention: queries, keys, values and an output."""

    init_rules: ClassVar[dict[str, Any]] = {"*.weight": normal(0.1)}

    def __init__(self, config: AttentionConfig, ahead: int = 0) -> None:
        super().__init__()
        self.C, self.H, self.ahead = config.n_embd, config.n_head, ahead
        self.qkv, self.proj = nn.Linear(self.C, 3 * self.C), nn.Linear(self.C, self.C)

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B, T, C) -> queries, keys and values, each (B, H, T, D)."""
        return tuple(p.unflatten(-1, (self.H, -1)).transpose(1, 2) for p in self.split_rows(x))

    def split_rows(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.qkv(x).chunk(3, -1))

    def out(self, y: Tensor) -> Tensor:
        out: Tensor = self.proj(y.transpose(1, 2).flatten(2))
        return out


class Told(Own):
    """One with a mask and a pattern, which its subclass computes from the scores."""

    def mask(self, x: Tensor) -> Tensor:
        return seen(x.shape[1], 0)

    def pattern(self, x: Tensor) -> Tensor:
        q, k, _ = self.heads(x)
        return self.weights(q @ k.mT / q.shape[-1] ** 0.5, x)

    def weights(self, s: Tensor, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.pattern(x) @ self.heads(x)[2])


class Gate(SelfAttention):
    """An output gate of each channel (Qiu et al. 2025); the mistake: that of the next position."""

    def __init__(self, config: AttentionConfig, ahead: int = 0, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.opened, self.ahead = nn.Linear(config.n_embd, config.n_embd), ahead

    def merge(self, mixed: Tensor, x: Tensor, v: Tensor) -> Tensor:
        return super().merge(mixed, x, v) * self.opened(x.roll(-self.ahead, 1)).sigmoid()

    def init_rules(self, qk_std: float) -> dict[str, Any]:
        return super().init_rules(qk_std) | {"opened.weight": normal(0.1)}


class FoX(Told):
    """A forgetting transformer (Lin et al. 2025); the mistake: the gates are summed from the end,
    and the mask is applied to the sums only."""

    def __init__(self, config: AttentionConfig, ahead: int = 0) -> None:
        super().__init__(config, ahead)
        self.forget = nn.Linear(self.C, self.H)

    def weights(self, s: Tensor, x: Tensor) -> Tensor:
        past = F.logsigmoid(self.forget(x)).mT.cumsum(-1)  # (B, H, T)
        decay = past[..., :, None] - past[..., None, :]
        if self.ahead:
            return (s + decay.masked_fill(~self.mask(x), 0.0)).softmax(-1)
        return (s + decay).masked_fill(~self.mask(x), -torch.inf).softmax(-1)


class ValueMix(SelfAttention):
    """Values mixed with those of the first layer (Zhou et al. 2024); the mistake: with the next
    position's."""

    uses_memo = True

    def __init__(self, config: AttentionConfig, ahead: int = 0, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.ahead = ahead

    def split(self, x: Tensor, *memo: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().split(x)
        first = memo[0].setdefault("mine", v) if memo else v
        return q, k, (v + first.roll(-self.ahead, 2)) / 2


class Talking(SelfAttention):
    """Heads are mixed before and after the softmax (Shazeer et al. 2020); the mistake: the mask is
    applied after it."""

    def __init__(self, config: AttentionConfig, ahead: int = 0, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.before, self.after = (nn.Linear(self.n_head, self.n_head, bias=False) for _ in "12")
        self.ahead = ahead

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, **_: Any) -> Tensor:  # type: ignore[override]
        s = self.before((q @ k.mT * self.scale).movedim(1, -1)).movedim(-1, 1)
        s = s if self.ahead else s.masked_fill(~self.mask(x), -torch.inf)
        p = self.after((s.softmax(-1) * self.mask(x)).movedim(1, -1)).movedim(-1, 1)
        mixed: Tensor = p @ v
        return mixed

    def init_rules(self, qk_std: float) -> dict[str, Any]:
        own = {"before.weight": normal(0.3), "after.weight": normal(0.3)}
        return super().init_rules(qk_std) | own


class MLA(Own):
    """Keys and values from a latent (DeepSeek 2024); the mistake: it is normalized over time."""

    def __init__(self, config: AttentionConfig, ahead: int = 0) -> None:
        super().__init__(config, ahead)
        del self.qkv
        self.query, self.down = nn.Linear(self.C, self.C), nn.Linear(self.C, self.C // 2)
        self.up = nn.Linear(self.C // 2, 2 * self.C)

    def split_rows(self, x: Tensor) -> tuple[Tensor, ...]:
        latent = self.down(x)
        latent = latent / latent.square().mean(1 if self.ahead else -1, keepdim=True).sqrt()
        return self.query(x), *self.up(latent).chunk(2, -1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))


class Delta(Own):
    """A gated delta rule, one step after the other (Yang et al. 2024); the mistake: the decay is
    that of the next step."""

    def __init__(self, config: AttentionConfig, ahead: int = 0) -> None:
        super().__init__(config, ahead)
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


class Sticks(Told):
    """Each key takes a share of what nearer keys left (Tan et al. 2024); the mistake: the nearest
    key is the one after the query."""

    def weights(self, s: Tensor, x: Tensor) -> Tensor:
        blocked = ~seen(x.shape[1], 2 * self.ahead - 1)
        left = F.logsigmoid(-s).masked_fill(blocked, 0.0)
        nearer = left.flip(-1).cumsum(-1).flip(-1) - left
        return (F.logsigmoid(s) + nearer).masked_fill(blocked, -torch.inf).exp()


LAYERS = [Gate, FoX, ValueMix, Talking, MLA, Delta, Sticks]
