# %% [markdown]
# # 0. What attention replaced
#
# **Is it *is* or *are*?**
#
# > The keys to the old cabinet in the hall are on the table.
#
# The verb depends on *keys*, eight words back, and not on *cabinet* or *hall*. A recurrent network must carry
# *keys* through eight steps in a single state. Attention looks back in one. This chapter measures what
# that costs: how far gradients reach, how hard it is to recall a distant token, and how many steps
# must be computed one after the other.
#
# **You will learn** to
#
# - explain what a recurrent state is, and why it is a bottleneck;
# - measure how the gradient of an output depends on the distance of an input;
# - count operations and sequential steps of a recurrent layer and of attention;
# - explain why attention needs masks and positions.
#
# **Prerequisites:** matrix products, the chain rule, and PyTorch's `nn.Module`.

# %% tags=["hide-input"]
import math
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from attnlab.attention import (
    AttentionConfig,
    SelfAttention,
    attention,
    build_mask,
    causal,
)
from attnlab.installation import lab_path
from attnlab.plotting.drawing import COLORS, styled

sys.path.append(str(lab_path("docs")))
from chapters.shown import panels, paragraph, picture, table

stream = torch.Generator().manual_seed(0)
torch.manual_seed(0)


def reach(layer, x):
    """The norm of d(last output) / d(input) by distance: T numbers, beginning with the last."""
    x = x.clone().requires_grad_()
    last = layer(x)[0, -1]
    directions = torch.randn(
        8, C, generator=torch.Generator().manual_seed(1)
    ) / math.sqrt(C)
    squares = torch.zeros(T)
    for direction in directions:
        (gradient,) = torch.autograd.grad(last @ direction, x, retain_graph=True)
        squares += gradient[0].square().sum(-1)
    return squares.sqrt().flip(0)


# %% [markdown]
# ## A state of fixed size
#
# A simple recurrent network (Elman 1990) processes one token after another:
#
# $$h_t = \tanh(W h_{t-1} + U x_t)$$
#
# All information about the past is in $h$, a vector of C numbers, for ten tokens as for a thousand. The
# network is causal without a mask: $h_t$ cannot depend on later tokens.
#
# **Predict.** Does this loop compute the same as PyTorch's `nn.RNN`?

# %%
C, T = 64, 64
recurrent = nn.RNN(C, C, batch_first=True)
x = torch.randn(1, T, C, generator=stream)
W, U = recurrent.weight_hh_l0, recurrent.weight_ih_l0
b = recurrent.bias_hh_l0 + recurrent.bias_ih_l0

h = torch.zeros(1, C)
states = []
with torch.no_grad():
    for t in range(T):
        h = torch.tanh(h @ W.T + x[:, t] @ U.T + b)
        states.append(h)
    difference = (torch.stack(states, 1) - recurrent(x)[0]).abs().max()
float(difference)

# %% tags=["remove-input"]
assert difference < 1e-5
with torch.no_grad():
    changed = x.clone()
    changed[:, -1] += 1.0
    assert torch.equal(
        recurrent(changed)[0][:, :-1], recurrent(x)[0][:, :-1]
    )  # causal

paragraph(
    f"**Explain.** Yes: the states differ by at most {float(difference):.0e}, which is rounding."
)

# %% [markdown]
# ## Path length
#
# From token $i$ to output $t$, the signal of a recurrent network passes $t - i$ times through $W$ and tanh:
#
# $$
# \frac{\partial h_t}{\partial h_i} = \prod_{k=i+1}^{t} \operatorname{diag}(1 - h_k^2) \, W
# $$
#
# A product of many matrices shrinks or grows exponentially (Bengio et al. 1994). Gates make it shrink more
# slowly (GRU, Cho et al. 2014). In attention, every output reads every earlier token in a single step.
#
# **Predict.** We measure the norm of the derivative of the last output with respect to each input, in
# untrained layers (`reach`). How much is left 48 tokens back?

# %%
gated = nn.GRU(C, C, batch_first=True)
attending = SelfAttention(AttentionConfig(C, 1, block_size=T, bias=False))
found = {
    "tanh": reach(lambda x: recurrent(x)[0], x),
    "GRU": reach(lambda x: gated(x)[0], x),
    "attention": reach(attending, x),
}
relative = {name: norms / norms.max() for name, norms in found.items()}

# %% tags=["hide-input"]
far = {
    name: float(norms[-16:].mean()) for name, norms in relative.items()
}  # 48 and more
assert far["tanh"] < 1e-6 and far["GRU"] < 1e-3
assert far["attention"] > 0.01

with styled():
    figure, (place,) = panels(1, width=7.4, height=4.0)
    for color, (name, norms) in zip(COLORS, relative.items(), strict=False):
        place.plot(
            range(T),
            norms.masked_fill(norms < 1e-12, math.nan),
            color=color,
            label=name,
        )
    place.set_yscale("log")
    place.set(
        xlabel="distance of the input, tokens",
        ylabel="gradient, share of the largest",
    )
    place.legend()
