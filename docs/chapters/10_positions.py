# %% [markdown]
# # 10. Where is a token?
#
# **A softmax sums over keys, and a sum has no order. How does a GPT know which token comes first?**
#
# > Sweets to the sweet: farewell!
#
# Attention compares contents. If nothing tells it where a token is, *dog bites man* and *man bites dog* are the same
# set of keys and values. This chapter takes four ways to say it apart: sinusoids that are added to the embeddings, a
# rotation of queries and keys, a bias by distance, and the causal mask alone.
#
# **You will learn** to
#
# - show what attention can and cannot tell apart without positions;
# - compute sinusoids and rotary positions, and say what they have in common;
# - read a bias by distance as a range of keys;
# - choose positions for texts that are longer than those of the training.
#
# **Prerequisites:** chapters 1 and 3, and sine and cosine.

# %% tags=["hide-input"]
import sys

import torch

from attnlab.attention import AttentionConfig, SelfAttention, alibi, bidirectional
from attnlab.attention.ops import rotate, sinusoids
from attnlab.installation import lab_path
from attnlab.plotting.drawing import COLORS, styled

sys.path.append(str(lab_path("docs")))
from chapters.shown import panels, paragraph, picture, table, train

stream = torch.Generator().manual_seed(0)
T, C, H = 12, 32, 4
CPU = torch.device("cpu")


def layers(count, **settings):
    """Layers with large random weights, without positions."""
    made = [
        SelfAttention(AttentionConfig(C, H, T, bias=False), **settings).double()
        for _ in range(count)
    ]
    for layer in made:
        for weight in layer.parameters():
            torch.nn.init.normal_(weight, std=C**-0.5, generator=stream)
    return made


@torch.no_grad()
def last_output(blocks, x):
    """The output at the last position of layers with residual connections."""
    for layer in blocks:
        x = x + layer(x)
    return x[0, -1]


x = torch.randn(1, T, C, generator=stream, dtype=torch.float64)
swapped = x.clone()
swapped[:, [2, 7]] = x[:, [7, 2]]  # two earlier tokens change places

# %% [markdown]
# ## What a mask alone gives
#
# We swap the tokens at positions 2 and 7, and look at the output at the last position, 11.
#
# **Predict.** In which of these cases does the output at the last position change: one causal layer, two layers
# that see everything, two causal layers?

# %%
cases = {
    "one causal layer": layers(1),
    "two layers without a mask": layers(2, may_attend=bidirectional),
    "two causal layers": layers(2),
}
moved = {
    name: float((last_output(blocks, x) - last_output(blocks, swapped)).abs().max())
    for name, blocks in cases.items()
}
{name: f"{change:.0e}" for name, change in moved.items()}

# %% tags=["remove-input"]
assert moved["one causal layer"] < 1e-12 < 1e-3 < moved["two causal layers"]
assert moved["two layers without a mask"] < 1e-12

paragraph(
    "**Explain.** One layer sums over all keys that the last position sees, whatever their order. Without a mask that "
    "is so in every layer: swapping two tokens swaps their outputs, and nothing else changes. A causal mask breaks the "
    "symmetry. In the first layer, the token at 2 sees three keys and the one at 7 sees eight, so they get other outputs, "
    "and the second layer can read the difference."
)

# %% [markdown]
# How could a layer read *where* it is from the mask alone? Let one head attend evenly, to keys whose values are 0 but
# for the first one.
#
# **Predict.** What is the output of such a head at position t?

# %%
values = torch.zeros(T, 1)
values[0] = 1
evenly = torch.ones(T, T).tril()
evenly = evenly / evenly.sum(-1, keepdim=True)
counted = 1 / (evenly @ values)[:, 0]
counted.tolist()

# %% tags=["remove-input"]
assert torch.allclose(counted, torch.arange(1.0, T + 1))

paragraph(
    "**Explain.** It is 1 / (t + 1): the more keys, the smaller the share of the first. A causal model can therefore "
    "count, and one without positions (NoPE) is not lost; but neighboring positions far from the start are hard to tell apart."
)

# %% [markdown]
# ## Sinusoids
#
# The first Transformer adds to each embedding a vector of the position t: sin(t ω) and cos(t ω), for C/2
# frequencies ω from 1 down to 1/10,000. Each pair of channels is the hand of a clock, and the clocks run at different speeds.
#
# **Predict.** Take the dot product of the vectors of positions t and t + k. Does it depend on t?

