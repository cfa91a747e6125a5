# %% [markdown]
# # 2. Why the scale
#
# **Why is every score divided by √D?** A model reads this line of Shakespeare, character by character:
#
# > Good morrow, Kate; for that's your name, I hear.
#
# Before training, its queries and keys are random. How should the last character spread its
# attention over the others? This chapter looks at the numbers first and then explains them.
#
# **You will learn** to
#
# - derive the standard deviation of a dot product from the width D of a head;
# - measure saturation: the largest weight, the entropy, and the gradient through the softmax;
# - predict from the initialization whether the scale matters.
#
# **Prerequisites:** chapter 1, variance, and the chain rule.

# %% tags=["hide-input"]
import math
import sys

import torch

from attnlab.attention import attention
from attnlab.installation import lab_path
from attnlab.plotting.drawing import COLORS, styled
from attnlab.probes import measures

sys.path += [str(lab_path("docs")), str(lab_path("experiments").parent)]
from chapters.shown import panels, paragraph, picture, table, train
from experiments.unscaled.random_energy import random_energy

stream = torch.Generator().manual_seed(0)

# %% [markdown]
# ## Look at the dot products
#
# **Predict.** Draw queries and keys whose entries are independent, with mean 0 and variance 1. A dot
# product adds D products. How much wider is its distribution for D = 512 than for D = 8?

# %%
WIDTHS = (8, 64, 512)
dots = {}
for D in WIDTHS:
    q, k = torch.randn(2, 50_000, D, generator=stream)
    dots[D] = (q * k).sum(-1)

# %% tags=["hide-input"]
with styled():
    figure, places = panels(3, width=4.0, height=3.0, share=True)
    for place, D in zip(places, WIDTHS, strict=True):
        place.hist(
            dots[D].tolist(), bins=60, range=(-70, 70), density=True, color=COLORS[0]
        )
        place.set(title=f"D = {D}", xlabel="q · k")
    places[0].set_ylabel("density")
ALT = "Histograms of dot products: narrow for D = 8, wider for D = 64, very wide for D = 512"
picture(figure, "histograms", ALT)

# %% tags=["remove-input"]
spread = {D: float(x.std()) for D, x in dots.items()}
assert all(abs(spread[D] / math.sqrt(D) - 1) < 0.02 for D in WIDTHS)

paragraph(
    "**Explain.** The standard deviations are "
    + ", ".join(f"{spread[D]:.1f} for D = {D}" for D in WIDTHS)
    + ": 64 times as many terms make the distribution 8 times as wide."
)

# %% [markdown]
# ## Look at the softmax
#
# **Predict.** A query reads 12 keys. How does the largest of its 12 weights change with D? And if each score is
# divided by √D? The bars are the 12 weights, sorted, and averaged over 1,000 queries.

# %%
bars = {}
for D in WIDTHS:
    q = torch.randn(1000, 1, D, generator=stream)
    k = torch.randn(1000, D, 12, generator=stream)
    scores = (q @ k)[:, 0]  # (1000, 12)
    for name, scale in (("no scale", 1.0), ("1/√D", D**-0.5)):
        weights = (scale * scores).softmax(-1)
        bars[name, D] = weights.sort(descending=True).values.mean(0)

