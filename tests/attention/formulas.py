"""Every variant of conf/attn in NumPy and fp64, one query of one head at a time, from the papers.

A formula takes the weights w by name, the input x (T, C) of one text and the number H of heads,
and gives the output (T, C). Its keyword arguments are its constants; a wrong one is the planted
error, which the comparison must find. Eq. and section are those of the paper.
"""

import functools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Heads = list[Array]  # H arrays (T, D)
Weights = dict[str, Array]
Score = Callable[[int, int, int], Any]  # head, query, key
Row = Callable[[Array, int, int], Any]  # scores of the visible keys, query, head -> weights
Sees = tuple[float, float]  # how many positions back and ahead a query sees
PAST, ALL = (math.inf, 0), (math.inf, math.inf)


def sigmoid(z: Any) -> Any:
    return 1 / (1 + np.exp(-z))


def softmax(s: Array, *_: int) -> Array:
    e = np.exp(s - max(s))
    return e / e.sum()


def rms_norm(y: Array) -> Array:
    """Rows over their root mean square, with 1e-5 beside the mean."""
    return y / np.sqrt((y * y).mean(-1, keepdims=True) + 1e-5)


def linear_map(w: Weights, name: str, x: Array) -> Array:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)


def heads_of(rows: Array, H: int) -> Heads:
    return np.split(rows, H, axis=1)


def thirds(rows: Array, H: int) -> list[Heads]:
    """Queries, keys and values from rows (T, 3 C)."""
    return [heads_of(part, H) for part in np.split(rows, 3, axis=1)]


def projected(w: Weights, x: Array, H: int) -> list[Heads]:
    return thirds(linear_map(w, "qkv", x), H)


def dots(q: Heads, k: Heads, power: float = -0.5) -> Score:
    """q_i . k_j D^power."""
    return lambda h, i, j: q[h][i] @ k[h][j] * q[h].shape[1] ** power


def mixed(v: Heads, score: Score, row: Row = softmax, sees: Sees = PAST) -> Heads:
    """sum_j p_ij v_j, query by query; NaN for a query without keys."""
    y = [np.full_like(each, np.nan) for each in v]
    for h, i in np.ndindex(len(v), len(v[0])):
        if seen := [j for j in range(len(v[h])) if -sees[1] <= i - j <= sees[0]]:
            weights = row(np.array([score(h, i, j) for j in seen]), i, h)
            y[h][i] = sum(p * v[h][j] for p, j in zip(weights, seen, strict=True))
    return y


def out(w: Weights, y: Heads) -> Array:
    """The output projection of the heads side by side."""
    return linear_map(w, "proj", np.hstack(y))


def of_rows(row: Callable[..., Any]) -> Callable[..., Array]:
    """The formula whose weights are `row(scaled scores of the visible keys, query, head, w, x)`;
    `sees`, an argument of all of them, are the keys that it gets."""

    @functools.wraps(row)
    def formula(w: Weights, x: Array, H: int, *, sees: Sees = PAST, **given: Any) -> Array:
        q, k, v = projected(w, x, H)
        return out(w, mixed(v, dots(q, k), lambda s, i, h: row(s, i, h, w, x, **given), sees))

    return formula


# ---- scaled dot products, masks, and how heads share


def scaled_dot(
    w: Weights, x: Array, H: int, *, power: float = -0.5, factor: float = 1.0, sees: Sees = PAST
) -> Array:
    """softmax(Q K^T / sqrt(D)) V (Vaswani et al. 2017, eq. 1), with another power of D."""
    q, k, v = projected(w, x, H)
    return out(w, mixed(v, dots([factor * rows for rows in q], k, power), sees=sees))


def model_scale(
    w: Weights, x: Array, H: int, *, power: float = -0.5, of_head: bool = False
) -> Array:
    """softmax(Q K^T / sqrt(C)) V: the width of x for that of a head."""
    q, k, v = projected(w, x, H)
    width = x.shape[1] // H if of_head else x.shape[1]
    return out(w, mixed(v, lambda h, i, j: q[h][i] @ k[h][j] * width**power))