# %%
pe = sinusoids(64, C, CPU)
products = {
    k: [round(float(pe[t] @ pe[t + k]), 3) for t in (0, 10, 40)]
    for k in (0, 1, 5, 20)
}
products

# %% tags=["remove-input"]
assert all(max(row) - min(row) < 1e-3 for row in products.values())
assert products[0][0] == C / 2 > products[5][0]

paragraph(
    "**Explain.** No: sin a sin b + cos a cos b = cos(a - b), so only the distance k counts, and near positions "
    "are more alike than distant ones. Moreover, each clock moves on by the same angle in k steps, so the vector of t + k is "
    "a *linear* function of that of t, the same for all t. One matrix in a head can learn to look k positions back."
)

# %% tags=["remove-input"]
with styled():
    figure, (left, right) = panels(2, width=4, height=2.6)
    left.imshow(pe.T, aspect="auto", cmap="RdBu")
    left.set(xlabel="position", ylabel="channel", title="sinusoids")
    for k, t in enumerate((8, 32)):
        right.plot(pe @ pe[t], color=COLORS[k], label=f"with position {t}")
    right.set(xlabel="position", title="dot products")
    right.legend()
picture(figure, "sinusoids", "Sinusoids by position and channel, and their products")

# %% [markdown]
# ## Rotation
#
# A sum of embedding and position mixes what a token is with where it is. Rotary positions add nothing: they turn
# each pair of channels of queries and keys by t ω, as the clocks of the sinusoids do, and leave the values alone.
#
# **Predict.** The query at position i and the key at j have the contents q and k. For which of these (i, j) is
# their product the same: (3, 1), (10, 8), (60, 58), (10, 1)?

# %%
q, k = torch.randn(2, C, generator=stream, dtype=torch.float64)
turned_q, turned_k = (rotate(u.expand(64, C)) for u in (q, k))  # at every position
PLACES = [(3, 1), (10, 8), (60, 58), (10, 1)]
scores = {place: float(turned_q[place[0]] @ turned_k[place[1]]) for place in PLACES}
{place: round(score, 6) for place, score in scores.items()}

# %% tags=["remove-input"]
same = [scores[place] for place in PLACES[:3]]
assert max(same) - min(same) < 1e-9 < abs(scores[10, 1] - same[0])
assert torch.allclose(turned_q.norm(dim=-1), q.norm().expand(64))  # lengths stay

paragraph(
    "**Explain.** The first three, which are two positions apart. Turning both by angles leaves only the difference of the "
    "angles in a product. Unlike learned embeddings, this exists for every position, also beyond those of "
    "the training; whether the trained model can use it there is another question."
)

# %% [markdown]
# ## A bias by distance
#
# ALiBi rotates nothing. It subtracts from each score the distance times a slope, another one in each head. T5
# learns a number for each range of distances instead (`attn=relative_bias`).
#
# **Predict.** With four heads and equal contents, how many keys does each head read at a position far from the start?

# %%
i = torch.arange(256)
biased = alibi(torch.zeros(1, 4, 256, 256), i[:, None], i[None, :])
causal = torch.ones(256, 256, dtype=torch.bool).tril()
p = biased.masked_fill(~causal, -torch.inf).softmax(-1)[0, :, -1]  # (H, 256)
keys_read = (-(p * p.clamp(min=1e-30).log()).sum(-1)).exp()
[round(float(n), 1) for n in keys_read]

# %% tags=["remove-input"]
assert keys_read.tolist() == sorted(keys_read.tolist())
assert keys_read[0] < 12 < 100 < keys_read[-1]

rows = []
for h, n in enumerate(keys_read.tolist(), start=1):
    rows.append([h, f"1/{2 ** (2 * h)}", f"{n:.0f}"])
table(["head", "slope", "keys read"], rows)

# %% [markdown]
# **Explain.** A slope m leaves about e/m keys with much weight: the heads look back over ranges that grow by a factor
# of four, and nothing else about positions is known. A range does not depend on the length of the text.
#
# ## Does it matter? Four small models
#
# The task `copy` shows eight symbols, a blank, and asks for the same symbols again: the answer is always eight positions
# back, whatever is written there.
#
# **Predict.** Rank the four: learned positions, sinusoids, rotary positions, and no positions at all.

