"""Every variant of conf/attn in NumPy and fp64, one query of one head at a time, from the papers.

A formula takes the weights w by name, the input x (T, C) of one text and the number H of heads,
and gives the output (T, C). Its keyword arguments are its constants; a wrong one is the planted
error, which the comparison must find. Eq. and section are those of the paper.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Weights = dict[str, Array]
Row = Callable[[Array, int, int], Any]  # scores of the visible keys, query, head -> weights
Sees = Callable[[int, int], bool]  # query, key


def past(i: int, j: int) -> bool:
    return j <= i


def sigmoid(z: Any) -> Any:
    return 1 / (1 + np.exp(-z))


def softmax(s: Array, *_: int) -> Array:
    if not len(s):
        return s
    e = np.array([math.exp(z - max(s)) for z in s])
    return e / sum(e)


def linear_map(w: Weights, name: str, x: Array) -> Array:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)


def heads_of(rows: Array, H: int) -> list[Array]:
    """(T, C) to H arrays (T, D)."""
    return np.split(rows, H, axis=1)


def projected(w: Weights, x: Array, H: int) -> list[list[Array]]:
    """Queries, keys and values of each head, each H arrays (T, D)."""
    return [heads_of(part, H) for part in np.split(linear_map(w, "qkv", x), 3, axis=1)]


def average(
    q: Array, k: Array, v: Array, h: int = 0, row: Row = softmax, sees: Sees = past,
    power: float = -0.5,
) -> Array:  # fmt: skip
    """sum_j p_ij v_j of head h with the scores q . k D^power, query by query; NaN for a query
    without keys."""
    y = np.full_like(v, np.nan)
    for i in range(len(q)):
        seen = [j for j in range(len(k)) if sees(i, j)]
        weights = row(np.array([q[i] @ k[j] for j in seen]) * q.shape[1] ** power, i, h)
        if seen:
            y[i] = sum(p * v[j] for p, j in zip(weights, seen, strict=True))
    return y


def attended(w: Weights, q: Any, k: Any, v: Any, row: Row = softmax, **given: Any) -> Array:
    """The output projection of the averages of all heads."""
    y = [average(*each, h, row, **given) for h, each in enumerate(zip(q, k, v, strict=True))]
    return linear_map(w, "proj", np.hstack(y))


def of_rows(row: Callable[..., Any]) -> Callable[..., Array]:
    """The formula whose weights are `row(scaled scores of the visible keys, query, head, w, x)`;
    `sees`, an argument of all of them, are the keys that it gets."""

    @functools.wraps(row)
    def formula(w: Weights, x: Array, H: int, *, sees: Sees = past, **given: Any) -> Array:
        weights: Row = lambda s, i, h: row(s, i, h, w, x, **given)  # noqa: E731
        return attended(w, *projected(w, x, H), weights, sees=sees)

    return formula


# ---- scaled dot products, masks, and how heads share


def scaled_dot(w: Weights, x: Array, H: int, *, power: float = -0.5, sees: Sees = past) -> Array:
    """softmax(Q K^T / sqrt(D)) V (Vaswani et al. 2017, eq. 1), with another power of D."""
    return attended(w, *projected(w, x, H), power=power, sees=sees)


def grouped(w: Weights, x: Array, H: int, *, G: int, power: float = -0.5) -> Array:
    """G heads of keys and values, each for H/G neighboring queries (Ainslie et al. 2023, 2.2)."""
    C, rows = x.shape[1], linear_map(w, "qkv", x)
    parts = np.split(rows[:, C:], 2, axis=1)
    k, v = (heads_of(part, part.shape[1] * H // C) for part in parts)
    own = [min(h // (H // G), len(k) - 1) for h in range(H)]
    q = heads_of(rows[:, :C], H)
    return attended(w, q, [k[g] for g in own], [v[g] for g in own], power=power)


def shared(
    w: Weights, x: Array, H: int, *, parts: tuple[int, int, int], power: float = -0.5
) -> Array:
    """The queries, keys and values are these parts of the projection."""
    rows = heads_of(linear_map(w, "qkv", x), len(w["qkv.weight"]) * H // x.shape[1])
    return attended(w, *(rows[a * H : a * H + H] for a in parts), power=power)


# ---- positions and changed scores


def rotary(w: Weights, x: Array, H: int, *, base: float = 10_000.0, sign: int = 1) -> Array:
    """q_m^T R(n - m) k_n with 2 x 2 rotations of the pairs (Su et al. 2021, eq. 15 and 16)."""
    q, k, v = projected(w, x, H)
    D = x.shape[1] // H
    y = np.zeros_like(x)
    for h in range(H):
        for m in range(len(x)):
            s = np.zeros(m + 1)
            for n in range(m + 1):
                for pair in range(D // 2):
                    angle = sign * (n - m) * base ** (-2 * pair / D)
                    c, r = math.cos(angle), math.sin(angle)
                    at = slice(2 * pair, 2 * pair + 2)
                    s[n] += q[h][m, at] @ np.array([[c, -r], [r, c]]) @ k[h][n, at]
            y[m, h * D : (h + 1) * D] = softmax(s / math.sqrt(D)) @ v[h][: m + 1]
    return linear_map(w, "proj", y)


@of_rows
def alibi(s: Array, i: int, h: int, w: Weights, x: Array, *, first: int = 1) -> Array:
    """softmax(q_i K^T + m [-(i - 1), ..., -1, 0]), m = 2^(-8h/H) (Press et al. 2022, sec. 3), of
    four heads."""
    return softmax(s + 2 ** (-8 * (h + first) / 4) * np.arange(-i, 1))


@of_rows
def log_length(s: Array, i: int, h: int, w: Weights, x: Array, *, first: int = 1) -> Array:
    """Scores of position i, from 1, times ln i (Chiang and Cholak 2022, sec. 5.3)."""
    return softmax(math.log(i + first) * s)


@of_rows
def softcap(s: Array, i: int, h: int, w: Weights, x: Array, *, cap: float = 5.0) -> Array:
    """s <- cap tanh(s / cap) (Gemma Team 2024, sec. 2)."""
    return softmax(cap * np.tanh(s / cap))


def cosine(w: Weights, x: Array, H: int, *, own: bool = True) -> Array:
    """softmax(g q . k / (|q| |k|)) (Henry et al. 2020, sec. 3), with 1e-5 beside mean squares.

    The layer's g is its gain times sqrt(D), one per head.
    """
    D = x.shape[1] // H
    *both, v = projected(w, x, H)
    q, k = ([u / np.sqrt((u * u).sum(1, keepdims=True) + 1e-5 * D) for u in p] for p in both)
    gain = w["gain"] if own else np.roll(w["gain"], 1)
    return attended(w, q, k, v, lambda s, i, h: softmax(gain[h] * s), power=0.5)


@of_rows
def forgetting(s: Array, i: int, h: int, w: Weights, x: Array, *, after: int = 1) -> Array:
    """exp(s_ij) times the gates f_l of l = j + 1 to i, divided by the sum over j (Lin et al. 2025,
    sec. 3), f = sigmoid(W x + b)."""
    f = sigmoid(linear_map(w, "forget", x))[:, h]  # (T,)
    e = np.exp(s) * np.array([np.prod(f[j + after : i + 1]) for j in range(i + 1)])
    return e / e.sum()


# ---- other scores


def additive(w: Weights, x: Array, H: int, *, squash: Any = np.tanh) -> Array:
    """softmax of v . tanh(W s + U h) (Bahdanau et al. 2015, A.1.2)."""
    y = []
    for h, (q, k, v) in enumerate(zip(*projected(w, x, H), strict=True)):
        scores = np.array([[w["v"][h] @ squash(a + b) for b in k] for a in q])
        y.append([softmax(scores[i, : i + 1]) @ v[: i + 1] for i in range(len(x))])
    return linear_map(w, "proj", np.hstack(y))


def general(w: Weights, x: Array, H: int, *, transposed: bool = False) -> Array:
    """Scores q^T W k (Luong et al. 2015, eq. 8), over sqrt(D)."""
    q, k, v = projected(w, x, H)
    return attended(w, q, [k[h] @ (W if transposed else W.T) for h, W in enumerate(w["W"])], v)


def linear(w: Weights, x: Array, H: int, *, shift: float = 1.0) -> Array:
    """phi(q) S / (phi(q) z), S and z the sums of phi(k) v^T and phi(k), phi = elu + 1
    (Katharopoulos et al. 2020, eq. 7, 10 to 12)."""

    def phi(u: Array) -> Array:
        return np.where(u > 0, u, np.exp(u) - 1) + shift

    y = []
    for q, k, v in zip(*projected(w, x, H), strict=True):
        S, z = np.zeros((q.shape[1], v.shape[1])), np.zeros(q.shape[1])
        rows = []
        for i in range(len(x)):
            S, z = S + np.outer(phi(k[i]), v[i]), z + phi(k[i])
            rows.append(phi(q[i]) @ S / (phi(q[i]) @ z))
        y.append(np.array(rows))
    return linear_map(w, "proj", np.hstack(y))


# ---- from scores to weights


@of_rows
def over_one_more(
    s: Array, i: int, h: int, w: Weights, x: Array, *, power: float = 1, rest: float = 1
) -> Array:
    """exp(s) / (exp(b) + sum exp(s)), b = 0 (Miller 2023) or learned (gpt-oss, OpenAI 2025)."""
    b, e = w["sink"][h] if "sink" in w else 0.0, np.exp(s)
    return e / (rest * math.exp(power * b) + e.sum())


@of_rows
def elementwise(s: Array, i: int, h: int, w: Weights, x: Array, *, extra: int = 0) -> Array:
    """sigmoid(s - ln n), n visible keys (Ramapuram et al. 2024, eq. 3, b = -ln n)."""
    return sigmoid(s - math.log(len(s) + extra))


@of_rows
def on_simplex(s: Array, i: int, h: int, w: Weights, x: Array, *, power: int) -> Array:
    """max(s / power - tau, 0)^power that sums to 1: sparsemax (Martins and Astudillo 2016, eq. 2)
    and entmax with alpha = 1.5 (Peters et al. 2019, eq. 10); tau by bisection."""
    z = s / power
    low, high = max(z) - 1, max(z)
    for _ in range(100):
        tau = (low + high) / 2
        more = sum(max(u - tau, 0.0) ** power for u in z) > 1
        low, high = (tau, high) if more else (low, tau)
    return np.array([max(u - low, 0.0) ** power for u in z])


@of_rows
def top(s: Array, i: int, h: int, w: Weights, x: Array, *, k: int = 8) -> Array:
    """The softmax over the k largest visible scores (Gupta et al. 2021, sec. 2)."""
    kept = sorted(range(len(s)), key=lambda j: s[j])[-k:]
    weights = np.zeros(len(s))
    weights[kept] = softmax(s[kept])
    return weights


@of_rows
def stick_breaking(s: Array, i: int, h: int, w: Weights, x: Array, *, rest: bool = True) -> Any:
    """From the key before the query back, sigmoid(s) of what is left of a stick (Tan et al. 2024,
    eq. 1); here the query itself gets the rest."""
    weights, left = [0.0] * len(s), 1.0
    for j in reversed(range(i)):
        share = sigmoid(s[j])
        weights[j], left = left * share, left * (1 - share)
    weights[i] = left if rest else 0.0
    return weights


# ---- layers with something added


def mixed(w: Weights, x: Array, H: int) -> Array:
    """The averages of all heads side by side (T, C), before the output projection."""
    one = {f"qkv.{name}": w[f"qkv.{name}"] for name in ("weight", "bias")}
    return scaled_dot(one | {"proj.weight": np.eye(x.shape[1])}, x, H)


def gated(w: Weights, x: Array, H: int, *, gate: Any = sigmoid) -> Array:
    """Y sigmoid(X W) before the output projection, one number per head or channel (Qiu et al.
    2025, eq. 5)."""
    gates = gate(linear_map(w, "gate", x))
    wide = np.repeat(gates, x.shape[1] // gates.shape[1], axis=1)
    return linear_map(w, "proj", mixed(w, x, H) * wide)


def value_residual(w: Weights, x: Array, H: int, *, other: bool = False) -> Array:
    """The values of a later layer are (1 - m) v + m v_1, those of the first (Zhou et al. 2024,
    sec. 3); w has them as `values` (H, T, D)."""
    q, k, v = projected(w, x, H)
    m = 1 - w["value_mix"] if other else w["value_mix"]
    return attended(w, q, k, [(1 - m) * v[h] + m * w["values"][h] for h in range(H)])


def exclusive(w: Weights, x: Array, H: int, *, power: float = 1.0) -> Array:
    """y_i - (y_i . v_i) v_i / |v_i|^2 (Zhai 2026, sec. 3)."""
    z = []
    for a, b in zip(heads_of(mixed(w, x, H), H), projected(w, x, H)[2], strict=True):
        along = (a * b).sum(1) / (b * b).sum(1) ** power
        z.append(a - along[:, None] * b)
    return linear_map(w, "proj", np.hstack(z))


def convolved(rows: Array, taps: Array) -> Array:
    """y_t = sum_m taps_m rows_(t - m)."""
    y = np.zeros_like(rows)
    for t in range(len(rows)):
        for m in range(min(len(taps), t + 1)):
            y[t] += taps[m] * rows[t - m]
    return y


def short_conv(w: Weights, x: Array, H: int, *, order: int = 1) -> Array:
    """u_t + sum_m w_m u_(t-m) of queries, keys and values (Allen-Zhu 2025, Canon-B)."""
    rows = linear_map(w, "qkv", x)
    rows = rows + convolved(rows, w["conv"][::order])
    return attended(w, *(heads_of(part, H) for part in np.split(rows, 3, axis=1)))


def differential(w: Weights, x: Array, H: int, *, depth: int = 2, pairs: int = 1) -> Array:
    """(softmax(Q1 K1^T / sqrt(d)) - lambda softmax(Q2 K2^T / sqrt(d))) V, lambda = exp(a . b) -
    exp(c . e) + lambda_init (Ye et al. 2024, eq. 1 and 2); each head's output over its root mean
    square, times 1 - lambda_init (eq. 3). `depth` counts layers from 1."""
    start = 0.8 - 0.6 * math.exp(-0.3 * (depth - 1))
    a, b, c, e = w["lambdas"][::pairs]
    lam = math.exp(a @ b) - math.exp(c @ e) + start
    y = []
    for q, k, v in zip(*projected(w, x, H), strict=True):
        d = q.shape[1] // 2
        both = average(q[:, :d], k[:, :d], v) - lam * average(q[:, d:], k[:, d:], v)
        size = np.sqrt((both**2).mean(1, keepdims=True) + 1e-5)
        y.append((1 - start) * both / size)
    return linear_map(w, "proj", np.hstack(y))


def latent(w: Weights, x: Array, H: int, *, wide: int = 1) -> Array:
    """Scores and averages of the latent vectors c, with the up projections absorbed into queries
    and outputs, so that no key and no value exists (DeepSeek-AI 2024, sec. 2.1.2, eq. 9 to 19)."""
    T, C = x.shape
    D, up = C // H, w["up.weight"]
    L = up.shape[1]
    rows = linear_map(w, "qkv", x)
    R = (rows.shape[1] - H * D - L) // (H + 1)
    c, key = rows[:, -L - R : -R], rows[:, -R:]
    c = c / np.sqrt((c * c).mean(1, keepdims=True) + 1e-5) * w["norm.weight"]

    def turned(u: Array, position: int) -> Array:
        z = (u[::2] + 1j * u[1::2]) * np.exp(1j * position * 10_000 ** (-np.arange(0, R, 2) / R))
        return np.stack([z.real, z.imag], axis=1).reshape(-1)

    y = np.zeros((T, C))
    for h in range(H):
        queries = rows[:, h * (D + R) : (h + 1) * (D + R)]
        up_k, up_v = up[h * D : (h + 1) * D], up[C + h * D : C + (h + 1) * D]
        for i in range(T):
            absorbed, q_r = queries[i, :D] @ up_k, turned(queries[i, D:], i)
            s = np.array([absorbed @ c[j] + q_r @ turned(key[j], j) for j in range(i + 1)])
            y[i, h * D : (h + 1) * D] = up_v @ (softmax(s / math.sqrt(D + wide * R)) @ c[: i + 1])
    return linear_map(w, "proj", y)


def recurrence(
    w: Weights, x: Array, H: int, *, decay: str = "", delta: bool = True, most: float = 1.0
) -> Array:
    """S <- a S; S <- S + b k (v - S^T k)^T, or S + k v^T; y = S^T q / sqrt(D), divided by its
    root mean square, times `norm`.

    DeltaNet (Yang et al. 2024, 2406.06484, sec. 2), Gated DeltaNet (2412.06464, eq. 10), Kimi
    Delta Attention (2510.26692, eq. 1), negative eigenvalues (2411.12537, sec. 4), retention
    (2307.08621, eq. 5 and 8), Mamba-2 (2405.21060), gated linear attention (2312.06635, eq. 3).
    """
    T, C = x.shape
    D = C // H
    rows = convolved(linear_map(w, "qkv", x), w["conv"])
    rows = rows * sigmoid(rows)
    y = np.zeros((T, C))
    for h in range(H):
        S = np.zeros((D, D))
        for t in range(T):
            q, k, v = (rows[t, n * C + h * D : n * C + (h + 1) * D] for n in range(3))
            q, k = (u / math.sqrt(u @ u + 1e-6) for u in (q, k))
            S = factor(w, x[t], h, H, decay)[:, None] * S
            change = v
            if delta:
                change = most * sigmoid(w["beta.weight"][h] @ x[t]) * (v - k @ S)
            S = S + np.outer(k, change)
            out = q @ S / math.sqrt(D)
            y[t, h * D : (h + 1) * D] = out / math.sqrt(out @ out / D + 1e-5) * w["norm"]
    return linear_map(w, "proj", y)


def factor(w: Weights, x: Array, h: int, H: int, decay: str) -> Array:
    """a (D,) of a head at a position: 1, fixed, or exp(-exp(A) softplus(W x + dt))."""
    D = len(x) // H
    if decay == "":
        return np.ones(D)
    if decay == "fixed":
        return np.full(D, 1 - 2.0 ** (-5 - h))
    for name in [name for name in ("alpha.0.weight", "alpha.1.weight") if name in w]:
        x = w[name] @ x
    step = np.log1p(np.exp(x + w["dt"])).reshape(H, -1)[h]
    return np.exp(-np.exp(w["log_rate"][h]) * step) * np.ones(D)


# ---- the wrong ones: what their mistake computes


@of_rows
def filled(s: Array, i: int, h: int, w: Weights, x: Array, *, fill: float) -> Array:
    """The softmax over all keys, those of the future with the score `fill`."""
    return softmax(np.array([z if j <= i else fill for j, z in enumerate(s)]))


@of_rows
def masked_late(s: Array, i: int, h: int, w: Weights, x: Array, *, share: float = 0.0) -> Array:
    """The softmax over all keys, then weights of the future times `share`."""
    return softmax(s) * np.array([1 if j <= i else share for j in range(len(s))])


def over_queries(w: Weights, x: Array, H: int, *, since: int = 0) -> Array:
    """exp(s_ij) over the sum of exp(s_lj) of the queries l that see the key j."""
    y = []
    for q, k, v in zip(*projected(w, x, H), strict=True):
        e = np.exp(q @ k.T / math.sqrt(q.shape[1]))
        total = [e[j + since :, j].sum() for j in range(len(x))]
        rows = [
            sum(e[i, j] / total[j] * v[j] for j in range(i + 1)) for i in range(len(x) - since)
        ]
        y.append(np.vstack([*rows, *np.zeros((since, q.shape[1]))]))
    return linear_map(w, "proj", np.hstack(y))


def unmerged(w: Weights, x: Array, H: int, *, order: str = "htd") -> Array:
    """The numbers of all heads in the order (H, T, D), cut into T rows of C."""
    y = np.array(heads_of(mixed(w, x, H), H))
    return linear_map(w, "proj", np.einsum(f"htd->{order}", y).reshape(x.shape))


def everywhere(i: int, j: int) -> bool:
    return True


@dataclass(frozen=True)
class Case:
    """A variant's formula, its constants, and wrong constants, each of which must show."""

    formula: Callable[..., Array]
    given: dict[str, Any]
    planted: list[dict[str, Any]] = field(default_factory=list)
    heads: int | None = None
    size: float = 1.0  # of the inputs


