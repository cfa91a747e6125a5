# %% [markdown]
# # 1. The equation by hand
#
# **What does *it* refer to?**
#
# > The cat slept because it was tired.
#
# To answer, a model must relate *it* to other words. With attention, *it* asks with a **query** and every
# word answers with a **key**. The output at *it* is an average of the words' **values**, with large weights
# where query and key match. In one line (Vaswani et al. 2017, equation 1):
#
# $$
# \text{output} = \operatorname{softmax}\left(\frac{Q K^\top}{\sqrt{d}}\right) V,
# \qquad
# p_{ij} = \frac{e^{s_{ij}}}{\sum_j e^{s_{ij}}},
# \qquad
# s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}}
# $$
#
# This chapter computes it for three tokens with $d = 2$: first in exact fractions, then with attnlab's
# function, and then with its layer.
#
# **You will learn** to
#
# - compute the output of attention by hand for three tokens;
# - define query, key, value, score, weight, and output;
# - block keys with a mask, and explain why it is applied before the softmax;
# - find the four matrices of a self-attention layer.
#
# **Prerequisites:** matrix products and the softmax. Chapter 0 shows what came before attention.

# %% tags=["hide-input"]
import math
import sys
from fractions import Fraction

import torch

from attnlab.attention import (
    AttentionConfig,
    SelfAttention,
    attention,
    bidirectional,
    build_mask,
    causal,
)
from attnlab.installation import lab_path
from attnlab.plotting.drawing import COLORS, styled

sys.path.append(str(lab_path("docs")))
from chapters.shown import panels, paragraph, picture, table

torch.set_default_dtype(torch.float64)


def listed(numbers):
    return ", ".join(map(str, numbers))


# %% [markdown]
# ## Three tokens
#
# The exponential of a nonzero rational number is irrational, which is inconvenient by hand. We
# therefore build the keys from logarithms of small integers, so that every `exp(score)` is an
# integer. The division by $\sqrt{d}$ cancels the $\sqrt{2}$ in the keys.

# %%
Q = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
K = math.sqrt(2) * torch.tensor(
    [[math.log(2), 0.0], [0.0, math.log(3)], [math.log(2), math.log(3)]]
)
V = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])

# %% [markdown]
# **Predict.** The exponential of a score, $e^{q_i \cdot k_j / \sqrt{2}}$, is 2 to the power of the product of the
# first coordinates, times 3 to the power of the product of the second ones. Take a pencil: which three
# weights does the third query have?

# %%
queries = [(1, 0), (0, 1), (1, 1)]
keys = [(1, 0), (0, 1), (1, 1)]  # times √2 (ln 2, ln 3)
values = [(1, 0), (0, 1), (1, 1)]

exponentials = [
    [Fraction(2) ** (q[0] * k[0]) * 3 ** (q[1] * k[1]) for k in keys]
    for q in queries
]
weights = [[e / sum(row) for e in row] for row in exponentials]
outputs = []
for row in weights:
    pairs = list(zip(row, values, strict=True))
    outputs.append([sum(w * v[c] for w, v in pairs) for c in (0, 1)])

# %% tags=["remove-input"]
rows = [
    [i + 1, listed(exps), sum(exps), listed(w), f"({listed(y)})"]
    for i, (exps, w, y) in enumerate(
        zip(exponentials, weights, outputs, strict=True)
    )
]
table(["query", "exp of its scores", "their sum", "weights", "output"], rows)

# %% [markdown]
# **Explain.** Each row of weights sums to 1, so the output is a weighted average of the values. The third
# query matches the third key in both coordinates, so this key gets the largest weight.
#
# ## The same with a function
#
# `attention` returns the output and the weights, which are called the pattern. It scales by $1/\sqrt{d}$
# by default.

# %%
output, pattern = attention(Q, K, V)
pattern, output

# %% tags=["remove-input"]
exact_pattern = torch.tensor([[float(w) for w in row] for row in weights])
exact_output = torch.tensor([[float(y) for y in row] for row in outputs])
error = max(
    float((pattern - exact_pattern).abs().max()),
    float((output - exact_output).abs().max()),
)
assert [sum(row) for row in weights] == [1, 1, 1]
assert weights[2] == [Fraction(2, 11), Fraction(3, 11), Fraction(6, 11)]
assert outputs[2] == [Fraction(8, 11), Fraction(9, 11)]
assert error < 1e-15

