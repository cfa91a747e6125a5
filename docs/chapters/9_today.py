# %% [markdown]
# # 9. Attention today, and how to read a ranking
#
# **Which of all these variants should you use?**
#
# > A horse! a horse! my kingdom for a horse!
#
# To write the third *horse*, a model can copy the second, 24 characters back. A head that sees only the last 8
# characters cannot reach it, even in two layers, but it needs to keep only 8 keys. Layers of recent models make
# similar trade-offs: less memory, sparser weights, or a state of fixed size. This chapter shows what they compute and keep,
# trains a mixture of two, and ends with five questions to ask about any ranking.
#
# **You will learn** to
#
# - describe a variant by three properties: what a row sums to, which weights are 0, and what is kept;
# - mix variants over the layers of a model;
# - tell a difference between two variants from the noise between seeds.
#
# **Prerequisites:** chapters 2, 4, and 5.

# %% tags=["hide-input"]
import sys
from functools import partial

import torch

from attnlab.attention import (
    AttentionConfig,
    DeltaAttention,
    LatentAttention,
    SelfAttention,
    alibi,
    build_mask,
    causal,
    softmax1,
    sparsemax,
    stick_breaking,
    top_k,
)
from attnlab.installation import lab_path
from attnlab.plotting.drawing import styled
from attnlab.plotting.maps import shades

sys.path.append(str(lab_path("docs")))
from chapters.shown import panels, paragraph, picture, table, train

stream = torch.Generator().manual_seed(0)

# %% [markdown]
# ## Look at the weights
#
# Seven layers get the same input and the same query and key weights. They differ in one setting.
#
# **Predict.** In which of them can a row sum to less than 1? In which are some weights exactly 0?

# %% tags=["hide-input"]
SETTINGS = {
    "sdpa": {},
    "sliding_window": {"window": 8},
    "alibi": {"score_mod": alibi},
    "top_k": {"kernel": top_k},
    "sparsemax": {"kernel": sparsemax},
    "softmax1": {"kernel": softmax1},
    "stick_breaking": {"kernel": stick_breaking},
}
T = 24
x = torch.randn(1, T, 32, generator=stream)
weight = torch.randn(96, 32, generator=stream) / 4
patterns = {}
for name, settings in SETTINGS.items():
    layer = SelfAttention(
        AttentionConfig(32, 2, block_size=T, bias=False), **settings
    )
    with torch.no_grad():
        layer.qkv.weight.copy_(weight)
        patterns[name] = layer.pattern(x)[0, 0]

causal_mask = build_mask(causal, T).numpy()
with styled():
    figure, places = panels(7, width=3.0, height=3.2, columns=4)
    for place, (name, pattern) in zip(places, patterns.items(), strict=True):
        place.imshow(shades(pattern.numpy(), causal_mask))
        place.set(title=name, xticks=[], yticks=[], xlabel="key", ylabel="query")
        place.grid(False)
    figure.supxlabel(
        "weight, on a square-root scale from 0 (white) to 1 (dark blue); gray: blocked by the causal mask",
        fontsize=12,
    )
ALT = "Seven patterns below the diagonal: dense for sdpa, a band for the window, a few cells a row for top_k and sparsemax"
picture(figure, "today", ALT)

# %% tags=["remove-input"]
lower = torch.ones(T, T).tril().bool()
sums = {name: float(p.sum(-1).min()) for name, p in patterns.items()}
zeros = {name: float((p[lower] == 0).float().mean()) for name, p in patterns.items()}
assert all(bool((p.triu(1) == 0).all()) for p in patterns.values())
assert all(
    abs(sums[name] - 1) < 1e-5 for name in ("sdpa", "alibi", "top_k", "sparsemax")
)
assert sums["softmax1"] < 0.9 and zeros["sdpa"] == zeros["softmax1"] == 0
assert min(zeros[name] for name in ("sliding_window", "top_k", "sparsemax")) > 0.3

table(
    ["`attn=`", "smallest sum of a row", "allowed weights that are exactly 0"],
    [[f"`{name}`", f"{sums[name]:.2f}", f"{zeros[name]:.0%}"] for name in SETTINGS],
)