ALT = "The gradient falls exponentially with distance in recurrent networks, and not in attention"
picture(figure, "reach", ALT)

# %% tags=["remove-input"]
paragraph(
    f"**Explain.** On inputs 48 or more tokens back, the gradient of the tanh network is {far['tanh']:.0e} of its "
    f"largest value, and that of the GRU is {far['GRU']:.0e}. The gradient of attention is "
    f"{far['attention']:.2f}: it depends on the weight of the token, not on the distance."
)

# %% [markdown]
# ## Recall
#
# Does the distance matter for learning? The task is to read T random symbols and predict the first
# one. The models have the same width and the same training. Both have position embeddings, because
# without them, attention could not know which symbol is the first.
#
# **Predict.** After 250 steps with one seed, which model recalls the first of 4 symbols? Of 64? Chance is 1 in 8.

# %% tags=["hide-input"]
SYMBOLS = 8
WIDTH = 32


class Reader(nn.Module):
    """Embed symbols, mix them, and predict the answer at the last position."""

    def __init__(self, mixer, T):
        super().__init__()
        self.symbol = nn.Embedding(SYMBOLS, WIDTH)
        self.place = nn.Embedding(T, WIDTH)
        self.mixer = mixer
        self.head = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, ids):
        y = self.mixer(self.symbol(ids) + self.place.weight)
        y = y[0] if isinstance(y, tuple) else y
        return self.head(y[:, -1])