paragraph(
    f"The function and the fractions differ by at most {error:.1e}, the rounding error of fp64."
)

# %% [markdown]
# **Predict.** The three values are corners of a triangle. Can an output lie outside of it?

# %% tags=["hide-input"]
with styled():
    figure, (left, right) = panels(2, width=5.0, height=4.2)
    left.imshow(pattern, cmap="Blues", vmin=0, vmax=1)
    for i, row in enumerate(weights):
        for j, w in enumerate(row):
            left.text(
                j,
                i,
                str(w),
                ha="center",
                va="center",
                color="white" if w > 0.5 else "black",
            )
    left.set(title="pattern", xlabel="key", ylabel="query")
    left.set_xticks(range(3), ["1", "2", "3"])
    left.set_yticks(range(3), ["1", "2", "3"])
    left.grid(False)
    right.fill(*V.T, alpha=0.15, color=COLORS[0])
    right.plot(*V.T, "s", color=COLORS[0])
    right.plot(*output.T, "o", color=COLORS[1])
    for i in range(3):
        right.annotate(f"{i + 1}", V[i], xytext=(7, 7), textcoords="offset points")
        right.annotate(
            f"{i + 1}", output[i], xytext=(-16, -4), textcoords="offset points"
        )
    right.text(0.97, -0.1, "values", color=COLORS[0], ha="right")
    right.text(
        output[0, 0], output[0, 1] - 0.12, "outputs", color=COLORS[1], ha="right"
    )
    right.set(
        title="outputs lie between the values", xlim=(-0.15, 1.2), ylim=(-0.15, 1.2)
    )
    right.set(xlabel="first channel", ylabel="second channel")
ALT = "Left, the pattern of three queries and three keys as fractions. Right, the three outputs, which lie inside the triangle of the three values"
picture(figure, "triangle", ALT)

# %% [markdown]
# **Explain.** No: a weighted average with positive weights cannot leave the range of its inputs.
#
# ## A mask
#
# A language model must not look ahead. Blocked scores become $-\infty$ *before* the softmax: their
# exponentials are 0, and the others are divided by the sum of those that remain.
#
# **Predict.** Cross out the blocked entries above the diagonal, then divide. What are the weights of the
# second query?

# %%
mask = build_mask(causal, 3)  # True: this query may attend to this key
_, masked_pattern = attention(Q, K, V, may_attend=mask)

# %% tags=["remove-input"]
masked_weights = [
    [e / sum(row[: i + 1]) if j <= i else Fraction(0) for j, e in enumerate(row)]
    for i, row in enumerate(exponentials)
]
expected = torch.tensor([[float(w) for w in row] for row in masked_weights])
assert masked_weights[1] == [Fraction(1, 4), Fraction(3, 4), 0]
assert float((masked_pattern - expected).abs().max()) < 1e-15
assert bool((masked_pattern.triu(1) == 0).all())  # exactly 0

rows = [[i + 1, listed(w)] for i, w in enumerate(masked_weights)]
table(["query", "weights under the causal mask"], rows)

# %% [markdown]
# **Explain.** The second query has $1 / (1 + 3)$ and $3 / (1 + 3)$. The first query sees only itself, so its
# weight is 1 for any score. The last query sees the same keys as before.
#
# ## The same with a layer
#
# In self-attention, three matrices map one input $X$ to queries, keys, and values, and a fourth maps
# the result to the output:
#
# $$
# Q = X W_q, \quad K = X W_k, \quad V = X W_v, \quad Y = A V W_o
# $$
#
# `SelfAttention` has these four matrices as views of its parameters. If $X$ equals our queries, the matrices
# are:

# %%
X = Q
layer = SelfAttention(
    AttentionConfig(n_embd=2, n_head=1, block_size=3, bias=False),
    may_attend=bidirectional,
)
with torch.no_grad():
    layer.W_q.copy_(torch.eye(2))
    layer.W_k.copy_(
        math.sqrt(2) * torch.diag(torch.tensor([math.log(2), math.log(3)]))
    )
    layer.W_v.copy_(torch.eye(2))
    layer.W_o.copy_(torch.eye(2))
    Y = layer(X[None])[0]
