"""Linear recurrences with a state of fixed size in place of keys and values.

Letters: B batch, T time, C channels, H heads, D = C // H.
"""

import math
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention import kernels
from attnlab.attention.cache import KVCache
from attnlab.attention.convolution import convolve
from attnlab.attention.layer import Attention
from attnlab.attention.properties import Properties
from attnlab.attention.rms_norm import rms_normalize
from attnlab.attention.variant import DEFAULTS, SHAPE, AttentionConfig
from attnlab.rng import Rule, normal, ones, uniform

CHUNK = 64  # positions that are computed at once; between chunks goes the state

Decay = Literal["fixed", "head", "channel"] | None


def log_uniform_rate(rate: Tensor, stream: torch.Generator) -> None:
    """The logarithm of a number from 1 to 16, drawn uniformly, as in Kimi Delta Attention."""
    rate.copy_(torch.empty(rate.shape).uniform_(1, 16, generator=stream).log())


def inverse_softplus_of_step(dt: Tensor, stream: torch.Generator) -> None:
    """What softplus makes a step from 0.001 to 0.1, log-uniform, as in Mamba-2."""
    low, high = math.log(0.001), math.log(0.1)
    step = torch.empty(dt.shape).uniform_(low, high, generator=stream).exp()
    dt.copy_(step + (-(-step).expm1()).log())