# %% tags=["hide-input"]
with styled():
    figure, places = panels(6, width=4.0, height=2.3, columns=3, share=True)
    for n, place in enumerate(places):
        name = ("no scale", "1/√D")[n // 3]
        D = WIDTHS[n % 3]
        place.bar(range(1, 13), bars[name, D].tolist(), color=COLORS[1 - n // 3])
        place.set(title=f"{name}, D = {D}", ylim=(0, 1), xticks=(1, 6, 12))
    for place in places[3:]:
        place.set_xlabel("key, by weight")
    for place in places[::3]:
        place.set_ylabel("weight")
ALT = "Bars of 12 weights. Without the scale one bar has nearly all weight at D = 512; with it, the bars look alike for all D"
picture(figure, "bars", ALT)

# %% tags=["remove-input"]
top = {key: float(weights[0]) for key, weights in bars.items()}
assert top["no scale", 8] < top["no scale", 64] < top["no scale", 512]
assert top["no scale", 512] > 0.9 and max(top["1/√D", D] for D in WIDTHS) < 0.35

paragraph(
    "**Explain.** Without the scale, the largest weight is "
    + ", ".join(f"{top['no scale', D]:.2f} (D = {D})" for D in WIDTHS)
    + ". With it: "
    + ", ".join(f"{top['1/√D', D]:.2f}" for D in WIDTHS)
    + ". The scores are the same up to a factor, but a softmax turns differences into "
    "ratios: a score that is larger by 5 gets 148 times the weight."
)

# %% [markdown]
# ## Why √D
#
# The products $q_i k_i$ are independent, with mean 0 and variance 1. Variances of independent terms add:
#
# $$
# \operatorname{Var}(q \cdot k) = \sum_{i=1}^{D} \operatorname{Var}(q_i k_i) = D,
# \qquad \operatorname{Std}(q \cdot k) = \sqrt{D}.
# $$
#
# Dividing by $\sqrt{D}$ brings the standard deviation back to 1, for every width.

# %% tags=["remove-input"]
table(
    ["D", "√D", "measured"],
    [[D, f"{math.sqrt(D):.2f}", f"{s:.2f}"] for D, s in spread.items()],
)

# %% [markdown]
# ## Measure the saturation
#
# **Predict.** With 256 keys, even weights would be 1/256 each. How many keys does a query read
# in effect, with and without the scale?
#
# The effective number of keys is $e^{\text{entropy}}$, where the entropy of the weights is $-\sum_j p_j \ln\, p_j$.

# %%
N = 256
all_keys = torch.ones(N, N, dtype=torch.bool)  # no mask
seen = {}
for D in WIDTHS:
    q, k, v = torch.randn(3, 1, 8, N, D, generator=stream, dtype=torch.float64)
    for name, scale in (("1/√D", None), ("none", 1.0)):
        _, pattern = attention(q, k, v, scale=scale)
        seen[D, name] = {
            "largest weight": float(
                measures.largest_weight(pattern, all_keys).mean()
            ),
            "entropy": float(measures.entropy_nats(pattern, all_keys).mean()),
            "keys": float(measures.effective_keys(pattern, all_keys).mean()),
        }

# %% tags=["remove-input"]
table(
    ["D", "scale", "largest weight", "entropy, nats", "effective keys"],
    [
        [
            *key,
            f"{x['largest weight']:.4f}",
            f"{x['entropy']:.2f}",
            f"{x['keys']:.1f}",
        ]
        for key, x in seen.items()
    ],
)

# %% tags=["remove-input"]
largest = {key: x["largest weight"] for key, x in seen.items()}
assert all(largest[D, "1/√D"] < 0.06 for D in WIDTHS)
assert largest[8, "none"] < largest[64, "none"] < largest[512, "none"]
assert largest[512, "none"] > 0.85

paragraph(
    f"**Explain.** With the scale, the width makes no difference. Without it, one key of {N} has "
    f"{largest[512, 'none']:.0%} of the weight at D = 512: the head selects one random "
    "key before it has learned anything."
)

# %% [markdown]
# ## Predict it with a theory
#
# In physics, a softmax over $n$ independent Gaussian scores of standard deviation $s$ is the random energy
# model (Derrida 1981). Below
#
# $$s = \sqrt{2 \ln\, n}$$
#
# the weight is spread over many keys. Above it, a few keys have almost all of it. The theory also
# predicts how much gradient passes the softmax. The derivative of the weights $p$ with respect to the scores
# is $\operatorname{diag}(p) - p p^\top$; its trace is $1 - \sum_j p_j^2$, which is 0 for one-hot weights.
#
# **Predict.** Take $n = 256$ keys. At which width D does a head without the scale start to saturate?

# %% tags=["hide-input"]
scores = torch.randn(N, generator=stream, dtype=torch.float64)
p = scores.softmax(-1)
jacobian = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), scores)
by_formula = torch.diag(p) - torch.outer(p, p)
assert torch.allclose(jacobian, by_formula, atol=1e-15)
assert math.isclose(float(jacobian.trace()), float(1 - p.square().sum()))

# %% tags=["hide-input"]
SIZES = [2**k for k in range(11)]
critical = 2 * math.log(N)  # the D at which √D is √(2 ln n)
NAMES = ("scaled", "unscaled")
found = {
    what: {name: [] for name in NAMES} for what in ("entropy", "trace", "theory")
}
errors = {"entropy": [], "trace": []}
for D in SIZES:
    q = torch.randn(10, 100, D, generator=stream, dtype=torch.float64)
    k = torch.randn(10, D, N, generator=stream, dtype=torch.float64)
    lengths = q.norm(dim=-1).flatten().sort().values.view(10, 100).mean(-1)
    for name, scale in (("scaled", D**-0.5), ("unscaled", 1.0)):
        p = (scale * q @ k).softmax(-1)
        entropy = float(-torch.special.xlogy(p, p).sum(-1).mean())
        trace = float(1 - p.square().sum(-1).mean())
        # Given a query, the scores are Gaussian with standard deviation scale · |q|.
        theory = [
            random_energy(scale * float(s), torch.tensor([N])) for s in lengths
        ]
        entropy_by, trace_by = (
            float(sum(x) / len(x)) for x in zip(*theory, strict=True)
        )
        found["entropy"][name].append(entropy)
        found["trace"][name].append(trace)
        found["theory"][name].append(entropy_by)
        errors["entropy"].append(abs(entropy - entropy_by))
        errors["trace"].append(abs(trace - trace_by))
missed = {what: sum(values) / len(values) for what, values in errors.items()}

with styled():
    figure, (left, right) = panels(2)
    for color, name in zip(COLORS, NAMES, strict=False):
        left.plot(SIZES, found["entropy"][name], "o", color=color, label=name)
        left.plot(SIZES, found["theory"][name], "-", color=color, lw=1.2)
        right.plot(SIZES, found["trace"][name], "o-", color=color, label=name)
    for place in (left, right):
        place.axvline(critical, color="grey", ls="--", lw=1.2)
        place.set_xscale("log", base=2)
        place.set(xlabel="width D, channels")
    left.set(ylabel="nats", title="entropy; lines: theory", ylim=(0, None))
    right.set(
        ylabel="trace", title="trace of the Jacobian, 1 − Σ p²", ylim=(0, 1.05)
    )
    left.legend()
    right.legend()
ALT = "Entropy and trace by width. With the scale both are constant; without it both fall, steeply beyond the dashed line"
picture(figure, "entropy", ALT)

# %% tags=["remove-input"]
assert missed["entropy"] < 0.1 and missed["trace"] < 0.05
assert found["trace"]["scaled"][-1] > 0.95
assert found["trace"]["unscaled"][-1] < 0.25

paragraph(
    f"**Explain.** The dashed line is D = 2 ln {N} = {critical:.1f}. The theory misses the "
    f"measured entropy by {missed['entropy']:.3f} nats on average, and the trace by "
    f"{missed['trace']:.4f}. At D = {SIZES[-1]}, the trace without the scale is "
    f"{found['trace']['unscaled'][-1]:.2f}: much smaller, but not zero. It falls like 1/√D, "
    "because a growing share of rows is saturated while the others still learn."
)

# %% [markdown]
# ## Follow the gradient
#
# **Predict.** Call a row frozen if one weight is above 99 %. At D = 512 without the scale, how much
# gradient does a frozen row get, compared with the others?

# %%
q, k, v = torch.randn(3, 1, 8, N, 512, generator=stream, dtype=torch.float64)
bias = torch.zeros(1, 8, N, N, dtype=torch.float64, requires_grad=True)
output, pattern = attention(
    q, k, v, bias=bias, scale=1.0
)  # bias: added to the scores
above = torch.randn(output.shape, generator=stream, dtype=torch.float64)
(gradient,) = torch.autograd.grad((output * above).sum(), bias)

norms = gradient.norm(dim=-1)  # (1, 8, N): one per row
frozen = pattern.detach().amax(-1) > 0.99
stuck = float(norms[frozen].median())
alive = float(norms[~frozen].median())

# %% tags=["remove-input"]
share = float(measures.saturated_rows(pattern.detach(), all_keys).mean())
assert math.isclose(share, float(frozen.double().mean()), rel_tol=1e-6)
assert share > 0.3 and stuck < alive / 50

paragraph(
    f"**Explain.** {share:.0%} of the rows are frozen. The median norm of their gradient is "
    f"{stuck:.2g}. That of the other rows is {alive:.2g}, {alive / stuck:,.0f} times as large. The "
    "gradient does not shrink evenly: many rows get almost none, and the others learn as before."
)

# %% [markdown]
# ## Does training break?
#
# Textbooks often say that it does. The derivation above assumes queries and keys of unit variance. GPT-2 starts
# with weights of standard deviation σ = 0.02, so its queries and keys are smaller. With C input channels
# of unit variance, unscaled scores start with a standard deviation of $\sqrt{D} \, \sigma^2 C$.
#
# [The lab in a browser](../lab.html#scale) trains one head of width 128 with and without the scale, beside each other.
#
# **Predict.** The table compares this number with $\sqrt{2 \ln\, n}$ for two values of σ. For which of them does
# the loss suffer without the scale?

# %% tags=["hide-input"]
SIGMAS = ("0.02", "0.25")
RATES = ("1e-3", "1e-2")
C = D = 64
keys = 64
predicted = {s: math.sqrt(D) * float(s) ** 2 * C for s in SIGMAS}
line = math.sqrt(2 * math.log(keys))

table(
    ["σ", "standard deviation of unscaled scores", f"√(2 ln {keys})"],
    [[s, f"{predicted[s]:.2f}", f"{line:.2f}"] for s in SIGMAS],
)

# %% [markdown]
# We train a small model with one head of width 64 eight times, for 100 steps each: with and without the scale,
# with two values of σ, and with two learning rates.

# %%
runs = train(
    "map",
    "attn=sdpa,unscaled preset=micro data=plays data.length=60000 "
    "data.batch_size=6 model.n_head=1 model.qk_std=0.02,0.25 optim.lr=1e-3,1e-2 "
    "optim.min_lr=1e-4 trainer.max_steps=100 trainer.val_check_interval=100",
)

# %% tags=["hide-input"]
loss = runs.set_index(["model.qk_std", "optim.lr", "attn"]).loss
penalty = {
    (s, r): loss[float(s), float(r), "unscaled"] - loss[float(s), float(r), "sdpa"]
    for s in SIGMAS
    for r in RATES
}
assert len(loss) == 8 and all(math.isfinite(x) for x in loss)

with styled():
    figure, (place,) = panels(1, width=7.0, height=3.4)
    grid = [[penalty[s, r] for s in SIGMAS] for r in RATES]
    reach = max(abs(x) for x in penalty.values())
    colors = place.imshow(
        grid, cmap="RdBu_r", vmin=-reach, vmax=reach, aspect="auto"
    )
    for i, r in enumerate(RATES):
        for j, s in enumerate(SIGMAS):
            ink = "white" if abs(penalty[s, r]) > 0.6 * reach else "black"
            place.text(
                j, i, f"{penalty[s, r]:+.3f}", ha="center", va="center", color=ink
            )
    below = sum(predicted[s] < line for s in SIGMAS)
    place.axvline(below - 0.5, color="black", ls="--")
    place.set_xticks(range(len(SIGMAS)), SIGMAS)
    place.set_yticks(range(len(RATES)), RATES)
    place.set(
        title="validation loss, unscaled − scaled",
        xlabel="standard deviation of the query and key weights",
        ylabel="learning rate",
    )
    place.grid(False)
    figure.colorbar(colors, label="nats")
ALT = "A table of four cells: leaving out the scale costs more to the right of the dashed line, where scores are large"
picture(figure, "map", ALT)

# %% tags=["remove-input"]
left_of_line = [penalty[s, r] for s in SIGMAS for r in RATES if predicted[s] < line]
right_of_line = [penalty[s, r] for s in SIGMAS for r in RATES if predicted[s] > line]
mean_left, mean_right = (sum(x) / len(x) for x in (left_of_line, right_of_line))
assert mean_right > mean_left and mean_right > 0

paragraph(
    "**Explain.** To the left of the dashed line, scores start below √(2 ln n); to the right, above "
    f"it. Leaving out the scale changes the loss by {mean_left:+.3f} nats on average on the left and "
    f"by {mean_right:+.3f} on the right. These are short runs with a single seed, so look at the "
    "trend, not at single cells. `experiments/unscaled/README.md` has the claim with paired seeds "
    "on TinyShakespeare."
)

# %% [markdown]
# What do textbooks say? Vaswani et al. (2017, section 3.2.1) "suspect" that large dot products push
# the softmax "into regions where it has extremely small gradients", for components of variance 1. Raschka
# (Build a Large Language Model, section 3.4.1) adds that such gradients "can drastically slow down
# learning or cause training to stagnate". The condition matters: scores must vary widely at the
# start. Even then the loss decreases, because the embeddings and the MLP learn. The attention of a
# wide head starts late: the claim [unscaled](../../experiments/unscaled/README.md) measures how much of it is left
# after 300, 1,200 and 4,800 steps.
#
# ## Summary
#
# - Dot products of independent vectors of unit variance have a standard deviation of $\sqrt{D}$.
# - Scores that vary by more than $\sqrt{2 \ln\, n}$ saturate the softmax: a few of n keys get almost all weight.
# - A saturated row gets almost no gradient. The other rows learn as before.
# - The effect on training depends on the size of queries and keys, not only on the formula.
#
# ## Exercises
#
# **1.** Which scale would keep the scores near 1 if queries and keys were *equal* vectors, not
# independent?

# %% tags=["hide-cell"]
# q · q is a sum of D terms of mean 1, so it grows like D, not like √D; see attn=inverse_scale.
lengths = {
    D: float(torch.randn(10_000, D, generator=stream).square().sum(-1).mean())
    for D in WIDTHS
}
assert all(abs(x / D - 1) < 0.02 for D, x in lengths.items())
lengths

# %% [markdown]
# **2.** The theory works for any number of keys. With 256 keys and a standard deviation of 1, compute
# the entropy as a share of its maximum. Which standard deviation gives the same share with
# 100,000 keys?


# %% tags=["hide-cell"]
# Only a little more: the critical standard deviation grows like √(ln n).
def evenness(std, n):
    entropy, _ = random_energy(std, torch.tensor([n]))
    return float(entropy) / math.log(n)


wanted = evenness(1.0, 256)
spreads = torch.linspace(0.5, 4, 71).tolist()
answer = max(s for s in spreads if evenness(s, 100_000) >= wanted)
assert 1.0 < answer < 2.0
answer

# %% [markdown]
# **3.** Leaving out the scale is equivalent to another initialization of the query and key weights.
# Which one? Can training undo it?

# %% tags=["hide-cell"]
# Weights that are D^(1/4) times larger: the factor enters twice, through q and through k. So training can undo it,
# by smaller weights. It takes steps, because saturated rows get almost no gradient.
q, k, v = torch.randn(3, 16, 64, generator=stream, dtype=torch.float64)
factor = 64**0.25
assert torch.allclose(
    attention(q, k, v, scale=1.0)[1], attention(factor * q, factor * k, v)[1]
)

# %% [markdown]
# **4.** Does training break with GPT-2's initialization? Predict it from the standard deviation of
# the scores, then try.

# %% [markdown]
# <details><summary>A solution</summary>
#
# The standard deviation is far below the line, so training should not break, and it does not: at the
# best rate of each model, one head of 128 keeps more than 60 % of what attention gives, after 300
# steps and after 1,200 (`experiments/unscaled`). Here at one rate:
#
#     python train.py -m attn=none,sdpa,unscaled model.init=gpt2,unit model.n_head=1 data=plays seed=0,1,2 name=init
#     attnlab runs outputs/init
#
# </details>

# %% [markdown]
# ## References
#
# - Vaswani et al. (2017), [Attention is all you need](https://arxiv.org/abs/1706.03762), section 3.2.1
#   and footnote 4.
# - Derrida (1981), [Random-energy model](https://doi.org/10.1103/PhysRevB.24.2613).
# - Yang et al. (2022), [Tensor programs V](https://arxiv.org/abs/2203.03466), whose factor
#   [shrinks with the width like 1/D](https://github.com/microsoft/mup), from 1/√D at D = 64: `attn=mup_scale`.
# - Henry et al. (2020), [Query-key normalization for transformers](https://arxiv.org/abs/2010.04245).
