"""A second model that shares no code with ours, with its own versions of the faults.

Llama-like: RMSNorm, rotary positions, SwiGLU, separate projections, (B, T, H, D) throughout,
einsum, a hand-written softmax, an untied head, and a dictionary as output.

Letters: b batch, t query time, s key time, h heads, d channels of a head.
"""

import math

import torch
from torch import Tensor, nn

from tests.faults import twins
from tests.faults.beside import beside


class RMSNorm(nn.Module):
    """Divide by the root mean square."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def rotate(x: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2021) on (b, t, h, d)."""
    t, d = x.shape[1], x.shape[3]
    frequency = 100.0 ** (-torch.arange(0, d, 2, device=x.device) / d)
    angle = torch.arange(t, device=x.device)[:, None] * frequency  # (t, d/2)
    cos, sin = angle.cos().to(x)[:, None], angle.sin().to(x)[:, None]  # (t, 1, d/2)
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


class Mixer(nn.Module):
    """Attention in four steps, each of which may hold the fault."""

    def __init__(self, width: int, n_head: int, fault: str) -> None:
        super().__init__()
        self.n_head = n_head
        self.fault = fault
        self.wq = nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, width, bias=False)
        self.wv = nn.Linear(width, width, bias=False)
        self.wo = nn.Linear(width, width, bias=False)
        if fault in ("identical_heads", "identical_qkv"):
            self._tie()

    @torch.no_grad()
    def _tie(self) -> None:
        for w in (self.wq, self.wk, self.wv):
            d = len(w.weight) // self.n_head
            w.weight.copy_(w.weight[:d].repeat(self.n_head, 1))
        if self.fault == "identical_heads":
            d = self.wo.weight.shape[1] // self.n_head
            self.wo.weight.copy_(self.wo.weight[:, :d].repeat(1, self.n_head))

    def split(self, x: Tensor) -> Tensor:
        """(b, t, c) -> (b, t, h, d)."""
        b, t, c = x.shape
        if self.fault in ("unsplit_heads", "untransposed"):
            return x.reshape(b, self.n_head, t, c // self.n_head).transpose(1, 2)
        return x.reshape(b, t, self.n_head, c // self.n_head)

    def merge(self, y: Tensor) -> Tensor:
        """(b, t, h, d) -> (b, t, c)."""
        if self.fault in ("unmerged_heads", "untransposed"):
            return y.transpose(1, 2).reshape(y.shape[0], y.shape[1], -1)
        return y.flatten(2)

    def factor(self, d: int) -> float:
        """The factor of the scores."""
        wrong = {
            "unscaled": 1.0,
            "inverse_scale": 1 / d,
            "inverted_scale": math.sqrt(d),
            "odd_scale": 0.9 / math.sqrt(d),
            "width_scale": 1 / math.sqrt(d * self.n_head),
        }
        return wrong.get(self.fault, 1 / math.sqrt(d))

    def forward(self, x: Tensor) -> Tensor:
        if self.fault == "batch_first":
            return self.attend(x.transpose(0, 1)).transpose(0, 1)
        return self.attend(x)

    def attend(self, x: Tensor) -> Tensor:
        """(b, t, c) -> (b, t, c)."""
        q, k = rotate(self.split(self.wq(x))), rotate(self.split(self.wk(x)))
        v = self.split(self.wv(x))
        if self.fault == "tiled_kv":
            half = self.n_head // 2
            k, v = k[:, :, :half].repeat(1, 1, 2, 1), v[:, :, :half].repeat(1, 1, 2, 1)
        if self.fault == "tiled_values":  # but repeated keys
            half = self.n_head // 2
            k = k[:, :, :half].repeat_interleave(2, 2)
            v = v[:, :, :half].repeat(1, 1, 2, 1)
        if self.fault == "rotated_values":
            v = rotate(v)
        if self.fault == "detached_head":
            q, k, v = (torch.cat([y[:, :, 1:], y[:, :, :1].detach()], 2) for y in (q, k, v))
        if self.fault == "detached_scores":
            q, k = q.detach(), k.detach()
        if self.fault == "mean_key":
            k = k * (1 + k.mean(1, keepdim=True))
        if self.fault == "next_value":
            v = v.roll(-1, 1)
        scores = torch.einsum("bthd,bshd->bhts", q, k) * self.factor(q.shape[-1])
        if self.fault == "double_scale":
            scores = scores / math.sqrt(q.shape[-1])
        if self.fault == "dropped_scores":
            scores = nn.functional.dropout(scores, 0.2, self.training)
        blocked = blocked_keys(self.fault, *scores.shape[-2:])
        if self.fault in twins.WEIGHTS:
            weights = twins.WEIGHTS[self.fault](*map(by_head, (q, k)), scores, ~blocked)
        else:
            weights = self.normalize(scores, blocked)
        if self.fault == "dropout_on":
            weights = nn.functional.dropout(weights, 0.2)
        y = torch.einsum("bhts,bshd->bthd", weights, v)
        if self.fault == "normed_over_time":
            y = by_head(twins.normed_over_time(by_head(y)))
        return self.wo(self.merge(y))

    def normalize(self, scores: Tensor, blocked: Tensor) -> Tensor:
        """From scores to weights, (b, h, t, s)."""
        if self.fault == "peek_in_one_head":
            blocked = blocked.repeat(self.n_head, 1, 1)
            blocked[3] = blocked[3].triu(2)
        if self.fault == "no_softmax":
            return scores.masked_fill(blocked, 0.0)
        if self.fault == "naive_softmax":
            weights = torch.where(blocked, 0.0, scores.exp())
            return weights / weights.sum(-1, keepdim=True)
        if self.fault == "post_softmax_mask":
            return torch.where(blocked, 0.0, exp_normalize(scores, -1))
        if self.fault == "added_bool":
            return exp_normalize(scores + (~blocked).to(scores), -1)
        if self.fault == "softmax_over_batch":
            return torch.where(blocked, 0.0, exp_normalize(scores, 0))
        fills = {
            "zero_fill": 0.0,
            "finite_fill": -1e4,
            "softmax_over_heads": -1e9,
            "fill_1e5": -1e5,
            "fill_epsilon": -1e-12,
            "strict_flip_filled": -1e9,
        }
        scores = scores.masked_fill(blocked, fills.get(self.fault, -math.inf))
        if self.fault == "softcap_after_mask":
            scores = 10 * (scores / 10).tanh()
        axis = {"softmax_over_queries": 2, "softmax_over_heads": 1}.get(self.fault, 3)
        weights = exp_normalize(scores, axis)
        if self.fault == "self_blocked":
            weights = torch.cat([torch.zeros_like(weights[:, :, :1]), weights[:, :, 1:]], 2)
        return weights * 0.8 if self.fault == "row_gain" else weights


def by_head(x: Tensor) -> Tensor:
    """(b, t, h, d) -> (b, h, t, d), and back."""
    return x.transpose(1, 2)


def exp_normalize(scores: Tensor, axis: int) -> Tensor:
    """Softmax, by hand."""
    weights = (scores - scores.amax(axis, keepdim=True)).exp()
    return weights / weights.sum(axis, keepdim=True)


def blocked_keys(fault: str, t: int, s: int) -> Tensor:
    """(t, s) bool, True = may not attend."""
    row, column = torch.arange(t)[:, None], torch.arange(s)[None, :]
    blocked = {
        "window": (row - column).abs() > 4,
        "blocks": column // 8 > row // 8,
        "last_key": (column > row) & (column != 30),
        "flipped": column < row,
        "strict_flip": column <= row,
        "strict_flip_filled": column <= row,
        "bidirectional": (column < 0) & (row < 0),
        "peek_one": column > row + 1,
        "self_blocked": column >= row,
        "itself_only": column != row,
        "causal_up_to_32": (column > row) & (row < 32),
        "one_pair": (column > row) & ~((row == 5) & (column == 11)),
    }
    return blocked.get(fault, column > row)


class Gated(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.up(x).chunk(2, -1)
        return self.down(nn.functional.silu(a) * b)


class Layer(nn.Module):
    """Attention, then the feed-forward network."""

    def __init__(self, width: int, n_head: int, fault: str, side: str) -> None:
        super().__init__()
        self.before_mixer, self.mixer = RMSNorm(width), Mixer(width, n_head, fault)
        self.before_gated, self.gated = RMSNorm(width), beside(side, Gated(width), width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixer(self.before_mixer(x))
        return x + self.gated(self.before_gated(x))


class Other(nn.Module):
    """The second model: (b, t) ids -> {"logits": (b, t, v)}."""

    def __init__(self, symbols: int, width: int, n_head: int, faults: list[str]) -> None:
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        sides = ["" for _ in faults[1:]] + faults[-1:]  # beside the last layer only
        layers = zip(faults, sides, strict=True)
        self.layers = nn.ModuleList(Layer(width, n_head, fault, side) for fault, side in layers)
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, symbols, bias=False)
        self.detached = faults[0] == "detached_output"
        if faults[0] == "tied_by_copy":
            self.head.weight = nn.Parameter(self.embed.weight.detach().clone())

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        if self.detached:
            x = x.detach()
        return {"logits": self.head(self.norm(x))}


def build(fault: str, n_layer: int, n_head: int, seed: int = 0) -> nn.Module:
    """The second model with a fault of `tests.faults.planted.FAULTS`, or "healthy"."""
    name, _, place = fault.partition("@")
    everywhere = [name if place in ("", str(i)) else "healthy" for i in range(n_layer)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Other(29, 4 * 2 * n_head, n_head, everywhere)
