# %% [markdown]
# # 2. Why the scale
#
# Scores are divided by √D, the root of a head's width. This chapter measures what happens without:
# to the weights, to their entropy, to the gradient, and to training. The last of these depends on
# how large queries and keys are at the start, which the map at the end shows.

# %%
import math
import subprocess
import sys
from pathlib import Path

import torch
from IPython.display import HTML, Markdown

import attnlab
from attnlab.attention import attention
from attnlab.plotting.drawing import COLORS, panels, styled, svg
from attnlab.probes import measures
from attnlab.probes.measures import random_energy
from attnlab.runs import read_runs

LAB = Path(attnlab.__file__).parents[2]  # where train.py and experiments/ are
stream = torch.Generator().manual_seed(0)


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return Markdown("\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines))


# %% [markdown]
# ## Dot products grow with the width
#
# A dot product of two vectors with D independent coordinates of mean 0 and variance 1 is a sum of
# D terms of variance 1 each: its standard deviation is √D.

# %%
WIDTHS = (8, 64, 512)
spread = {}
for D in WIDTHS:
    q, k = torch.randn(2, 50_000, D, generator=stream)
    spread[D] = float((q * k).sum(-1).std())
    assert abs(spread[D] / math.sqrt(D) - 1) < 0.02

table(["D", "√D", "measured"], [[D, f"{math.sqrt(D):.2f}", f"{s:.2f}"] for D, s in spread.items()])

# %% [markdown]
# ## What the softmax makes of it
#
# 256 keys of unit variance, and a query. Here is the largest of the 256 weights, the entropy of
# the weights, and how many keys share the weight in effect, exp(entropy).

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

table(["D", "scale", "largest weight", "entropy, nats", "keys in effect"], rows)

# %% tags=["say"]
Markdown(
    f"With the scale the width makes no difference. Without it, one key of {N} holds "
    f"{largest[512, 'none']:.0%} of the weight at D = 512: the average has become a choice, at "
    f"random, before anything was learned. Even weights would be {1 / N:.4f} each, with an "
    f"entropy of ln {N} = {math.log(N):.2f} nats."
)

# %% [markdown]
# ## A theory of it
#
# A softmax over independent Gaussian scores of standard deviation s is known in physics as the
# random energy model (Derrida 1981). Its weights are spread below `s = √(2 ln n)`, and above it a
# few keys hold them all. `random_energy` gives the expected entropy, and the trace of the
# softmax's Jacobian, for any s and n.
#
# That trace is what gradient has to pass through: the derivative of weights p by scores is
# `diag(p) − p pᵀ`, and its trace is `1 − Σ p²`. To see that it is so:

# %%
scores = torch.randn(N, generator=stream, dtype=torch.float64)
p = scores.softmax(-1)
jacobian = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), scores)
by_formula = torch.diag(p) - torch.outer(p, p)

assert torch.allclose(jacobian, by_formula, atol=1e-15)
assert math.isclose(float(jacobian.trace()), float(1 - p.square().sum()))

# %% [markdown]
# The claim `unscaled` of the lab measures both for D = 1 to 1,024, on queries and keys that are
# projected from independent inputs, and this is its own function:

# %%
sys.path.insert(0, str(LAB))
from experiments.unscaled.theory import KEYS, SIZES, at_initialization  # noqa: E402

found = at_initialization(seed=0, budget="quick")
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
        place.set(xlabel="D")
    left.set(ylabel="nats", title="entropy; lines: theory", ylim=(0, None))
    right.set(title="trace of the Jacobian, 1 − Σ p²", ylim=(0, 1.05))
    left.legend(loc="lower left")
    picture = svg(figure, "entropy")
HTML(picture)

# %%
assert found["entropy error"] < 0.1 and found["trace error"] < 0.05
assert found["trace"]["scaled"][-1] > 0.95
assert found["trace"]["unscaled"][-1] < 0.25

# %% tags=["say"]
Markdown(
    f"Mean distance from the theory: {found['entropy error']:.3f} nats of entropy, "
    f"{found['trace error']:.4f} of the trace. The dashed line is D = 2 ln {KEYS} = "
    f"{critical:.1f}, where √D reaches √(2 ln n). At D = {SIZES[-1]} the trace has fallen to "
    f"{found['trace']['unscaled'][-1]:.2f} without the scale: by a factor, not to nothing. It "
    "falls like 1/√D, as a growing share of rows is frozen while the others still learn."
)

# %% [markdown]
# ## The gradient itself
#
# The gradient that arrives at the scores of one row, through a whole attention at D = 512 without
# the scale. A row is called frozen here where one weight is nearly all.

# %%
q, k, v = torch.randn(3, 1, 8, N, 512, generator=stream, dtype=torch.float64)
at_scores = torch.zeros(1, 8, N, N, dtype=torch.float64, requires_grad=True)  # added to the scores
output, pattern = attention(q, k, v, bias=at_scores, scale=1.0)
above = torch.randn(output.shape, generator=stream, dtype=torch.float64)  # what comes from above
(gradient,) = torch.autograd.grad((output * above).sum(), at_scores)

norms = gradient.norm(dim=-1)  # (1, 8, N): one a row
frozen = pattern.detach().amax(-1) > 0.99
share = float(measures.saturated_rows(pattern.detach(), everything).mean())
stuck, alive = float(norms[frozen].median()), float(norms[~frozen].median())