class DeltaAttention(Attention):
    """A matrix S (D, D) for each head, which keys and values write and queries read.

    At each position S is multiplied by the decay a, then b k (v - S^T k)^T is added, which
    replaces what k reads by v: the delta rule. Without `delta`, k v^T is added. The output is
    S^T q / sqrt(D). q, k and v are projections after a causal convolution of 4 `taps` and SiLU,
    and q and k are divided by their norms. b is the sigmoid of a projection times `beta_max`; with
    2, the transition has negative eigenvalues (Grazzi et al. 2024, 2411.12537). The mixed values
    are divided by their root mean square over D, and multiplied by `norm`.

    The output is linear in v, so there is a pattern (T, T); its weights may be negative, and its
    rows have any sum. Settings and what they come from:

    ======== ===== ==========================================================
    decay    delta layer
    ======== ===== ==========================================================
    null     true  DeltaNet (Yang et al. 2024, 2406.06484)
    head     true  Gated DeltaNet (Yang et al. 2024, 2412.06464)
    channel  true  Kimi Delta Attention (Kimi Team 2025, 2510.26692)
    fixed    false retention, a = 1 - 2^(-5 - h) in head h from 0 (Sun et al. 2023, 2307.08621)
    head     false the decay of Mamba-2 (Dao and Gu 2024, 2405.21060)
    channel  false gated linear attention (Yang et al. 2023, 2312.06635)
    ======== ===== ==========================================================

    Only decay and delta differ here: all have the same q, k, v and norm, and none has an output
    gate, rotary positions, or a gate of its own form, where the papers differ. A learned decay is
    exp(-exp(log_rate) softplus(W x + dt)), one a head or a channel; W of channels has rank D.

    Raises ValueError for settings of scores, such as scale or softcap, for another mask than
    causal, and for dropout, which it does not have.
    """

    init_rules: ClassVar[dict[str, Rule]] = {
        "norm": ones,
        "conv": uniform(-0.5, 0.5),  # as nn.Conv1d with 4 taps a channel
        "beta.weight": normal(0.02),
        "alpha.*": normal(0.02),
        "log_rate": log_uniform_rate,
        "dt": inverse_softplus_of_step,
    }
    properties = Properties(cacheable=True, causal_only=True)

    def __init__(
        self,
        config: AttentionConfig,
        *,
        delta: bool | None = None,
        decay: Decay = None,
        beta_max: float | None = None,
        taps: int | None = None,
    ) -> None:
        unsupported = set(DEFAULTS) - {*SHAPE, "heads", "head_init"}
        config.require_default(*sorted(unsupported), by="DeltaAttention")
        super().__init__(config)
        if config.dropout:
            raise ValueError(
                f"DeltaAttention has no dropout; use model.dropout=0 instead of {config.dropout}"
            )
        if decay not in (None, "fixed", "head", "channel"):
            raise ValueError(f"decay = {decay} must be fixed, head, channel or null")
        self.delta, self.decay = delta is not False, decay
        self.beta_max = 1.0 if beta_max is None else beta_max
        if not 0 < self.beta_max <= 2:  # a larger one lets the state grow without bound
            raise ValueError(f"beta_max = {beta_max} must be more than 0, and at most 2")
        taps = 4 if taps is None else taps
        if taps < 0:
            raise ValueError(f"taps = {taps} must be at least 0")
        self.bilinear = False
        C, H, D = config.n_embd, self.n_head, self.head_size
        self.norm = nn.Parameter(torch.ones(D))
        self.conv = nn.Parameter(torch.zeros(taps, 3 * C)) if taps else None
        self.beta = nn.Linear(C, H, bias=False) if self.delta else None
        if decay in ("head", "channel"):
            self.log_rate = nn.Parameter(torch.zeros(H))
            self.dt = nn.Parameter(torch.zeros(H if decay == "head" else C))
            low_rank = [nn.Linear(C, D, bias=False), nn.Linear(D, C, bias=False)]
            wide = [nn.Linear(C, H, bias=False)]
            self.alpha = nn.Sequential(*(wide if decay == "head" else low_rank))

    def split(self, x: Tensor, cache: KVCache | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries over sqrt(D), keys and values after the convolution: three of (B, H, T, D)."""
        rows = self.qkv(x)
        if self.conv is not None:
            rows = convolve(rows, self.conv, cache)
        q, k, v = (self.to_heads(part) for part in self.split_qkv(F.silu(rows), dim=-1))
        exact = torch.promote_types(v.dtype, torch.float32)
        q, k = (
            x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
            for x in (q.to(exact), k.to(exact))
        )
        return q / math.sqrt(self.head_size), k, v

    def scores(self, x: Tensor) -> Tensor:
        """q . k / sqrt(D), with which a query reads what a key wrote, before decay and the delta
        rule: (B, T, C) -> (B, H, T, T)."""
        q, k, _ = self.split(x)
        return kernels.scores(q, k, scale=1.0)

    def log_decay(self, x: Tensor) -> Tensor | None:
        """ln a at each position of x (B, T, C): (B, H, T, 1 or D), or None for a = 1."""
        if self.decay is None:
            return None
        exact = torch.promote_types(x.dtype, torch.float32)
        if self.decay == "fixed":
            h = torch.arange(self.n_head, device=x.device, dtype=exact)
            return torch.log1p(-(2.0 ** (-5 - h)))[:, None, None].expand(len(x), -1, x.shape[1], 1)
        step = F.softplus((self.alpha(x) + self.dt).to(exact)).unflatten(-1, (self.n_head, -1))
        return (-self.log_rate.exp()[:, None] * step).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        q, k, v = self.split(x)
        return self.proj(self.merge(self._read(x, q, k, v), x, v))

    def extend(self, x: Tensor, cache: KVCache) -> Tensor:
        q, k, v = self.split(x, cache)
        mixed = self._read(x, q, k, v, cache)
        cache.advance(x.shape[1])
        return self.proj(self.merge(mixed, x, v))

    def merge(self, mixed: Tensor, x: Tensor, v: Tensor) -> Tensor:
        """The normalized heads as `proj` gets them: (B, H, T, D) -> (B, T, C)."""
        return super().merge(rms_normalize(mixed) * self.norm, x, v)

    def pattern(self, x: Tensor) -> Tensor:
        """The weights of the values, read off by passing the identity as the values."""
        q, k, _ = self.split(x)
        return self._read(x, q, k, kernels.one_hot(k))

    def _read(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, cache: KVCache | None = None
    ) -> Tensor:
        """The recurrence over x (B, T, C): q, k (B, H, T, D), v (B, H, T, E) -> like v."""
        state = k.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1])  # (B, H, D, E)
        if cache is not None:
            state = cache.carried.get("state", state)
        with torch.autocast(x.device.type, enabled=False):
            v_, log_decay, b = v.to(k.dtype), self.log_decay(x), self._strength(x)
            mixed = []
            for start in range(0, x.shape[1], CHUNK):
                at = slice(start, start + CHUNK)
                y, state = chunk_of_recurrence(
                    q[:, :, at],
                    k[:, :, at],
                    v_[:, :, at],
                    None if log_decay is None else log_decay[:, :, at],
                    None if b is None else b[:, :, at],
                    state,
                )
                mixed.append(y)
        if cache is not None:
            cache.carried["state"] = state
        return torch.cat(mixed, dim=2).to(v.dtype)

    def mix_flops(self, keys: int) -> int:
        """A write and a read of each state and, with the delta rule, a read by the key."""
        return (6 if self.delta else 4) * self.n_head * self.head_size**2

    def _strength(self, x: Tensor) -> Tensor | None:
        """b (B, H, T, 1), or None without the delta rule."""
        if self.beta is None:
            return None
        exact = torch.promote_types(x.dtype, torch.float32)
        return self.beta_max * self.beta(x).to(exact).sigmoid().mT[..., None]


def chunk_of_recurrence(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, b: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """S <- diag(a) S, S <- S + b k (v - S^T k)^T, y = S^T q for t positions in matrix products.

    q, k (B, H, t, D), v (B, H, t, E), log_decay (B, H, t, 1 or D), b (B, H, t, 1), and the state
    before them (B, H, D, E). Without b, S <- S + k v^T. Returns y (B, H, t, E) and the new state.
    With G_i the sum of log_decay up to i and L(p)_ij = sum_d p_id k_jd exp(G_id - G_jd), j <= i,
    what each position writes is u = (I + b L(k) below the diagonal)^-1 b (v - read(k)), and
    y = L(q) u + read(q), where read(p)_i = (p_i exp(G_i))^T S (Yang et al. 2024, section 3).
    """
    t = q.shape[2]
    below = torch.ones(t, t, dtype=torch.bool, device=q.device).tril()
    total = k.new_zeros(1, 1, t, 1) if log_decay is None else log_decay.cumsum(2)
    apart = (total[:, :, :, None] - total[:, :, None]).masked_fill(~below[..., None], -math.inf)
    # (B, H, t, t, 1 or D), masked first, since above the diagonal it overflows
    weight = apart.exp()

    def linked(p: Tensor) -> Tensor:
        if weight.shape[-1] == 1:
            return p @ k.mT * weight[..., 0]
        return torch.einsum("bhid,bhjd,bhijd->bhij", p, k, weight)

    written = v
    if b is not None:
        rest = b * (v - (k * total.exp()) @ state)
        written = torch.linalg.solve_triangular(
            (b * linked(k)).tril(-1), rest, upper=False, unitriangular=True
        )
    y = linked(q) @ written + (q * total.exp()) @ state
    last = total[:, :, -1:]
    state = last.exp().mT * state + (k * (last - total).exp()).mT @ written
    return y, state
