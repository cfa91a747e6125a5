# %% [markdown]
# # 5. Cost
#
# **What does it cost to read twice as much?**
#
# > It was the best of times, it was the worst of times.
#
# Each of these 52 characters may attend to itself and to all before it: 1,378 pairs. In a text twice as long,
# there are four times as many. Textbooks therefore say that attention is quadratic. What exactly is
# quadratic, and what does a fused kernel such as FlashAttention change? This chapter counts
# operations, and measures time and memory on one core of the machine that built this page.
#
# **You will learn** to
#
# - count the operations of attention and of its projections;
# - measure time and memory, and fit their exponents;
# - compute exact attention block by block, without storing the pattern;
# - explain what a KV cache stores.
#
# **Prerequisites:** chapters 1 and 4.

# %% tags=["hide-input"]
import math
import os
import sys
import time
from functools import partial

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from attnlab import GPT, SelfAttention, init_weights
from attnlab.attention import attention, build_mask, causal, manual, sdpa
from attnlab.installation import lab_path
from attnlab.plotting.drawing import COLORS, styled

sys.path.append(str(lab_path("docs")))
from chapters.shown import panels, paragraph, picture, table

H, D = 4, 32
LENGTHS = (128, 256, 512, 1024)
# Memory is measured in one pass, so longer texts fit in.
FURTHER = (32, *LENGTHS, 4096)
KERNELS = {"manual": manual, "sdpa": sdpa}
torch.manual_seed(0)
os.environ.setdefault(
    "KINETO_LOG_LEVEL", "6"
)  # the profiler logs when it starts and stops


def exponent(lengths, costs):
    """The slope of a line through the logarithms: costs grow like T to this power."""
    return float(np.polyfit(np.log(lengths), np.log(costs), 1)[0])


def inputs(T):
    return (torch.randn(1, H, T, D, requires_grad=True) for _ in range(3))


def work(kernel, T):
    """A forward and backward pass."""
    q, k, v = inputs(T)
    kernel(
        q, k, v, mask=build_mask(causal, T), scale=D**-0.5, dropout=0.0
    ).sum().backward()