# %% [markdown]
# **Explain.** The weights of a softmax sum to 1, and no allowed weight is 0. `softmax1` adds 1 to the sum
# of exponentials, so a head may read almost nothing. A window sets weights to 0 by distance; `top_k` and
# `sparsemax` do so by score. [variants.md](../variants.md) has the question, the formula and the source of
# each variant.
#
# ## Count what a layer keeps
#
# To write the next character, a layer reads what it has kept of the past: keys and values, or a state.
#
# **Predict.** The layers below have 64 channels and 4 heads. Which of them keep more at 1,024 positions than at
# 64?

# %%
LAYERS = {
    "sdpa": SelfAttention,
    "gqa": partial(SelfAttention, n_kv_head=2),
    "mqa": partial(SelfAttention, n_kv_head=1),
    "latent": LatentAttention,
    "sliding_window": partial(SelfAttention, window=8),
    "delta_net": DeltaAttention,
}
kept = {}
for name, layer_of in LAYERS.items():
    layer = layer_of(AttentionConfig(64, 4, block_size=1024, bias=False))
    for length in (64, 1024):
        kept[name, length] = layer.state(length)

# %% tags=["remove-input"]
assert (
    kept["sdpa", 64] == 2 * 64 * 64 and kept["mqa", 1024] * 4 == kept["sdpa", 1024]
)
assert kept["delta_net", 64] == kept["delta_net", 1024]
assert kept["sliding_window", 64] == kept["sliding_window", 1024]

table(
    ["`attn=`", "numbers at 64", "numbers at 1,024"],
    [[f"`{name}`", *(f"{kept[name, n]:,}" for n in (64, 1024))] for name in LAYERS],
)

# %% [markdown]
# **Explain.** Shared heads and a small latent vector (`latent`) keep fewer numbers, but still grow with the text. A
# window and a recurrent state (`delta_net`) do not grow, and recall less, or later: the
# [ranking](../../experiments/ranking/README.md) shows how much.
#
# ## Mix the layers
#
# Many models alternate between cheap layers and layers that see everything. `attn=hybrid` gives layers 0, 2, 4, ... a
# window and layers 1, 3, 5, ... all keys; `conf/attn/hybrid.yaml` lists its layers.
#
# **Predict.** The generated plays of chapter 6 repeat words from about 20 characters back. Order three models of two
# layers by their loss: all keys, windows of 8, and one layer of each.

# %%
runs = train(
    "mix",
    "attn=sdpa,sliding_window,hybrid seed=0,1,2 "
    "preset=micro data=plays data.length=60000 data.batch_size=6 "
    "trainer.max_steps=100 trainer.val_check_interval=100",
)
losses = runs.groupby("attn").loss

# %% tags=["hide-input"]
means = losses.mean()
noise = losses.std()["sdpa"]
floor = runs.val_floor[0]
assert (losses.count() == 3).all() and len(means) == 3

with styled():
    figure, (place,) = panels(1, width=7.4, height=3.6)
    place.plot(runs.attn, runs.loss, "o")
    place.plot(means.index, means, "_", color="black", markersize=30)
    place.set(ylabel="validation loss, nats", title="three seeds each")
ALT = "Dots of the validation losses of the three models, three seeds each, with a bar for each mean"
picture(figure, "mix", ALT)

# %% tags=["remove-input"]
assert means["sliding_window"] < means["sdpa"] - noise and floor < 1
ordered = means.sort_values().index

paragraph(
    "**Explain.** From best to worst: "
    + ", ".join(f"`{name}` {means[name]:.3f}" for name in ordered)
    + ". Did you expect all keys to win? After 100 steps, these models have hardly learned to spell. For that, "
    f"the last few characters are enough. A perfect model reaches {floor:.2f}, but it needs "
    "words from far back, and nothing here shows who wins once they are learned. On Shakespeare, the "
    "[ranking](../../experiments/ranking/README.md) has trained for longer: a window of 8 is 0.128 nats better than "
    "all keys after 300 steps, and 0.034 after 1,200. The three "
    f"seeds of `sdpa` have a standard deviation of {noise:.3f} nats: a difference that is not much "
    "larger may be noise."
)

# %% [markdown]
# ## Is a difference only noise?
#
# **Predict.** Eight variants are equal, and differ only by the noise between seeds. You run each once and rank
# them. How far apart are the first and the last?