# %%
COPY = "preset=tasks data=copy model.block_size=16 data.symbols=4 model.n_layer=2 "
STEPS = (
    "trainer.max_steps=60 trainer.val_check_interval=60 optim.warmup_steps=20 "
    "optim.lr=5e-3 seed=0"
)
runs = train(
    "positions", f"{COPY} {STEPS} attn=sdpa model.positions=learned,sinusoidal,none"
)
rotary = train("positions", f"{COPY} {STEPS} attn=rotary model.positions=none")

# %% tags=["remove-input"]
right = dict(zip(runs["model.positions"], runs["val_accuracy"], strict=True))
right["rotary"] = rotary["val_accuracy"].item()
assert right["none"] < min(right["learned"], right["rotary"]) - 0.1

table(
    ["positions", "right answers after 60 steps"],
    [[name, f"{100 * share:.0f} %"] for name, share in right.items()],
)

# %% [markdown]
# **Explain.** One seed, one rate and 60 steps are no verdict (chapter 9), but the order of the ends is safe: without
# positions, the model must count by the mask. The order of the others is not: with 150 steps, a rate of 1e-2 and a
# warmup of 50 steps, sinusoids gave 99 % and rotary positions 85 %. On a text, where the last few characters matter most, the gap is
# small after 300 steps and grows: see the claim [needs_positions](../../experiments/needs_positions/README.md).
#
# ## Longer texts
#
# Learned embeddings end with the longest training text, and attnlab refuses to read on. The others go on: what happens there
# was [measured](../tasks.md#longer-than-trained). On a text, rotary positions lose most beyond twice the length, and ALiBi
# nothing; on a task that needs distances, both lose. Sinusoids lose there, too: see
# [longer_texts](../../experiments/longer_texts/README.md).
# All layers need not have the same: models alternate between layers with rotary positions and without any, and
# [variants.md](../variants.md#positions) has the settings.
#
# ## Summary
#
# - One layer of attention without positions sees a set. A causal mask makes depth count: from the second layer on, order can be read.
# - Sinusoids are clocks: their products depend on the distance, and k positions on is one linear map.
# - Rotary positions turn queries and keys like these clocks, so that a score depends on contents and distance.
# - ALiBi gives each head a range. It knows no direction and no exact distance, and needs no training length.
#
# ## Exercises
#
# The notebook [exercises 5](../exercises/README.md) grades three functions: `sinusoid_table`, `rotate_pairs`, and
# `alibi_bias`.
#
# **1.** Values are not rotated. What would go wrong if they were?

# %% tags=["hide-cell"]
# The average would mix values that are turned by their absolute positions: the same text, some positions
# later, would give another output, turned as a whole.
turned_values = rotate(torch.randn(1, 1, C).expand(1, 4, C))
assert not torch.allclose(turned_values[0, 0], turned_values[0, 3])

# %% [markdown]
# **2.** Scores over sqrt(C) instead of sqrt(D) are a mistake of several public repositories. With 4 heads, how much smaller are the scores?

# %% tags=["hide-cell"]
# By sqrt(C / D) = sqrt(H) = 2: the pattern is flatter. `attn=model_scale` trains it; with one head it is no mistake.
mistaken, correct = (
    SelfAttention(AttentionConfig(C, H, T), scale=scale)
    for scale in ("1/sqrt(C)", None)
)
assert abs(correct.scale / mistaken.scale - H**0.5) < 1e-12

# %% [markdown]
# **3.** A model was trained with rotary positions of base 10,000 at 64 positions. Which of its clocks have made less than one turn there?

# %% tags=["hide-cell"]
# Those with 64 ω < 2 π. Beyond the training length they reach angles that the model has never seen.
frequencies = 10_000.0 ** (-torch.arange(0, 16, 2) / 16)  # a head of 16
unseen = int((64 * frequencies < 2 * torch.pi).sum())
assert unseen == 5
unseen, len(frequencies)

# %% [markdown]
# ## References
#
# - Vaswani et al. (2017), [Attention is all you need](https://arxiv.org/abs/1706.03762), section 3.5.
# - Su et al. (2021), [RoFormer](https://arxiv.org/abs/2104.09864).
# - Press et al. (2022), [Train short, test long](https://arxiv.org/abs/2108.12409).
# - Raffel et al. (2020), [Exploring the limits of transfer learning](https://arxiv.org/abs/1910.10683), section 2.1.
# - Haviv et al. (2022), [Transformer language models without positional encodings still learn positional
#   information](https://arxiv.org/abs/2203.16634).