def seconds(go, rounds=7):
    go()  # warm-up
    times = []
    for _ in range(rounds):
        began = time.process_time()  # which other programs hardly change
        go()
        times.append(time.process_time() - began)
    return sorted(times)[rounds // 2]


def peak_bytes(go):
    """The largest sum of the allocations that PyTorch's profiler records."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        go()
    held = peak = 0
    changes = [
        e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"
    ]
    for event in sorted(changes, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


# %% [markdown]
# ## Operations
#
# The scores are $T \times T$ dot products of length $D$, and averaging the values takes the same number of
# multiplications and additions:
#
# $$
# \text{scores and average: } 4 \, H \, T^2 D
# \qquad
# \text{projections: } 8 \, T \, C^2, \quad C = H D
# $$
#
# **Predict.** A layer has H = 4 heads of D = 32 channels. Above which T does the quadratic part exceed the
# linear part?

# %%
counted = {}
for T in LENGTHS:
    q, k, v = inputs(T)
    with FlopCounterMode(display=False) as counter:
        manual(q, k, v, mask=build_mask(causal, T), scale=D**-0.5, dropout=0.0)
    counted[T] = counter.get_total_flops()

# %% tags=["remove-input"]
assert all(counted[T] == 2 * 2 * H * T * T * D for T in LENGTHS)
C = H * D
projections = {T: 2 * T * C * 4 * C for T in LENGTHS}
table(
    ["T", "scores and average", "projections to q, k, v and output"],
    [[T, f"{counted[T]:,}", f"{projections[T]:,}"] for T in LENGTHS],
)

# %% tags=["remove-input"]
crossing = 2 * C
assert 2 * 2 * H * crossing**2 * D == 2 * crossing * C * 4 * C

paragraph(
    f"**Explain.** The quadratic part exceeds the linear part above T = 2 C, here {crossing}. Below this length, the "
    "projections dominate. The causal mask blocks half of the scores, but the written-out kernel "
    "computes them anyway."
)

# %% [markdown]
# ## Time and memory
#
# We run forward and backward passes of two kernels, the written-out formula (`manual`) and PyTorch's fused function
# (`sdpa`), and measure the median CPU time of seven passes, on one thread, and the peak memory.
#
# **Predict.** T doubles. By which factor do time and memory of each kernel grow?

# %%
took = {
    (name, T): seconds(partial(work, kernel, T))
    for T in LENGTHS
    for name, kernel in KERNELS.items()
}
held = {}
for T in FURTHER:
    build_mask(causal, T)  # which is kept, and counts for no kernel
    for name, kernel in KERNELS.items():
        held[name, T] = peak_bytes(partial(work, kernel, T))

# %% tags=["remove-input"]
rows = []
for T in FURTHER:
    milliseconds = [
        f"{1e3 * took[name, T]:.2f}" if T in LENGTHS else "" for name in KERNELS
    ]
    megabytes = [f"{held[name, T] / 1e6:.2f}" for name in KERNELS]
    rows.append([T, *milliseconds, *megabytes])
table(["T", "manual, CPU ms", "sdpa, CPU ms", "manual, MB", "sdpa, MB"], rows)

# %% tags=["hide-input"]
powers = {}
for name in KERNELS:
    times = [took[name, T] for T in LENGTHS]
    powers["time", name] = exponent(LENGTHS, times)
    bytes_held = [held[name, T] for T in FURTHER[1:]]
    powers["memory", name] = exponent(FURTHER[1:], bytes_held)
with styled():
    figure, (left, right) = panels(2)
    for color, name in zip(COLORS, KERNELS, strict=False):
        for place, what, cost, unit, lengths in (
            (left, "time", took, 1e3, LENGTHS),
            (right, "memory", held, 1e-6, FURTHER),
        ):
            place.plot(lengths, [unit * cost[name, T] for T in lengths], "o-", color=color,
                       label=f"{name}: T^{powers[what, name]:.2f}")  # fmt: skip
    for place, label in (
        (left, "CPU time, ms, forward and backward"),
        (right, "peak memory, MB"),
    ):
        place.set_xscale("log", base=2)
        place.set_yscale("log")
        place.set(xlabel="sequence length T, tokens", ylabel=label)
        place.legend()
ALT = "Time and memory by sequence length on logarithmic axes; memory grows twice as steeply for the written-out kernel"
picture(figure, "cost", ALT)

# %% tags=["remove-input"]
assert (
    powers["memory", "manual"] > 1.7
)  # T × T numbers are kept for the backward pass
assert powers["memory", "sdpa"] < 1.4  # SDPA does not keep them
assert held["manual", 4096] > 12 * held["sdpa", 4096]
last = {
    name: exponent(LENGTHS[-2:], [took[name, T] for T in LENGTHS[-2:]])
    for name in KERNELS
}

paragraph(
    f"**Explain.** Fitted exponents on this machine: time {powers['time', 'manual']:.2f} (manual) and "
    f"{powers['time', 'sdpa']:.2f} (sdpa), memory {powers['memory', 'manual']:.2f} and "
    f"{powers['memory', 'sdpa']:.2f}. At T = {LENGTHS[-1]:,}, sdpa takes "
    f"{took['sdpa', 1024] / took['manual', 1024]:.0%} of the time of the written-out kernel, and at T = "
    f"{FURTHER[-1]:,} it needs {held['sdpa', 4096] / held['manual', 4096]:.0%} of its memory. "
    "Times vary between machines and from run to run; memory does not. "
    f"Between the two longest texts, time grows like T to the {last['manual']:.2f} (manual) and {last['sdpa']:.2f} (sdpa): "
    "at short lengths, a larger part of it does not grow with T², such as the start of each operation."
)

# %% [markdown]
# So the *number of operations* is quadratic. Quadratic *memory* is not necessary: the written-out kernel
# stores the T × T matrix only because it divides each row by its sum.
#
# ## What FlashAttention changes
#
# A softmax seems to require the whole row of scores at once, but it does not. Process
# the keys in blocks, and store for each query the largest score so far, $m$; the sum
# of exponentials relative to it, $\ell$; and the weighted sum of values, $o$, not yet divided by $\ell$:
#
# $$
# m' = \max(m, \max_j s_j), \quad
# \ell' = e^{m - m'} \ell + \sum_j e^{s_j - m'}, \quad
# o' = e^{m - m'} o + \sum_j e^{s_j - m'} v_j
# $$
#
# The sums run over the keys of the block (Milakov and Gimelshein 2018; Dao et al. 2022).
#
# **Predict.** Is the result exact, or does it depend on the size of the blocks?


# %%
def by_blocks(q, k, v, size):
    """Attention that never holds more than T x size scores."""
    T = len(q)
    m = torch.full((T, 1), -math.inf, dtype=q.dtype)
    total = torch.zeros(T, 1, dtype=q.dtype)
    o = torch.zeros(T, v.shape[-1], dtype=q.dtype)
    for start in range(0, len(k), size):
        block = slice(start, start + size)
        s = q @ k[block].mT / math.sqrt(q.shape[-1])  # (T, size)
        new_m = torch.maximum(m, s.amax(-1, keepdim=True))
        shrink = torch.exp(m - new_m)
        e = torch.exp(s - new_m)
        total = shrink * total + e.sum(-1, keepdim=True)
        o = shrink * o + e @ v[block]
        m = new_m
    return o / total


q, k, v = 3 * torch.randn(3, 300, D, dtype=torch.float64)
exact, _ = attention(q, k, v)
errors = {
    size: float((by_blocks(q, k, v, size) - exact).abs().max())
    for size in (1, 7, 64, 300)
}

# %% tags=["remove-input"]
assert max(errors.values()) < 1e-12

table(
    ["block", "largest difference from attention"],
    [[s, f"{e:.1e}"] for s, e in errors.items()],
)

# %% [markdown]
# **Explain.** The result is exact for every block size. The backward pass
# recomputes the scores block by block instead of storing them, which takes more operations but less
# memory traffic. If memory is slower than arithmetic, as on a GPU, this saves time.
#
# ## The KV cache
#
# If a model processes the whole text again for each of T generated characters, it runs T passes. The keys
# and values of earlier characters do not change, so they can be kept. `step` computes one position from what the
# positions before it left.
#
# **Predict.** The new query reads all keys that were kept. Which mask does it need?


# %%
def step(net, symbol, cache):
    """Logits (B, V) after one more symbol (B,); `cache` has a list [k, v] for each layer."""
    t = cache[0][0].shape[2] if cache[0] else 0
    x = (net.wte(symbol) + net.wpe.weight[t])[:, None]  # (B, 1, C)
    for block, kept in zip(net.blocks, cache, strict=True):
        q, k, v = block.attn.split(block.ln_1(x))  # each (B, H, 1, D)
        if kept:
            k, v = torch.cat([kept[0], k], 2), torch.cat([kept[1], v], 2)
        kept[:] = [k, v]
        mixed, _ = attention(q, k, v)  # (B, H, 1, D)
        x = x + block.attn.proj(block.attn.merge(mixed, x, v))
        x = x + block.mlp(block.ln_2(x))
    return (net.ln_f(x) @ net.wte.weight.T)[:, 0]


net = GPT(SelfAttention, 65, n_layer=2, n_embd=64, block_size=64).eval()
init_weights(net, 0)
text = torch.randint(65, (3, 64))
cache = [[] for _ in net.blocks]
with torch.no_grad():
    stepwise = torch.stack([step(net, symbol, cache) for symbol in text.T], 1)
    apart = float((stepwise - net(text)).abs().max())

# %% tags=["remove-input"]
assert apart < 1e-5
assert sum(x[0].numel() for kept in cache for x in kept) == 2 * 2 * 64 * 64

paragraph(
    f"**Explain.** None: everything that is kept lies in the past. The logits differ from those of whole passes by {apart:.0e}, "
    "which is rounding. The cache grows by 2 C numbers per character and layer."
)

# %% [markdown]
# **Predict.** `attn=gqa` shares one key-value head between two query heads, `attn=mqa` between all four. How
# much smaller is the cache?


# %% tags=["remove-input"]
def numbers_kept(T, n_layer, n_kv_head, width=D):
    return 2 * T * n_layer * n_kv_head * width


assert numbers_kept(1024, 4, 4) == 4 * numbers_kept(1024, 4, 1)
rows = [
    [name, n, f"{numbers_kept(1024, 4, n):,}"]
    for name, n in (("sdpa", 4), ("gqa", 2), ("mqa", 1))
]
table(["attn=", "key-value heads", "cached numbers at T = 1,024, four layers"], rows)

# %% [markdown]
# **Explain.** One half, and one quarter: the cache holds the keys and values of key-value heads alone.

# %% [markdown]
# ## Summary
#
# - Scores take T² operations per channel. Projections take C² per token, and dominate for T below 2 C.
# - The written-out kernel stores T × T numbers per head. A fused kernel stores only blocks, so its memory
#   is linear in T.
# - The online softmax is exact, not an approximation.
# - A KV cache avoids repeated work in generation. Fewer key-value heads make it smaller.
#
# ## Exercises
#
# **1.** How much memory does the T × T pattern of H heads take in fp32 at T = 8,192? Compare it with q,
# k, and v.

# %% tags=["hide-cell"]
pattern_bytes, qkv_bytes = 4 * H * 8192**2, 4 * 3 * H * 8192 * D
assert pattern_bytes / qkv_bytes == 8192 / (3 * D)
f"{pattern_bytes / 2**30:.0f} GiB against {qkv_bytes / 2**20:.0f} MiB"

# %% [markdown]
# **2.** In `by_blocks`, what goes wrong without the subtraction of m?

# %% tags=["hide-cell"]
# exp overflows: a trained model can have a score of 1000.
assert torch.exp(torch.tensor(1000.0)) == math.inf
big, other = 100 * torch.randn(2, 50, D, dtype=torch.float64)
assert bool(by_blocks(big, other, other, 7).isfinite().all())

# %% [markdown]
# **3.** A window of w keys makes attention linear in T. How many scores remain at T = 1,024 and
# w = 64?

# %% tags=["hide-cell"]
window = build_mask(lambda q, k: (k <= q) & (k > q - 64), 1024)
share = int(window.sum()) / int(build_mask(causal, 1024).sum())
assert int(window.sum()) == 1024 * 64 - 64 * 63 // 2
f"{int(window.sum()):,}, {share:.0%} of the causal ones"

# %% [markdown]
# **4.** What share of a training step does attention take?


# %% tags=["hide-cell"]
def share_of_a_step(T, n_layer=2, tokens=4096):
    """CPU time of scores, softmax and average in all layers, as a share of a training step's."""
    net = GPT(SelfAttention, 65, n_layer=n_layer, n_head=H, n_embd=C, block_size=T)
    symbols = torch.randint(65, (tokens // T, T))
    q, k, v = torch.randn(3, tokens // T, H, T, D, requires_grad=True)
    mask = build_mask(causal, T)

    def step():
        cross_entropy(net(symbols).flatten(0, 1), symbols.flatten()).backward()

    def mix():
        sdpa(q, k, v, mask=mask, scale=D**-0.5, dropout=0.0).sum().backward()

    return n_layer * seconds(mix, rounds=3) / seconds(step, rounds=3)


shares = {T: share_of_a_step(T) for T in (64, 256, 1024)}
assert shares[64] < 0.5 and shares[64] < shares[1024]

table(
    ["T", "share of mixing in a training step, 4,096 tokens"],
    [[f"{T:,}", f"{share:.0%}"] for T, share in shares.items()],
)

# %% [markdown]
# <details><summary>A solution</summary>
#
# The table above: at 64 characters it is small, so a faster kernel makes almost no difference. The rest are
# projections, MLP and the output layer, whose cost for each token does not depend on T.
#
# </details>

# %% [markdown]
# ## References
#
# - Dao et al. (2022), [FlashAttention](https://arxiv.org/abs/2205.14135).
# - Milakov, Gimelshein (2018), [Online normalizer calculation for softmax](https://arxiv.org/abs/1805.02867).
# - Rabe, Staats (2021), [Self-attention does not need O(n²) memory](https://arxiv.org/abs/2112.05682).
# - Shazeer (2019), [Fast transformer decoding](https://arxiv.org/abs/1911.02150), on the KV cache.