def grouped(w: Weights, x: Array, H: int, *, G: int, power: float = -0.5) -> Array:
    """G heads of keys and values, each for H/G neighboring queries (Ainslie et al. 2023, 2.2)."""
    C, rows = x.shape[1], linear_map(w, "qkv", x)
    kv = [heads_of(part, part.shape[1] * H // C) for part in np.split(rows[:, C:], 2, axis=1)]
    k, v = ([part[h // (H // G) % len(part)] for h in range(H)] for part in kv)
    return out(w, mixed(v, dots(heads_of(rows[:, :C], H), k, power)))


def shared(w: Weights, x: Array, H: int, *, parts: Any, power: float = -0.5) -> Array:
    """The queries, keys and values are these parts of the projection."""
    rows = heads_of(linear_map(w, "qkv", x), len(w["qkv.weight"]) * H // x.shape[1])
    q, k, v = (rows[a * H : a * H + H] for a in parts)
    return out(w, mixed(v, dots(q, k, power)))


# ---- positions and changed scores


def turned(u: Array, position: int, base: float = 10_000.0) -> Array:
    """R u: the pairs of channels of u (D,) as complex numbers times e^(i position base^(-2p/D)),
    p from 0 (Su et al. 2021, eq. 15)."""
    angles = position * base ** (-np.arange(0, len(u), 2) / len(u))
    z = (u[::2] + 1j * u[1::2]) * np.exp(1j * angles)
    return np.stack([z.real, z.imag], axis=1).reshape(-1)


def rotary(
    w: Weights, x: Array, H: int, *, base: float = 10_000.0, sign: int = 1, share: float = 1
) -> Array:
    """q_m^T R(n - m) k_n (Su et al. 2021, eq. 16), on the first `share` of the channels."""
    q, k, v = projected(w, x, H)
    r = int(share * k[0].shape[1])

    def score(h: int, m: int, n: int) -> Any:
        rotated = q[h][m, :r] @ turned(k[h][n, :r], sign * (n - m), base)
        return (rotated + q[h][m, r:] @ k[h][n, r:]) / math.sqrt(k[h].shape[1])

    return out(w, mixed(v, score))


def key_offset(w: Weights, x: Array, H: int, *, back: int = 1) -> Array:
    """The first half of queries and keys is rotated; the second half of a key is that of the
    position before, but for the first position (modded-nanogpt, pull request 169)."""
    q, k, v = projected(w, x, H)
    half = k[0].shape[1] // 2

    def score(h: int, m: int, n: int) -> Any:
        rotated = q[h][m, :half] @ turned(k[h][n, :half], n - m)
        before = k[h][max(0, n - back), half:]
        return (rotated + q[h][m, half:] @ before) / math.sqrt(2 * half)

    return out(w, mixed(v, score))


def shifted(w: Weights, x: Array, H: int, *, values: bool, order: int = 1) -> Array:
    """K = a_1 K + a_2 Shift(K), and V = b_1 V + b_2 Shift(V), with zeros before the first position
    (Xu et al. 2024, sec. 2)."""
    q, k, v = projected(w, x, H)

    def with_shift(u: Array, own: float, before: float) -> Array:
        return own * u + before * np.vstack([np.zeros_like(u[:1]), u[:-1]])

    a = w["key_taps"].reshape(2, H)[::order]
    k = [with_shift(k[h], a[0, h], a[1, h]) for h in range(H)]
    if values:
        b = w["value_taps"].reshape(2, H)[::order]
        v = [with_shift(v[h], b[0, h], b[1, h]) for h in range(H)]
    return out(w, mixed(v, dots(q, k)))


@of_rows
def alibi(s: Array, i: int, h: int, w: Weights, x: Array, *, first: int = 1) -> Array:
    """softmax(q_i K^T + m [-(i - 1), ..., -1, 0]), m = 2^(-8h/H) (Press et al. 2022, sec. 3), of
    four heads."""
    return softmax(s + 2 ** (-8 * (h + first) / 4) * np.arange(-i, 1))


@of_rows
def relative_bias(
    s: Array, i: int, h: int, w: Weights, x: Array, *, n: int = 32, far: int = 128, ahead: int = 0
) -> Array:
    """softmax(s + b[bucket(i - j), h]), with half of n buckets for one distance each, the others
    logarithmic up to `far` (Raffel et al. 2020, sec. 2.1)."""
    table, half = w["bias"].reshape(n, -1), n // 2

    def bucket(d: int) -> int:
        if d < half:
            return d
        return min(n - 1, math.floor(half + half * math.log(d / half, far / half)))

    return softmax(s + np.array([table[bucket(i - j + ahead), h] for j in range(len(s))]))


@of_rows
def log_length(s: Array, i: int, h: int, w: Weights, x: Array, *, first: int = 1) -> Array:
    """Scores of position i, from 1, times ln i (Chiang and Cholak 2022, sec. 5.3)."""
    return softmax(math.log(i + first) * s)


@of_rows
def scalable(
    s: Array, i: int, h: int, w: Weights, x: Array, *, first: int = 1, head: int = 0
) -> Array:
    """n^(s z) over the sum, n the number of scores z and s learned (Nakanishi 2025, eq. 1)."""
    n = i + first
    z = np.roll(w["sharpness"], head)[h] * s
    weights = n ** (z - max(z))
    return weights / weights.sum()


def selective(w: Weights, x: Array, H: int, *, own: bool = False, first: bool = False) -> Array:
    """softmax(s - F), F_ij the sum over earlier queries l of max(s_lj of head 0, 0), where l hides
    neither itself nor the first key (Leviathan et al. 2024, sec. 3)."""
    q, k, v = projected(w, x, H)
    score = dots(q, k)

    def hidden(i: int, j: int) -> float:
        total = 0.0
        for query in range(j + (not own), i):
            if j > 0 or first:
                total += max(0.0, score(0, query, j))
        return total

    return out(w, mixed(v, lambda h, i, j: score(h, i, j) - hidden(i, j)))


def block_selection(
    w: Weights, x: Array, H: int, *, block: int = 4, chosen: int = 2, most: bool = True
) -> Array:
    """The softmax over the keys of the query's block up to itself, and of those past blocks whose
    mean key has the largest product with the query (Lu et al. 2025, sec. 2.2)."""
    q, k, v = projected(w, x, H)
    T, D = k[0].shape
    y = [np.zeros_like(each) for each in v]
    for h, i in np.ndindex(H, T):
        own = i // block
        gates = {n: q[h][i] @ k[h][n * block : n * block + block].mean(0) for n in range(own)}
        best = sorted(gates, key=gates.__getitem__, reverse=most)[: chosen - 1]
        seen = [j for j in range(i + 1) if j // block in (*best, own)]
        p = softmax(np.array([q[h][i] @ k[h][j] / math.sqrt(D) for j in seen]))
        y[h][i] = p @ v[h][seen]
    return out(w, y)


@of_rows
def softcap(s: Array, i: int, h: int, w: Weights, x: Array, *, cap: float = 5.0) -> Array:
    """s <- cap tanh(s / cap) (Gemma Team 2024, sec. 2)."""
    return softmax(cap * np.tanh(s / cap))


def cosine(w: Weights, x: Array, H: int, *, own: bool = True) -> Array:
    """softmax(g q . k / (|q| |k|)) (Henry et al. 2020, sec. 3), with 1e-5 beside mean squares;
    g is the layer's gain times sqrt(D), one per head."""
    q, k, v = projected(w, x, H)
    gain = w["gain"] if own else np.roll(w["gain"], 1)
    scores = dots([*map(rms_norm, q)], [*map(rms_norm, k)])
    return out(w, mixed(v, scores, lambda s, i, h: softmax(gain[h] * s)))


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
    q, k, v = projected(w, x, H)
    return out(w, mixed(v, lambda h, i, j: w["v"][h] @ squash(q[h][i] + k[h][j])))


def general(w: Weights, x: Array, H: int, *, transposed: bool = False) -> Array:
    """Scores q^T W k (Luong et al. 2015, eq. 8), over sqrt(D)."""
    q, k, v = projected(w, x, H)
    k = [k[h] @ (W if transposed else W.T) for h, W in enumerate(w["W"])]
    return out(w, mixed(v, dots(q, k)))


def linear(w: Weights, x: Array, H: int, *, shift: float = 1.0) -> Array:
    """The weights phi(q) . phi(k) over their sum, phi = elu + 1 (Katharopoulos et al. 2020, eq. 7
    and 8)."""
    *both, v = projected(w, x, H)
    q, k = ([np.where(u > 0, u, np.exp(u) - 1) + shift for u in part] for part in both)
    return out(w, mixed(v, dots(q, k), lambda s, *_: s / s.sum()))


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
        more = (np.maximum(z - tau, 0) ** power).sum() > 1
        low, high = (tau, high) if more else (low, tau)
    return np.maximum(z - low, 0) ** power


@of_rows
def top(s: Array, i: int, h: int, w: Weights, x: Array, *, k: int = 8) -> Array:
    """The softmax over the k largest visible scores (Gupta et al. 2021, sec. 2)."""
    return softmax(np.where(s >= sorted(s)[-k:][0], s, -math.inf))


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


def averaged(w: Weights, x: Array, H: int) -> Heads:
    """The averages of scaled dot products, before the output projection."""
    q, k, v = projected(w, x, H)
    return mixed(v, dots(q, k))


def gated(w: Weights, x: Array, H: int, *, gate: Any = sigmoid) -> Array:
    """Y sigmoid(X W) before the output projection, one number per head or channel (Qiu et al.
    2025, eq. 5)."""
    gates = heads_of(gate(linear_map(w, "gate", x)), H)
    return out(w, [y * g for y, g in zip(averaged(w, x, H), gates, strict=True)])


def value_residual(w: Weights, x: Array, H: int, *, other: bool = False) -> Array:
    """The values of a later layer are (1 - m) v + m v_1, those of the first (Zhou et al. 2024,
    sec. 3); w has them as `values` (H, T, D)."""
    q, k, v = projected(w, x, H)
    m = 1 - w["value_mix"] if other else w["value_mix"]
    return out(w, mixed([(1 - m) * v[h] + m * w["values"][h] for h in range(H)], dots(q, k)))


def value_embeddings(w: Weights, x: Array, H: int, *, order: int = 1) -> Array:
    """The values l_1 v + l_2 E[id] (modded-nanogpt, 2024-12-08, with
    a table of each layer); w has the `ids` (T,)."""
    q, k, v = projected(w, x, H)
    own, other = w["value_mix"][::order]
    e = heads_of(np.array([w["table"][int(symbol)] for symbol in w["ids"]]), H)
    return out(w, mixed([own * v[h] + other * e[h] for h in range(H)], dots(q, k)))


def exclusive(w: Weights, x: Array, H: int, *, power: float = 1.0, squash: Any = np.tanh) -> Array:
    """y_i - (y_i . v_i) v_i / |v_i|^2 (Zhai 2026, sec. 3), or tanh(a) times what is removed
    (modded-nanogpt, record 82)."""
    z = []
    amounts = squash(w["amount"]) if "amount" in w else np.ones(H)
    for y, v, a in zip(averaged(w, x, H), projected(w, x, H)[2], amounts, strict=True):
        along = a * (y * v).sum(1) / (v * v).sum(1) ** power
        z.append(y - along[:, None] * v)
    return out(w, z)


def convolved(rows: Array, taps: Array) -> Array:
    """y_t = sum_m taps_m rows_(t - m)."""
    kept = [range(min(len(taps), t + 1)) for t in range(len(rows))]
    return np.array([sum(taps[m] * rows[t - m] for m in ms) for t, ms in enumerate(kept)])


def short_conv(w: Weights, x: Array, H: int, *, order: int = 1) -> Array:
    """u_t + sum_m w_m u_(t-m) of queries, keys and values (Allen-Zhu 2025, Canon-B)."""
    rows = linear_map(w, "qkv", x)
    q, k, v = thirds(rows + convolved(rows, w["conv"][::order]), H)
    return out(w, mixed(v, dots(q, k)))


def differential(w: Weights, x: Array, H: int, *, depth: int = 2, pairs: int = 1) -> Array:
    """(softmax(Q1 K1^T / sqrt(d)) - lambda softmax(Q2 K2^T / sqrt(d))) V, lambda = exp(a . b) -
    exp(c . e) + lambda_init (Ye et al. 2024, eq. 1 and 2); each head's output over its root mean
    square, times 1 - lambda_init (eq. 3). `depth` counts layers from 1."""
    start = 0.8 - 0.6 * math.exp(-0.3 * (depth - 1))
    a, b, c, e = w["lambdas"][::pairs]
    lam = math.exp(a @ b) - math.exp(c @ e) + start
    *both, v = projected(w, x, H)
    halves = zip(*(np.split(u, 2, axis=1) for part in both for u in part), strict=True)
    first, second = (mixed(v, dots(half[:H], half[H:])) for half in halves)
    left = [y - lam * z for y, z in zip(first, second, strict=True)]
    return out(w, [(1 - start) * rms_norm(y) for y in left])


def differential_2(w: Weights, x: Array, H: int, *, squash: Any = sigmoid, pair: int = 2) -> Array:
    """A_(2h) V - sigmoid(lambda) A_(2h+1) V, with 2 H queries for H keys and values, and lambda =
    W x (Microsoft 2026, Diff-Transformer-V2)."""
    C, rows = x.shape[1], linear_map(w, "qkv", x)
    q = heads_of(rows[:, : 2 * C], 2 * H)
    k, v = heads_of(rows[:, 2 * C : 3 * C], H), heads_of(rows[:, 3 * C :], H)
    first, second = (q[::2], q[1::2]) if pair == 2 else (q[:H], q[H:])
    one, two = mixed(v, dots(first, k)), mixed(v, dots(second, k))
    lam = squash(linear_map(w, "weigh", x))  # (T, H)
    return out(w, [one[h] - lam[:, h : h + 1] * two[h] for h in range(H)])


def latent(w: Weights, x: Array, H: int, *, wide: int = 1) -> Array:
    """Scores and averages of the latent vectors c, with the up projections absorbed into queries
    and outputs, so that no key and no value exists (DeepSeek-AI 2024, sec. 2.1.2, eq. 9 to 19)."""
    rows, L = linear_map(w, "qkv", x), w["up.weight"].shape[1]
    D = x.shape[1] // H
    R = (rows.shape[1] - H * D - L) // (H + 1)
    q, c, key = heads_of(rows[:, : -L - R], H), rows[:, -L - R : -R], rows[:, -R:]
    c = rms_norm(c) * w["norm.weight"]
    up_k, up_v = np.split(w["up.weight"].reshape(2 * H, D, L), 2)

    def score(h: int, i: int, j: int) -> Any:
        rotated = turned(q[h][i, D:], i) @ turned(key[j], j)
        return (q[h][i, :D] @ up_k[h] @ c[j] + rotated) / math.sqrt(D + wide * R)

    return out(w, [y @ up_v[h].T for h, y in enumerate(mixed([c] * H, score))])


def recurrence(
    w: Weights, x: Array, H: int, *, decay: str = "", delta: bool = True, most: float = 1.0
) -> Array:
    """S <- a S; S <- S + b k (v - S^T k)^T, or S + k v^T; y = S^T q / sqrt(D), divided by its
    root mean square, times `norm`.

    DeltaNet (Yang et al. 2024, 2406.06484, sec. 2), Gated DeltaNet (2412.06464, eq. 10), Kimi
    Delta Attention (2510.26692, eq. 1), negative eigenvalues (2411.12537, sec. 4), retention
    (2307.08621, eq. 5 and 8), Mamba-2 (2405.21060), gated linear attention (2312.06635, eq. 3).
    """
    rows = convolved(linear_map(w, "qkv", x), w["conv"])
    y, D = [], x.shape[1] // H
    for h, heads in enumerate(zip(*thirds(rows * sigmoid(rows), H), strict=True)):
        S, read = np.zeros((D, D)), []
        for x_t, q, k, v in zip(x, *heads, strict=True):
            q, k = (u / math.sqrt(u @ u + 1e-6) for u in (q, k))
            S = factor(w, x_t, h, H, decay)[:, None] * S
            b = most * sigmoid(w["beta.weight"][h] @ x_t) if delta else 1.0
            S = S + b * np.outer(k, v - k @ S if delta else v)
            read.append(q @ S / math.sqrt(D))
        y.append(rms_norm(np.array(read)) * w["norm"])
    return out(w, y)


def delta_product(
    w: Weights,
    x: Array,
    H: int,
    *,
    most: float = 2.0,
    order: int = 1,
    decay: str = "",
    decays: int = 1,
) -> Array:
    """S_t is a S_(t-1) after n writes S + b_j k_j (v_j - S^T k_j)^T in turn; y = S^T q / sqrt(D)
    (Siems et al. 2025, eq. 3), with queries, keys and values as in `recurrence`. The first
    `decays` writes of a position have a decay before them."""
    rows = convolved(linear_map(w, "qkv", x), w["conv"])
    rows = rows * sigmoid(rows)
    C, D = x.shape[1], x.shape[1] // H
    n = (rows.shape[1] // C - 1) // 2
    q, *parts = np.split(rows, 1 + 2 * n, axis=1)
    keys, values = parts[:n], parts[n:]
    strengths = most * sigmoid(x @ w["beta.weight"].T)  # (T, n H)
    y = []
    for h in range(H):
        at = slice(h * D, h * D + D)
        S, read = np.zeros((D, D)), []
        for t in range(len(x)):
            for j in range(n)[::order]:
                if j < decays:
                    S = factor(w, x[t], h, H, decay)[:, None] * S
                k = keys[j][t, at]
                k = k / math.sqrt(k @ k + 1e-6)
                S = S + strengths[t, j * H + h] * np.outer(k, values[j][t, at] - k @ S)
            query = q[t, at]
            read.append(query / math.sqrt(query @ query + 1e-6) @ S / math.sqrt(D))
        y.append(rms_norm(np.array(read)) * w["norm"])
    return out(w, y)


def factor(w: Weights, x: Array, h: int, H: int, decay: str) -> Array:
    """a (D,) of a head at a position: 1, fixed, or exp(-exp(A) softplus(W x + dt))."""
    D = len(x) // H
    if decay in ("", "fixed"):
        return np.full(D, 1 - 2.0 ** (-5 - h) if decay else 1.0)
    for name in [name for name in ("alpha.0.weight", "alpha.1.weight") if name in w]:
        x = w[name] @ x
    step = np.log1p(np.exp(x + w["dt"])).reshape(H, -1)[h]
    return np.exp(-np.exp(w["log_rate"][h]) * step) * np.ones(D)


# ---- the wrong ones: what their mistake computes


@of_rows
def filled(s: Array, i: int, h: int, w: Weights, x: Array, *, fill: float) -> Array:
    """The softmax over all keys, those of the future with the score `fill`."""
    return softmax(np.where(np.arange(len(s)) <= i, s, fill))


@of_rows
def masked_late(s: Array, i: int, h: int, w: Weights, x: Array, *, share: float = 0.0) -> Array:
    """The softmax over all keys, then weights of the future times `share`."""
    return softmax(s) * np.where(np.arange(len(s)) <= i, 1.0, share)


def over_queries(w: Weights, x: Array, H: int, *, before: int = 0) -> Array:
    """exp(s_ij) over the sum of exp(s_lj) of the queries l that see the key j."""
    q, k, v = projected(w, x, H)
    score = dots(q, k)

    def weight(h: int, i: int, j: int) -> float:
        seen = [math.exp(score(h, n, j)) for n in range(max(0, j - before), len(x))]
        return math.exp(score(h, i, j)) / sum(seen)

    return out(w, mixed(v, weight, lambda weights, *_: weights))


def unmerged(w: Weights, x: Array, H: int, *, order: str = "htd") -> Array:
    """The numbers of all heads in the order (H, T, D), cut into T rows of C."""
    y = np.einsum(f"htd->{order}", np.array(averaged(w, x, H)))
    return linear_map(w, "proj", y.reshape(x.shape))


class Case(NamedTuple):
    """A variant's formula, its constants, and wrong constants, each of which must show."""

    formula: Callable[..., Array]
    given: dict[str, Any]
    planted: list[dict[str, Any]]
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
    "mup_scale": dot({"factor": 1.0}, power=-1, factor=8.0),
    "model_scale": Case(model_scale, {}, [{"power": -1}, {"of_head": True}]),
    "relative_bias": Case(relative_bias, {}, [{"ahead": 1}]),
    "flipped": dot({"sees": PAST}, sees=(0, math.inf)),
    "bidirectional": dot({"sees": PAST}, sees=ALL),
    "peek_one": dot({"sees": PAST}, sees=(math.inf, 1)),
    "strict_flip": dot({"sees": (0, math.inf)}, sees=(-1, math.inf)),
    "sliding_window": dot({"sees": (6, 0)}, sees=(7, 0)),
    "none": dot({"sees": PAST}, sees=(0, 0)),
    "single_head": Case(scaled_dot, {}, [{"power": -1}], heads=1),
    "gqa": Case(grouped, {"G": 2}, [{"G": 4}, {"G": 1}]),
    "mqa": Case(grouped, {"G": 1}, [{"power": 0}]),
    "shared_qk": Case(shared, {"parts": (0, 0, 1)}, [{"parts": (0, 1, 1)}]),
    "shared_qkv": Case(shared, {"parts": (0, 0, 0)}, [{"power": 0}]),
    "rotary": Case(rotary, {}, [{"sign": -1}, {"base": 100.0}]),
    "rotary_half": Case(rotary, {"share": 0.5}, [{"share": 1}, {"sign": -1}]),
    "key_offset": Case(key_offset, {}, [{"back": 0}, {"back": 2}]),
    "shifted_keys": Case(shifted, {"values": False}, [{"order": -1}]),
    "shifted_keys_values": Case(shifted, {"values": True}, [{"order": -1}, {"values": False}]),
    "scalable_softmax": Case(scalable, {}, [{"first": 2}, {"head": 1}]),
    "selective": Case(selective, {}, [{"own": True}, {"first": True}]),
    "block_selection": Case(block_selection, {}, [{"chosen": 3}, {"block": 3}, {"most": False}]),
    "value_embeddings": Case(value_embeddings, {}, [{"order": -1}]),
    "exclusive_learned": Case(exclusive, {}, [{"squash": sigmoid}, {"power": 0.5}]),
    "differential_2": Case(differential_2, {}, [{"squash": np.tanh}, {"pair": 1}]),
    "delta_product": Case(delta_product, {}, [{"most": 1.0}, {"order": -1}]),
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
    "zero_fill": Case(filled, {"fill": 0.0, "sees": ALL}, [{"fill": -math.inf}]),
    "finite_fill": Case(filled, {"fill": -1e4, "sees": ALL}, [{"fill": -math.inf}], size=200.0),
    "post_softmax_mask": Case(masked_late, {"sees": ALL}, [{"share": 1.0}]),
    "softmax_over_queries": Case(over_queries, {}, [{"before": 1}]),
    "unmerged_heads": Case(unmerged, {}, [{"order": "thd"}]),
}
