# %% [markdown]
# # 2. Why the scale
#
# Scores are divided by √D, where D is the width of a head. This chapter measures what happens
# to the weights, their entropy, the gradient, and training without this division. The effect on
# training depends on how large queries and keys are at the start, as the map at the end shows.
#
# **You will learn** to
#
# - derive the standard deviation of a dot product from the width of a head;
# - measure saturation: the largest weight, the entropy, and the gradient through the softmax;
# - predict from the initialization whether the scale matters.
#
# **Prerequisites:** chapter 1, variance, and the chain rule.

# %%
import math
import subprocess
import sys
from pathlib import Path

import torch
from IPython.display import HTML, Markdown

from attnlab import read_runs
from attnlab.attention import attention
from attnlab.installation import lab_path
from attnlab.plotting.drawing import COLORS, label_lines, panels, styled, svg
from attnlab.probes import measures
from attnlab.probes.measures import random_energy

stream = torch.Generator().manual_seed(0)


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return Markdown("\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines))


# %% [markdown]
# ## Dot products grow with the width
#
# The dot product of two vectors with D independent coordinates of mean 0 and variance 1 is a sum of
# D terms of variance 1, so its standard deviation is √D.

# %%
WIDTHS = (8, 64, 512)
spread = {}
for D in WIDTHS:
    q, k = torch.randn(2, 50_000, D, generator=stream)
    spread[D] = float((q * k).sum(-1).std())
    assert abs(spread[D] / math.sqrt(D) - 1) < 0.02

table(["D", "√D", "measured"], [[D, f"{math.sqrt(D):.2f}", f"{s:.2f}"] for D, s in spread.items()])

# %% [markdown]
# ## The effect on the softmax
#
# The table shows, for 256 queries and keys of unit variance, the largest of the 256 weights, the
# entropy of the weights, and the effective number of keys, exp(entropy).

# %%
N = 256
everything = torch.ones(N, N, dtype=torch.bool)
largest, rows = {}, []
for D in WIDTHS:
    q, k, v = torch.randn(3, 1, 8, N, D, generator=stream, dtype=torch.float64)
    for name, scale in (("1/√D", None), ("none", 1.0)):
        _, pattern = attention(q, k, v, scale=scale)
        largest[D, name] = float(measures.largest_weight(pattern, everything).mean())
        entropy = float(measures.entropy_nats(pattern, everything).mean())
        in_effect = float(measures.effective_keys(pattern, everything).mean())
        rows.append([D, name, f"{largest[D, name]:.4f}", f"{entropy:.2f}", f"{in_effect:.1f}"])

assert all(largest[D, "1/√D"] < 0.06 for D in WIDTHS)
assert largest[8, "none"] < largest[64, "none"] < largest[512, "none"]
assert largest[512, "none"] > 0.85

table(["D", "scale", "largest weight", "entropy, nats", "effective keys"], rows)

# %% tags=["say"]
Markdown(
    f"With the scale, the width makes no difference. Without it, one key of {N} has "
    f"{largest[512, 'none']:.0%} of the weight at D = 512 on average: attention selects a single "
    f"random key before anything is learned. Uniform weights would be {1 / N:.4f} each, with an "
    f"entropy of ln {N} = {math.log(N):.2f} nats."
)

# %% [markdown]
# ## A theory
#
# In physics, a softmax over independent Gaussian scores of standard deviation s is the random energy
# model (Derrida 1981). Below `s = √(2 ln n)`, the weight is spread over many keys; above it, a few
# keys have almost all of it. `random_energy` computes the expected entropy and the trace of the
# softmax's Jacobian for any s and n.
#
# The trace measures how much gradient can pass through the softmax: the derivative of the weights p with
# respect to the scores is `diag(p) − p pᵀ`, and its trace is `1 − Σ p²`. We check this formula:

# %%
scores = torch.randn(N, generator=stream, dtype=torch.float64)
p = scores.softmax(-1)
jacobian = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), scores)
by_formula = torch.diag(p) - torch.outer(p, p)

assert torch.allclose(jacobian, by_formula, atol=1e-15)
assert math.isclose(float(jacobian.trace()), float(1 - p.square().sum()))

# %% [markdown]
# The claim `unscaled` measures both for D = 1 to 1,024, for queries and keys that are
# projected from independent inputs. We call its function here:

# %%
sys.path.insert(0, str(lab_path("experiments").parent))
from experiments.unscaled.theory import KEYS, SIZES, at_initialization  # noqa: E402

found = at_initialization(seed=0)
critical = 2 * math.log(KEYS)  # the D at which √D is √(2 ln n)