def dot(planted: dict[str, Any], **given: Any) -> Case:
    return Case(scaled_dot, given, [planted])


delta = partial(Case, recurrence)
CASES = {
    **dict.fromkeys(("sdpa", "manual", "torch_mha"), dot({"power": -1})),
    **dict.fromkeys(("identical_heads", "identical_qkv"), dot({"power": -1})),
    "unscaled": dot({"power": -0.5}, power=0),
    "inverse_scale": dot({"power": -0.5}, power=-1),
    "flipped": dot({"sees": past}, sees=lambda i, j: j >= i),
    "bidirectional": dot({"sees": past}, sees=everywhere),
    "peek_one": dot({"sees": past}, sees=lambda i, j: j <= i + 1),
    "strict_flip": dot({"sees": lambda i, j: j >= i}, sees=lambda i, j: j > i),
    "sliding_window": dot({"sees": lambda i, j: i - 7 < j <= i}, sees=lambda i, j: i - 8 < j <= i),
    "none": dot({"sees": past}, sees=lambda i, j: i == j),
    "single_head": Case(scaled_dot, {}, [{"power": -1}], heads=1),
    "gqa": Case(grouped, {"G": 2}, [{"G": 4}, {"G": 1}]),
    "mqa": Case(grouped, {"G": 1}, [{"power": 0}]),
    "shared_qk": Case(shared, {"parts": (0, 0, 1)}, [{"parts": (0, 1, 1)}]),
    "shared_qkv": Case(shared, {"parts": (0, 0, 0)}, [{"power": 0}]),
    "rotary": Case(rotary, {}, [{"sign": -1}, {"base": 100.0}]),
    "alibi": Case(alibi, {}, [{"first": 0}]),
    "log_length": Case(log_length, {}, [{"first": 2}]),
    "softcap": Case(softcap, {}, [{"cap": 4.0}]),
    "cosine": Case(cosine, {}, [{"own": False}]),
    "forgetting": Case(forgetting, {}, [{"after": 0}, {"after": 2}]),
    "additive": Case(additive, {}, [{"squash": sigmoid}]),
    "general": Case(general, {}, [{"transposed": True}]),
    "linear": Case(linear, {}, [{"shift": 1.1}]),
    "softmax1": Case(over_one_more, {}, [{"rest": 2}]),
    "sink": Case(over_one_more, {}, [{"power": 0.5}, {"rest": 0}]),
    "sigmoid": Case(elementwise, {}, [{"extra": 1}]),
    "sparsemax": Case(on_simplex, {"power": 1}, [{"power": 2}]),
    "entmax": Case(on_simplex, {"power": 2}, [{"power": 1}]),
    "top_k": Case(top, {}, [{"k": 7}, {"k": 9}]),
    "stick_breaking": Case(stick_breaking, {}, [{"rest": False}]),
    **dict.fromkeys(("gate_head", "gate_channel"), Case(gated, {}, [{"gate": np.tanh}])),
    "value_residual": Case(value_residual, {}, [{"other": True}]),
    "exclusive": Case(exclusive, {}, [{"power": 0.5}]),
    "short_conv": Case(short_conv, {}, [{"order": -1}]),
    "differential": Case(differential, {}, [{"depth": 1}, {"pairs": -1}]),
    "latent": Case(latent, {}, [{"wide": 0}]),
    "delta_net": delta({}, [{"most": 2.0}, {"delta": False}]),
    "delta_net_negative": delta({"most": 2.0}, [{"most": 1.0}]),
    "gated_delta_net": delta({"decay": "head"}, [{"decay": ""}]),
    "kda": delta({"decay": "channel"}, [{"decay": ""}]),
    "decay": delta({"decay": "head", "delta": False}, [{"decay": ""}]),
    "gated_linear": delta({"decay": "channel", "delta": False}, [{"decay": ""}]),
    "retention": delta({"decay": "fixed", "delta": False}, [{"decay": ""}]),
    "zero_fill": Case(filled, {"fill": 0.0, "sees": everywhere}, [{"fill": -math.inf}]),
    "finite_fill": Case(
        filled, {"fill": -1e4, "sees": everywhere}, [{"fill": -math.inf}], size=200.0
    ),
    "post_softmax_mask": Case(masked_late, {"sees": everywhere}, [{"share": 1.0}]),
    "softmax_over_queries": Case(over_queries, {}, [{"since": 1}]),
    "unmerged_heads": Case(unmerged, {}, [{"order": "thd"}]),
}