assert math.isclose(share, float(frozen.double().mean()), rel_tol=1e-6)
assert share > 0.3 and stuck < alive / 50

# %% tags=["say"]
Markdown(
    f"{share:.0%} of the rows are frozen. The median norm of their gradient is {stuck:.2g}, "
    f"that of the others {alive:.2g}, {alive / stuck:,.0f} times as much. So it is not that all "
    "gradients shrink a little: many rows get nothing, and the rest are as alive as ever."
)

# %% [markdown]
# ## The map: does training break?
#
# It is often said that it does. The derivation above assumes queries and keys of unit variance.
# GPT-2 starts with weights of standard deviation 0.02 for which that is not so. Twelve runs of a
# small model with one head, live: with and without the scale, three sizes σ of the query and key
# weights, two learning rates.
#
# Beforehand: weights of standard deviation σ make unscaled scores of spread √D σ² C (C channels
# in, each of unit variance), to be compared with √(2 ln n).

# %%
SIGMAS, RATES = ("0.02", "0.125", "0.25"), ("1e-3", "1e-2")
C = D = 64
keys = 64
predicted = {s: math.sqrt(D) * float(s) ** 2 * C for s in SIGMAS}
line = math.sqrt(2 * math.log(keys))

table(
    ["σ", "spread of unscaled scores", f"√(2 ln {keys})"],
    [[s, f"{predicted[s]:.2f}", f"{line:.2f}"] for s in SIGMAS],
)

# %%
command = f"""train.py -m name=map attn=sdpa,unscaled preset=micro data=plays data.length=60000
    model.n_head=1 model.qk_std={",".join(SIGMAS)} optim.lr={",".join(RATES)} optim.min_lr=1e-4
    trainer.max_steps=100 trainer.val_check_interval=100 probes=none logger=none"""
script, *overrides = command.split()
done = subprocess.run([sys.executable, LAB / script, *overrides], capture_output=True, text=True)
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
    place.set_xticks(range(len(SIGMAS)), [f"σ = {s}" for s in SIGMAS])
    place.set_yticks(range(len(RATES)), [f"rate {r}" for r in RATES])
    place.set(title="validation loss, unscaled − scaled, nats")
    place.grid(False)
    figure.colorbar(colors)
    picture = svg(figure, "map")
HTML(picture)

# %%
left_of_line = [penalty[s, r] for s in SIGMAS for r in RATES if predicted[s] < line]
right_of_line = [penalty[s, r] for s in SIGMAS for r in RATES if predicted[s] > line]
mean_left, mean_right = (sum(x) / len(x) for x in (left_of_line, right_of_line))
assert mean_right > mean_left and mean_right > 0

# %% tags=["say"]
Markdown(
    "Left of the dashed line scores begin below √(2 ln n), right of it above. The mean penalty "
    f"of having no scale is {mean_left:+.3f} nats on the left, {mean_right:+.3f} on the right. "
    "These are single seeds of short runs: look at the shape, not at a cell. What six paired "
    "seeds, a larger model and TinyShakespeare say is in `experiments/unscaled/README.md`."
)

# %% [markdown]
# So the sentence "training breaks without the scale" needs a precondition, scores that are far
# apart at the start, and a word on what breaking means: here, a loss that falls more slowly.
#
# ## Exercises
#
# **1.** Which scale would keep scores at spread 1 if queries and keys were *equal* vectors, all of
# them pointing the same way, rather than independent? (That is where training tends to.)

# %% tags=["solution"]
# q · q is a sum of D terms of mean 1: it grows like D, not like its root. Hence attn=inverse_scale.
lengths = {
    D: float(torch.randn(10_000, D, generator=stream).square().sum(-1).mean()) for D in WIDTHS
}
assert all(abs(x / D - 1) < 0.02 for D, x in lengths.items())
lengths

# %% [markdown]
# **2.** The theory takes any number of keys. How far apart may scores be, in a text of 100,000
# tokens, for the same share of the largest entropy as at spread 1 among 256 keys?


# %% tags=["solution"]
# Little more than there: the critical spread grows like √(ln n) only.
def evenness(std, n):
    entropy, _ = random_energy(std, torch.tensor([n]))
    return float(entropy) / math.log(n)


wanted = evenness(1.0, 256)
spreads = torch.linspace(0.5, 4, 71).tolist()
answer = max(s for s in spreads if evenness(s, 100_000) >= wanted)
assert 1.0 < answer < 2.0
answer

# %% [markdown]
# **3.** Leaving the scale out equals another initialization of the query and key weights. Which?

# %% tags=["solution"]
# D^(1/4) times larger ones: the factor enters twice, once by q and once by k.
q, k, v = torch.randn(3, 16, 64, generator=stream, dtype=torch.float64)
factor = 64**0.25
assert torch.allclose(attention(q, k, v, scale=1.0)[1], attention(factor * q, factor * k, v)[1])

# %% [markdown]
# **4.** Does it break with GPT-2's own initialization? Predict it from the spread, then try.

# %% [markdown] tags=["solution"]
# The spread stays far below the line, so it should not, and it may even help at first:
#
#     python train.py -m attn=sdpa,unscaled model.init=gpt2,unit model.n_head=1 data=plays seed=0,1,2 name=init
#     attnlab runs outputs/init