# %% tags=["drawing"]
with styled():
    figure, (left, right) = panels(2)
    for color, name in zip(COLORS, ("scaled", "unscaled"), strict=False):
        left.plot(SIZES, found["entropy"][name], "o", color=color, label=name)
        left.plot(SIZES, found["theory"][name], "-", color=color, lw=1.2)
        right.plot(SIZES, found["trace"][name], "o-", color=color, label=name)
    for place in (left, right):
        place.axvline(critical, color="grey", ls="--", lw=1.2)
        place.set_xscale("log", base=2)
        place.set(xlabel="width D, channels")
    left.set(ylabel="nats", title="entropy; lines: theory", ylim=(0, None))
    right.set(ylabel="trace", title="trace of the Jacobian, 1 − Σ p²", ylim=(0, 1.05))
    label_lines(left)
    label_lines(right)
    picture = svg(figure, "entropy")
ALT = "Entropy and trace by width. With the scale both are constant; without it both fall, steeply beyond the dashed line"
HTML(f'<div role="img" aria-label="{ALT}">{picture}</div>')

# %%
assert found["entropy error"] < 0.1 and found["trace error"] < 0.05
assert found["trace"]["scaled"][-1] > 0.95
assert found["trace"]["unscaled"][-1] < 0.25

# %% tags=["say"]
Markdown(
    f"Mean difference from the theory: {found['entropy error']:.3f} nats of entropy and "
    f"{found['trace error']:.4f} of the trace. The dashed line is D = 2 ln {KEYS} = "
    f"{critical:.1f}, where √D reaches √(2 ln n). At D = {SIZES[-1]}, the trace without the scale "
    f"is {found['trace']['unscaled'][-1]:.2f}: much smaller, but not zero. It decreases like 1/√D, "
    "because a growing share of rows is saturated while the others still learn."
)

# %% [markdown]
# ## The gradient itself
#
# The next cell computes the gradient with respect to the scores of each row, at D = 512 without the
# scale. It calls a row frozen if a single weight is close to 1.

# %%
q, k, v = torch.randn(3, 1, 8, N, 512, generator=stream, dtype=torch.float64)
at_scores = torch.zeros(1, 8, N, N, dtype=torch.float64, requires_grad=True)  # added to the scores
output, pattern = attention(q, k, v, bias=at_scores, scale=1.0)
above = torch.randn(output.shape, generator=stream, dtype=torch.float64)  # of the output
(gradient,) = torch.autograd.grad((output * above).sum(), at_scores)

norms = gradient.norm(dim=-1)  # (1, 8, N): one a row
frozen = pattern.detach().amax(-1) > 0.99
share = float(measures.saturated_rows(pattern.detach(), everything).mean())
stuck, alive = float(norms[frozen].median()), float(norms[~frozen].median())

assert math.isclose(share, float(frozen.double().mean()), rel_tol=1e-6)
assert share > 0.3 and stuck < alive / 50

# %% tags=["say"]
Markdown(
    f"{share:.0%} of the rows are frozen. The median norm of their gradient is {stuck:.2g}. That of "
    f"the other rows is {alive:.2g}, {alive / stuck:,.0f} times as large. So the gradient does not "
    "shrink evenly: many rows get almost none, and the others learn as before."
)

# %% [markdown]
# ## The map: does training break?
#
# Textbooks often say that training breaks without the scale. The derivation above assumes queries and
# keys of unit variance. GPT-2 starts with weights of standard deviation 0.02, so its queries and keys
# are smaller. We train a small model with one head twelve times: with and without the scale, with three
# standard deviations σ of the query and key weights, and with two learning rates.
#
# First, a prediction. With weights of standard deviation σ and C input channels of unit variance,
# unscaled scores have a standard deviation of √D σ² C, which we compare with √(2 ln n).

# %%
SIGMAS, RATES = ("0.02", "0.125", "0.25"), ("1e-3", "1e-2")
C = D = 64
keys = 64
predicted = {s: math.sqrt(D) * float(s) ** 2 * C for s in SIGMAS}
line = math.sqrt(2 * math.log(keys))

table(
    ["σ", "standard deviation of unscaled scores", f"√(2 ln {keys})"],
    [[s, f"{predicted[s]:.2f}", f"{line:.2f}"] for s in SIGMAS],
)

# %%
command = f"""train.py -m name=map attn=sdpa,unscaled preset=micro data=plays data.length=60000
    model.n_head=1 model.qk_std={",".join(SIGMAS)} optim.lr={",".join(RATES)} optim.min_lr=1e-4
    trainer.max_steps=100 trainer.val_check_interval=100 probes=none logger=none"""