# %%
luck = torch.randn(10_000, 8, 10, generator=stream)  # rankings, variants, seeds
one_seed = luck[:, :, 0]
ten_seeds = luck.mean(-1)
apart = {
    "1 seed": float((one_seed.amax(1) - one_seed.amin(1)).mean()),
    "10 seeds": float((ten_seeds.amax(1) - ten_seeds.amin(1)).mean()),
}

# %% tags=["remove-input"]
assert 2.7 < apart["1 seed"] < 3.0 and apart["10 seeds"] < 1

paragraph(
    f"**Explain.** {apart['1 seed']:.1f} standard deviations with one seed, {apart['10 seeds']:.1f} with "
    f"ten. With the {noise:.3f} nats from above, a ranking of equal variants with one seed shows a gap of "
    f"{apart['1 seed'] * noise:.3f} nats, and a winner."
)

# %% [markdown]
# ## Five questions about a ranking
#
# | ask | because |
# |---|---|
# | How many seeds, and are they paired? | With one seed, even equal variants have a winner. If both use the same seeds, much of the noise cancels. |
# | Is each variant at its own best learning rate? | In chapter 2, the map of eight runs changes with the rate. A rate tuned for the baseline favors the baseline. |
# | How many parameters, operations, and kept numbers does each have? | A gate adds weights. Compare it with a baseline that is as large. |
# | Is the order the same after four times as many steps? | Some layers learn fast: the lead of a window shrinks from 0.128 to 0.034 nats. |
# | On how many texts and tasks? | A window costs little on a text without long repetitions, and much on recall. |
#
# `attnlab rank` answers these questions for many variants and for your own ([ranking.md](../ranking.md)).
# [claims.md](../claims.md) has the rule by which seeds are counted.
#
# ## Summary
#
# - A variant is described by what its rows sum to, which weights are 0, and what it keeps of the past.
# - Variants may alternate over the layers.
# - Noise alone ranks equal variants. Ask for seeds, rates, costs, lengths, and texts.
#
# ## Exercises
#
# **1.** Two layers with windows of 8. How far back can the last position read?

# %% tags=["hide-cell"]
# Seven positions a layer, because the window contains the query: 14. Measure it with a gradient.
torch.manual_seed(0)
config = AttentionConfig(16, 2, block_size=32, bias=False)
first, second = (SelfAttention(config, window=8) for _ in range(2))
inputs = torch.randn(1, 32, 16, generator=stream).requires_grad_()
second(first(inputs))[0, -1].sum().backward()
reached = [t for t in range(32) if bool(inputs.grad[0, t].any())]
assert 31 - min(reached) == 14
31 - min(reached)

# %% [markdown]
# **2.** How many seeds does it take until eight equal variants differ by less than half a standard deviation,
# on average?

# %% tags=["hide-cell"]
# The gap shrinks like 1/√n, so (2.85 / 0.5)² seeds.
needed = (apart["1 seed"] / 0.5) ** 2
assert 29 < needed < 36
round(needed)

# %% [markdown]
# **3.** Does a window cost anything on TinyShakespeare? Write down your prediction, then train.

# %% [markdown]
# <details><summary>A solution</summary>
#
# No, it helps. Compare paired seeds; with seeds 0, 1 and 2, windows of 8 end 0.143 nats lower than all keys, and one layer
# of each 0.136, both in three of three:
#
#     python train.py -m attn=sdpa,sliding_window,hybrid preset=micro seed=0,1,2 name=window
#     attnlab compare outputs/window
#
# In the [ranking](../../experiments/ranking/README.md), with ten seeds and each model at its best rate, windows are
# 0.128 nats better after 300 steps and 0.034 after 1,200. On recall they fail.
#
# </details>

# %% [markdown]
# ## References
#
# - Beltagy et al. (2020), [Longformer](https://arxiv.org/abs/2004.05150), sliding windows.
# - Press et al. (2022), [Train short, test long](https://arxiv.org/abs/2108.12409), ALiBi.
# - DeepSeek-AI (2024), [DeepSeek-V2](https://arxiv.org/abs/2405.04434), latent attention.
# - Martins, Astudillo (2016), [From softmax to sparsemax](https://arxiv.org/abs/1602.02068).
# - Arora et al. (2024), [Zoology](https://arxiv.org/abs/2312.04927), recall and the size of the state.