def accuracy_after_training(kind, T, steps=250):
    torch.manual_seed(0)
    draws = torch.Generator().manual_seed(1)
    mixers = {
        "GRU": lambda: nn.GRU(WIDTH, WIDTH, batch_first=True),
        "attention": lambda: SelfAttention(
            AttentionConfig(WIDTH, 1, block_size=T, bias=False)
        ),
    }
    model = Reader(mixers[kind](), T)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(steps):
        ids = torch.randint(SYMBOLS, (32, T), generator=draws)
        loss = F.cross_entropy(model(ids), ids[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    ids = torch.randint(SYMBOLS, (512, T), generator=draws)
    with torch.no_grad():
        return float((model(ids).argmax(-1) == ids[:, 0]).float().mean())


# %%
DISTANCES = (4, 16, 64)
right = {
    (kind, T): accuracy_after_training(kind, T)
    for kind in ("GRU", "attention")
    for T in DISTANCES
}

# %% tags=["remove-input"]
table(
    ["tokens", "GRU", "attention"],
    [
        [T, f"{right['GRU', T]:.0%}", f"{right['attention', T]:.0%}"]
        for T in DISTANCES
    ],
)

# %% tags=["remove-input"]
assert right["GRU", 4] > 0.9 and right["GRU", 64] < 0.5
assert min(right["attention", T] for T in DISTANCES) > 0.9

paragraph(
    f"**Explain.** After 250 steps, the GRU recalls the first of 4 symbols ({right['GRU', 4]:.0%}), but not the first of "
    f"64 ({right['GRU', 64]:.0%}; chance is {1 / SYMBOLS:.0%}). Attention recalls it at every distance, "
    "because its gradient reaches the first symbol in one step instead of 63."
)

# %% [markdown]
# ## Operations and steps
#
# A recurrent layer multiplies its state by a (C, C) matrix at each token, and its T steps must be computed
# one after the other. Attention compares all pairs of tokens at once.
#
# **Predict.** Count multiplications and additions of one layer. For which T is attention cheaper than a tanh
# network of C = 512 channels?


# %%
def operations(T, C):
    return {
        "tanh": 2 * T * 2 * C * C,  # W h and U x
        "GRU": 3 * 2 * T * 2 * C * C,  # the same for two gates and the candidate
        "attention, scores and average": 2 * 2 * T * T * C,
        "attention with its projections": 2 * 2 * T * T * C + 2 * T * 4 * C * C,
    }


# %% tags=["remove-input"]
with FlopCounterMode(display=False) as counter:
    q, k, v = torch.randn(3, 1, 1, 32, 512)
    attention(q, k, v)
assert (
    counter.get_total_flops() == operations(32, 512)["attention, scores and average"]
)

rows = [
    [
        name,
        *(f"{operations(T, 512)[name] / 1e6:,.0f}" for T in (32, 512, 8192)),
        steps,
    ]
    for name, steps in zip(operations(1, 1), ("T", "T", "1", "1"), strict=True)
]
table(
    [
        "million operations, C = 512",
        "T = 32",
        "T = 512",
        "T = 8,192",
        "steps in a row",
    ],
    rows,
)

# %% tags=["remove-input"]
few, many = operations(32, 512), operations(8192, 512)
assert (
    few["attention, scores and average"]
    < few["tanh"]
    < few["attention with its projections"]
)
assert many["attention with its projections"] > many["GRU"]

paragraph(
    "**Explain.** The common statement that attention is cheaper than recurrence for T < C counts only the scores "
    f"and the average: at T = 32 they take {few['attention, scores and average'] / 1e6:.0f} million operations and "
    f"the tanh network {few['tanh'] / 1e6:.0f}, but with its projections attention takes "
    f"{few['attention with its projections'] / 1e6:.0f}, and more than the tanh network at every T, because the "
    "projections alone take 8 T C², and the tanh network 4 T C². Attention is fast because of the last column: "
    "no step depends on another, so a GPU computes all positions in parallel."
)

# %% [markdown]
# ## What attention gives up
#
# A recurrent network depends on the order of its inputs and cannot see the future. Attention without a mask
# has neither property: it is a function of a *set*. A decoder therefore needs a causal mask (chapter 3) and,
# usually, positions.
#
# **Predict.** We shuffle the 64 tokens. Which outputs change?

# %%
order = torch.randperm(T, generator=stream)
shuffled = x[:, order]
q = torch.randn(1, 1, C, generator=stream)
with torch.no_grad():
    moved = {
        "recurrent": (recurrent(shuffled)[0] - recurrent(x)[0])[:, -1].abs().max(),
        "attention": (attention(q, shuffled, shuffled)[0] - attention(q, x, x)[0])
        .abs()
        .max(),
    }

# %% tags=["remove-input"]
assert moved["recurrent"] > 1e-2 and moved["attention"] < 1e-5
with torch.no_grad():
    future = torch.cat([x[:, :1], x[:, 1:] + 1], 1)
    assert torch.allclose(
        attending(future)[:, 0], attending(x)[:, 0]
    )  # by its causal mask
assert bool((build_mask(causal, 4) == torch.ones(4, 4).tril().bool()).all())

paragraph(
    "**Explain.** The last state of the recurrent network moves by up to "
    f"{moved['recurrent']:.2f}. The output of attention moves by {moved['attention']:.0e}, which is "
    "rounding: it is the same average of the same values."
)

# %% [markdown]
# Attention did not replace recurrence at once. Bahdanau et al. (2015) added it to a recurrent
# encoder and decoder, because a single state could not hold a long sentence: at each word, the decoder
# reads an average of the encoder's states, weighted by attention. `experiments/bahdanau` trains such a
# translator. Vaswani et al. (2017) kept the attention and removed the recurrence.
#
# ## Summary
#
# - A recurrent network stores the past in one vector, and its gradient decays exponentially with distance.
# - Attention connects any two positions in one step, so the gradient does not depend on the distance.
# - It takes more operations for long texts, T² instead of T, but they run in parallel.
# - Attention alone ignores order and reads the future, so it needs positions and masks.
#
# ## Exercises
#
# **1.** A convolution of width 3 connects neighbors. How many layers does it take until the last of 64
# positions depends on the first?

# %% tags=["hide-cell"]
# Each layer reaches one position further to each side: 63 layers. Dilation makes it logarithmic.
layers = 0
reached = 0
while reached < 63:
    layers, reached = layers + 1, reached + 1
dilated = math.ceil(math.log2(64))
assert (layers, dilated) == (63, 6)
{"plain": layers, "with dilations 1, 2, 4, ...": dilated}

# %% [markdown]
# **2.** By which factor does the gradient of the tanh network shrink per token? Compare it with the largest
# singular value of W and with its spectral radius.

# %% tags=["hide-cell"]
# Over many steps, the spectral radius determines the factor, and tanh makes it smaller. PyTorch draws W from a uniform
# distribution of standard deviation 1/√(3C), so the radius is near 1/√3.
per_token = float((found["tanh"][30] / found["tanh"][10]) ** (1 / 20))
W = recurrent.weight_hh_l0.detach()
radius = float(torch.linalg.eigvals(W).abs().max())
norm = float(torch.linalg.matrix_norm(W, 2))
assert per_token < radius < norm and abs(radius - 1 / math.sqrt(3)) < 0.12
{"per token": per_token, "spectral radius": radius, "largest singular value": norm}

# %% [markdown]
# **3.** How many numbers must each kind of layer store to generate the next token after T tokens?

# %% tags=["hide-cell"]
# The state does not grow. The cache of keys and values does; see chapter 5.
kept = {T: {"recurrent": C, "attention": 2 * T * C} for T in (64, 1024)}
assert kept[1024]["attention"] == 16 * kept[64]["attention"]
kept

# %% [markdown]
# ## References
#
# - Elman (1990), [Finding structure in time](https://doi.org/10.1207/s15516709cog1402_1).
# - Bengio, Simard, Frasconi (1994), [Learning long-term dependencies with gradient descent is
#   difficult](https://doi.org/10.1109/72.279181).
# - Hochreiter, Schmidhuber (1997), [Long short-term memory](https://doi.org/10.1162/neco.1997.9.8.1735).
# - Cho et al. (2014), [Learning phrase representations using RNN encoder-decoder](https://arxiv.org/abs/1406.1078).
# - Bahdanau, Cho, Bengio (2015), [Neural machine translation by jointly learning to align and
#   translate](https://arxiv.org/abs/1409.0473).
# - Vaswani et al. (2017), [Attention is all you need](https://arxiv.org/abs/1706.03762), table 1.