script, *overrides = command.split()
done = subprocess.run(
    [sys.executable, lab_path(script), *overrides], capture_output=True, text=True
)
assert done.returncode == 0, done.stderr
loss = {
    (run.config["model.qk_std"], run.config["optim.lr"], run.values["attn"]): run.metrics[
        "val_loss"
    ]
    for run in read_runs(Path("outputs/map"))
}
penalty = {
    (s, r): loss[float(s), float(r), "unscaled"] - loss[float(s), float(r), "sdpa"]
    for s in SIGMAS
    for r in RATES
}
assert len(loss) == 12 and all(math.isfinite(x) for x in loss.values())

# %% tags=["drawing"]
with styled():
    figure, (place,) = panels(1, width=7.0, height=3.4)
    grid = [[penalty[s, r] for s in SIGMAS] for r in RATES]
    reach = max(abs(x) for x in penalty.values())
    colors = place.imshow(grid, cmap="RdBu_r", vmin=-reach, vmax=reach, aspect="auto")
    for i, r in enumerate(RATES):
        for j, s in enumerate(SIGMAS):
            ink = "white" if abs(penalty[s, r]) > 0.6 * reach else "black"
            place.text(j, i, f"{penalty[s, r]:+.2f}", ha="center", va="center", color=ink)
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
    picture = svg(figure, "map")
ALT = "A table of six cells: leaving out the scale costs more to the right of the dashed line, where scores are large"
HTML(f'<div role="img" aria-label="{ALT}">{picture}</div>')

# %%
left_of_line = [penalty[s, r] for s in SIGMAS for r in RATES if predicted[s] < line]
right_of_line = [penalty[s, r] for s in SIGMAS for r in RATES if predicted[s] > line]
mean_left, mean_right = (sum(x) / len(x) for x in (left_of_line, right_of_line))
assert mean_right > mean_left and mean_right > 0

# %% tags=["say"]
Markdown(
    "To the left of the dashed line, scores start below √(2 ln n); to the right, above it. "
    f"Leaving out the scale changes the loss by {mean_left:+.3f} nats on average on the left and by "
    f"{mean_right:+.3f} on the right. These are short runs with a single seed, so look at the "
    "trend, not at single cells. `experiments/unscaled/README.md` has the claim with paired seeds "
    "on TinyShakespeare."
)

# %% [markdown]
# So the sentence "training breaks without the scale" needs a precondition: scores that vary widely
# at the start. Even then, training does not fail: the loss decreases more slowly.
#
# ## Summary
#
# - Dot products of independent vectors of unit variance have a standard deviation of √D.
# - Scores that vary by more than √(2 ln n) saturate the softmax: one key of n gets almost all weight.
# - A saturated row gets almost no gradient. The other rows learn as before.
# - The effect on training depends on the size of queries and keys, not only on the formula.
#
# ## Exercises
#
# **1.** Which scale would keep the scores near 1 if queries and keys were *equal* vectors, not
# independent? (During training, they become more similar.)

# %% tags=["solution"]
# q · q is a sum of D terms of mean 1, so it grows like D, not like √D; see attn=inverse_scale.
lengths = {
    D: float(torch.randn(10_000, D, generator=stream).square().sum(-1).mean()) for D in WIDTHS
}
assert all(abs(x / D - 1) < 0.02 for D, x in lengths.items())
lengths

# %% [markdown]
# **2.** The theory works for any number of keys. With 256 keys and a standard deviation of 1, compute
# the entropy as a share of its maximum. Which standard deviation gives the same share with
# 100,000 keys?


# %% tags=["solution"]
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
# Which one?

# %% tags=["solution"]
# Weights that are D^(1/4) times larger: the factor enters twice, through q and through k.
q, k, v = torch.randn(3, 16, 64, generator=stream, dtype=torch.float64)
factor = 64**0.25
assert torch.allclose(attention(q, k, v, scale=1.0)[1], attention(factor * q, factor * k, v)[1])

# %% [markdown]
# **4.** Does training break with GPT-2's initialization? Predict it from the standard deviation of
# the scores, then try.

# %% [markdown] tags=["solution"]
# The standard deviation is far below the line, so training should not break. Leaving out the scale
# may even help at first:
#
#     python train.py -m attn=sdpa,unscaled model.init=gpt2,unit model.n_head=1 data=plays seed=0,1,2 name=init
#     attnlab runs outputs/init

# %% [markdown]
# ## References
#
# - Vaswani et al. (2017), [Attention is all you need](https://arxiv.org/abs/1706.03762), section 3.2.1
#   and footnote 4.
# - Derrida (1981), [Random-energy model](https://doi.org/10.1103/PhysRevB.24.2613).
# - Yang et al. (2022), [Tensor programs V](https://arxiv.org/abs/2203.03466), which scales by 1/D.
# - Henry et al. (2020), [Query-key normalization for transformers](https://arxiv.org/abs/2010.04245).