Y

# %% tags=["hide-input"]
assert torch.allclose(Y, exact_output, atol=1e-15)
assert torch.allclose(layer.pattern(X[None])[0, 0], exact_pattern, atol=1e-15)

# %% [markdown]
# The attention block of a GPT does the same, with more tokens, more channels, several heads in
# parallel (chapter 4), and a mask (chapter 3).
#
# ## Two properties
#
# **Predict.** There is no mask now. If you exchange the tokens, what happens to the outputs? If you add 700
# to all scores of a query, what happens to its weights?

# %%
order = torch.tensor([2, 0, 1])
with torch.no_grad():
    permuted = layer(X[order][None])[0]

constant = torch.tensor([[700.0], [-3.0], [0.5]])  # one number per query
_, shifted = attention(Q, K, V, bias=constant.expand(3, 3))

{
    "outputs follow the order": torch.allclose(permuted, Y[order], atol=1e-15),
    "weights stay the same": torch.allclose(shifted, pattern, atol=1e-12),
}

# %% tags=["hide-input"]
assert torch.allclose(permuted, Y[order], atol=1e-15)
assert torch.allclose(shifted, pattern, atol=1e-12)

# %% [markdown]
# **Explain.** Attention without a mask does not know the order of its tokens. A constant that is added to
# all scores of a row multiplies their exponentials by one factor, which cancels. So a softmax can subtract the
# largest score first, which avoids overflow.
#
# ## Summary
#
# - The output of a query is an average of the values. Its weights are the softmax of the scaled scores.
# - Weights are positive and sum to 1, so an output lies between the values.
# - A mask removes keys before the softmax, and the other weights grow.
# - Without a mask, attention does not know the order of its inputs.
#
# ## Exercises
#
# **1.** Without the division by $\sqrt{d}$, what are the weights of the third query? Are they fractions?

# %% tags=["hide-cell"]
# The exponentials become 2^√2, 3^√2 and 6^√2, which are irrational; the largest weight grows.
_, unscaled = attention(Q, K, V, scale=1.0)
exponents = torch.tensor([2.0, 3.0, 6.0]) ** math.sqrt(2)
assert torch.allclose(unscaled[2], exponents / exponents.sum())
assert unscaled[2].max() > pattern[2].max()
unscaled[2]

# %% [markdown]
# **2.** Which keys does query 1 see under the flipped mask, key ≥ query? Which does query 3 see?

# %% tags=["hide-cell"]
# Query 1 sees all keys, and query 3 only itself: the causal pattern from the other end of the text.
_, flipped = attention(Q, K, V, may_attend=mask.T)
assert torch.allclose(flipped[0], pattern[0]) and flipped[2].tolist() == [0, 0, 1]
flipped

# %% [markdown]
# **3.** If a mask blocks every key of a query, the softmax is 0/0. What does the function do?

# %% tags=["hide-cell"]
try:
    attention(
        Q,
        K,
        V,
        may_attend=torch.tensor([[True, True, True], [False] * 3, [True] * 3]),
    )
except ValueError as error:
    said = str(error)
assert "query 1" in said
said

# %% [markdown]
# **4.** Choose keys such that the first query has the weights 1/6, 2/6, and 3/6, and try them.

# %% tags=["hide-cell"]
# The scores must be ln 1, ln 2, and ln 3: the first coordinates of the keys, times √2.
K_new = math.sqrt(2) * torch.tensor([[math.log(n), 0.0] for n in (1, 2, 3)])
_, solved = attention(Q, K_new, V)
assert torch.allclose(solved[0], torch.tensor([1.0, 2.0, 3.0]) / 6)
solved[0]

# %% [markdown]
# ## References
#
# - Vaswani et al. (2017), [Attention is all you need](https://arxiv.org/abs/1706.03762), section 3.2.1.
# - Bahdanau, Cho, Bengio (2015), [Neural machine translation by jointly learning to align and
#   translate](https://arxiv.org/abs/1409.0473), where attention is an average of encoder states.
# - PyTorch's [scaled_dot_product_attention](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html).
