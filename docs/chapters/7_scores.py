# %% [markdown]
# # 7. Other scores, padding, and two sequences
#
# **Which French word is *black*?**
#
# > the black cat — le chat noir
#
# The second English word is the third French one: a translator must compare words of two sequences, in any
# order. Attention began there, with another score than the dot product. This chapter compares the dot product
# with the additive score of Bahdanau and the general score of Luong. It then lets one sequence attend to
# another, and handles texts of different lengths.
#
# **You will learn** to
#
# - compute dot, scaled, general, and additive scores, and state how their size depends on the width;
# - show which of them can express the same functions, and what each costs;
# - use cross-attention, in which queries and keys come from different sequences;
# - mask padding, and test that it is not read.
#
# **Prerequisites:** chapters 1 to 3.

# %% tags=["hide-input"]
import math
import sys

import torch
from torch import nn

from attnlab.attention import attention, build_mask, causal
from attnlab.installation import lab_path
from attnlab.plotting.drawing import COLORS, styled

sys.path.append(str(lab_path("docs")))
from chapters.shown import panels, paragraph, picture, table

stream = torch.Generator().manual_seed(0)
torch.manual_seed(0)


def normal(*shape):
    return torch.randn(*shape, generator=stream, dtype=torch.float64)


class Additive(nn.Module):
    """The scores v · tanh(W q + U k): (..., T, D_q), (..., S, D_k) -> (..., T, S)."""

    def __init__(self, query_size, key_size, hidden_size):
        super().__init__()
        self.W = nn.Linear(query_size, hidden_size, bias=False)
        self.U = nn.Linear(key_size, hidden_size, bias=False)
        self.v = nn.Parameter(torch.ones(hidden_size) / math.sqrt(hidden_size))

    def forward(self, q, k):
        pairs = self.W(q)[..., :, None, :] + self.U(k)[..., None, :, :]
        return pairs.tanh() @ self.v  # (..., T, S, A) -> (..., T, S)


# %% [markdown]
# ## Four scores
#
# | score | formula | parameters | source |
# |---|---|---|---|
# | dot | $q \cdot k$ | none | Luong et al. 2015 |
# | scaled dot | $q \cdot k / \sqrt{D}$ | none | Vaswani et al. 2017 |
# | general | $q^\top W k$ | W (D, D) | Luong et al. 2015 |
# | additive | $v \cdot \tanh(W q + U k)$ | W, U (A, D) and v (A,) | Bahdanau et al. 2015 |
#
# `attention` takes any of them as `score`. The scaled dot product is its default:

# %% tags=["hide-input"]
D, T, S = 16, 5, 7
q, k, v = normal(1, T, D), normal(1, S, D), normal(1, S, D)
general_matrix = normal(D, D)
additive = Additive(D, D, 32).double()


def general(q, k):
    return q @ general_matrix @ k.mT


# %%
patterns = {
    "dot": attention(q, k, v, scale=1.0)[1],
    "scaled dot": attention(q, k, v)[1],
    "general": attention(q, k, v, score=general)[1],
    "additive": attention(q, k, v, score=additive)[1].detach(),
}

# %% tags=["hide-input"]
for pattern in patterns.values():
    assert pattern.shape == (1, T, S) and torch.allclose(
        pattern.sum(-1), torch.ones(1, T).double()
    )

# %% [markdown]
# ## The size of scores
#
# A softmax of large scores selects a single key (chapter 2).
#
# **Predict.** Queries and keys are independent and have unit variance. Which of the scores grow with the width?

# %%
WIDTHS = (4, 16, 64, 256, 1024)
spread = {name: [] for name in ("dot", "scaled dot", "additive")}
for width in WIDTHS:
    a, b = normal(200, width), normal(200, width)
    with torch.no_grad():
        added = Additive(width, width, width).double()(a, b)
    spread["dot"].append(float((a @ b.T).std()))
    spread["scaled dot"].append(float((a @ b.T).std() / math.sqrt(width)))
    spread["additive"].append(float(added.std()))

# %% tags=["hide-input"]
assert all(
    abs(s / math.sqrt(w) - 1) < 0.15
    for s, w in zip(spread["dot"], WIDTHS, strict=True)
)
assert all(abs(s - 1) < 0.15 for s in spread["scaled dot"])
assert all(s < 1 for s in spread["additive"])

with styled():
    figure, (place,) = panels(1, width=7.4, height=3.8)
    for color, (name, values) in zip(COLORS, spread.items(), strict=False):
        place.plot(WIDTHS, values, "o-", color=color, label=name)
    place.set_xscale("log", base=2)
    place.set_yscale("log")
    place.set(xlabel="width D, channels", ylabel="standard deviation of scores")
    place.legend()
ALT = "Dot products grow like the root of the width; scaled and additive scores do not grow"
picture(figure, "spread", ALT)

# %% tags=["remove-input"]
paragraph(
    f"**Explain.** At D = {WIDTHS[-1]}, dot products have a standard deviation of {spread['dot'][-1]:.0f}, scaled ones "
    f"of {spread['scaled dot'][-1]:.2f}, and additive scores of {spread['additive'][-1]:.2f}: tanh and the "
    "initialization of v bound them. Vaswani et al. (2017) report that additive attention outperforms "
    "unscaled dot products at large widths, suspect the size of the dot products, and add the scale."
)

# %% [markdown]
# ## What the scores can express
#
# **Predict.** In self-attention, queries are already a projection of the input, $q = W_q^\top x$. What does the
# matrix W of the general score add?

# %%
by_its_matrix = attention(q, k, v, score=general)[1]
in_the_queries = attention(q @ general_matrix, k, v, scale=1.0)[1]
float((by_its_matrix - in_the_queries).abs().max())

# %% tags=["hide-input"]
assert torch.allclose(by_its_matrix, in_the_queries, atol=1e-12)

# %% [markdown]
# **Explain.** Nothing: W can be multiplied into W_q. (Training may still differ, because the gradient of a
# product of two matrices is not that of one. `attn=general` trains it.)
#
# A matrix of dot products has at most rank D. The additive score has no such limit, because of the tanh.
# Without the tanh it would be useless: W q would add the same number to all scores of a row, which
# cancels in the softmax.

# %%
a, b = normal(40, 3), normal(40, 3)
wide = Additive(3, 3, 64).double()
ranks = {
    "dot": int(torch.linalg.matrix_rank(a @ b.T)),
    "additive": int(torch.linalg.matrix_rank(wide(a, b).detach(), rtol=1e-6)),
}


# %% tags=["remove-input"]
def without_tanh(q, k):
    return (wide.W(q)[:, None] + wide.U(k)[None]) @ wide.v


rows_alike = attention(a, b, b, score=without_tanh)[1].detach()
assert ranks["dot"] == 3 < ranks["additive"]
assert torch.allclose(
    rows_alike, rows_alike[:1].expand_as(rows_alike)
)  # the query does not matter

paragraph(
    f"**Explain.** For queries and keys of width 3, the 40 × 40 dot products have rank {ranks['dot']}, and the additive "
    f"scores have rank {ranks['additive']} (singular values above a millionth of the largest)."
)

# %% [markdown]
# ## What the scores cost
#
# Like dot products, additive scores are computed for all pairs at once; they are not sequential. But
# the tanh has T × S × A inputs, while dot products need only T × S numbers.

# %% tags=["remove-input"]
one_by_one = torch.cat([additive(q[:, t : t + 1], k) for t in range(T)], dim=1)

numbers = {length: (length * length, length * length * 64) for length in (64, 1024)}
assert torch.allclose(one_by_one, additive(q, k), atol=1e-12)
assert numbers[1024][1] == 64 * numbers[1024][0]

table(
    ["T = S", "scores", "numbers inside the tanh, A = 64"],
    [[length, f"{n:,}", f"{inside:,}"] for length, (n, inside) in numbers.items()],
)

# %% [markdown]
# ## Cross-attention
#
# In a translator, the decoder's queries attend to the encoder's states, called the memory. The only
# difference from self-attention is that queries come from one sequence, and keys and values from another.
# The pattern has one row per query and one column per position of the memory. There is no causal mask,
# because every query may read the whole source. `attention` computes it as it is:

# %%
C, H = 16, 2
W_q, W_k, W_v, W_o = normal(C, C), normal(24, C), normal(24, C), normal(C, C)


def heads(x):  # (B, T, C) -> (B, H, T, D)
    return x.unflatten(-1, (H, -1)).transpose(1, 2)


def cross_attention(x, memory):
    mixed, pattern = attention(
        heads(x @ W_q), heads(memory @ W_k), heads(memory @ W_v)
    )
    return mixed.transpose(1, 2).flatten(2) @ W_o, pattern


x = normal(1, 5, C)
memory = normal(1, 7, 24)
y, pattern = cross_attention(x, memory)
{"output": tuple(y.shape), "pattern": tuple(pattern.shape)}

# %% tags=["hide-input"]
assert y.shape == (1, 5, 16) and pattern.shape == (1, 2, 5, 7)
order = torch.randperm(7, generator=stream)  # the memory is a set
assert torch.allclose(cross_attention(x, memory[:, order])[0], y, atol=1e-10)
module = nn.MultiheadAttention(C, H, kdim=24, vdim=24, bias=False, batch_first=True)
module = module.double()
with torch.no_grad():  # PyTorch's module, with the same weights
    for name, W in (("q", W_q), ("k", W_k), ("v", W_v)):
        getattr(module, f"{name}_proj_weight").copy_(W.T)
    module.out_proj.weight.copy_(W_o.T)
    assert torch.allclose(module(x, memory, memory)[0], y, atol=1e-10)

# %% [markdown]
# **Predict.** Give each French word the query that matches the key of its English word. Where are the weights?

# %%
words = 6.0 * torch.eye(3, dtype=torch.float64)  # keys of: the, black, cat
le, chat, noir = words[0], words[2], words[1]
_, aligned = attention(torch.stack([le, chat, noir]), words, words)

# %% tags=["hide-input"]
assert aligned.argmax(-1).tolist() == [0, 2, 1]

with styled():
    figure, (place,) = panels(1, width=4.6, height=3.6)
    image = place.imshow(aligned, cmap="Blues", vmin=0, vmax=1)
    place.set_xticks(range(3), ["the", "black", "cat"])
    place.set_yticks(range(3), ["le", "chat", "noir"])
    place.set(xlabel="key: the source", ylabel="query: the output")
    place.grid(False)
    figure.colorbar(image, label="weight")
ALT = "A heatmap: le reads the, chat reads cat, and noir reads black"
picture(figure, "aligned", ALT)

# %% [markdown]
# **Explain.** The two words cross. A trained translator learns such alignments; `experiments/bahdanau` draws them.
#
# ## Padding
#
# The texts in a batch have different lengths, and the shorter texts are padded. No query may read padded
# keys. The mask has the shape (B, 1, S), because it is the same for each query of a text.

# %%
lengths = torch.tensor([7, 4, 2])
memory = normal(3, 7, D)
queries = normal(3, T, D)
may_attend = (torch.arange(7) < lengths[:, None])[:, None]  # (B, 1, S)
masked, pattern = attention(queries, memory, memory, may_attend=may_attend)

# %% [markdown]
# The figure shows the three patterns; padded keys are gray:

# %% tags=["hide-input"]
garbage = memory.masked_fill(
    ~may_attend.mT, 1e3
)  # the content of the padding must not matter
for n, length in enumerate(lengths.tolist()):  # the same as each text alone
    alone, _ = attention(queries[n], memory[n, :length], memory[n, :length])
    assert torch.allclose(masked[n], alone, atol=1e-12)
assert torch.equal(
    attention(queries, garbage, garbage, may_attend=may_attend)[0], masked
)

with styled():
    figure, places = panels(3, width=3.9, height=2.9)
    for n, (place, weights) in enumerate(zip(places, pattern, strict=True)):
        shown = weights.masked_fill(~may_attend[n], math.nan)
        place.set_facecolor("lightgray")
        image = place.imshow(shown, cmap="Blues", vmin=0, vmax=1)
        place.set(title=f"length {int(lengths[n])}", xlabel="key", ylabel="query")
        place.grid(False)
    figure.colorbar(image, label="weight", ax=places)
ALT = "Three patterns: the weights stop at the length of each text, and the keys after it are gray"
picture(figure, "padding", ALT)

# %% [markdown]
# **Predict.** What happens if you mask queries instead of keys, or give a mask (B, S) without the middle axis?

# %%
complaints = []
for wrong in (may_attend.mT.expand(3, 7, 7)[:, :T], may_attend[:, 0]):
    try:
        attention(queries, memory, memory, may_attend=wrong)
    except ValueError as error:
        complaints.append(str(error))
print(*complaints, sep="\n")

# %% [markdown]
# **Explain.** Three mistakes are common. Without a mask, outputs depend on the length of the *other* texts in the batch.
# If queries are masked instead of keys, whole rows are blocked, and the softmax of such a row is 0/0. A
# mask (B, S) without the middle axis broadcasts silently as (T, S) if B = T. `attention` raises an error for
# the second mistake, and for the third if the shapes do not broadcast.

# %% tags=["hide-input"]
unmasked, _ = attention(queries, memory, memory)
assert float((unmasked - masked)[1:].abs().max()) > 0.1
assert len(complaints) == 2 and "sees no key" in complaints[0]

# %% [markdown]
# A decoder needs both masks: `causal & not padding`. With padding on the right, the causal mask alone
# prevents real tokens from reading the padding, but the loss at padded positions must be ignored as well.

# %%
ids = normal(1, 6, D)
lower = build_mask(causal, 6)
padded = torch.cat([ids, normal(1, 2, D)], 1)
with_padding, _ = attention(padded, padded, padded, may_attend=build_mask(causal, 8))
alone, _ = attention(ids, ids, ids, may_attend=lower)
float((with_padding[:, :6] - alone).abs().max())

# %% tags=["hide-input"]
assert torch.allclose(
    with_padding[:, :6], attention(ids, ids, ids, may_attend=lower)[0], atol=1e-12
)

# %% [markdown]
# ## Summary
#
# - All scores measure how well a key matches a query. Scaled dot products have no parameters and
#   are a matrix product, which hardware computes fast.
# - The general score is equivalent to another W_q. The additive score can express more, and its tanh has
#   T × S × A inputs.
# - Cross-attention takes queries from one sequence, and keys and values from another.
# - The padding mask blocks keys. To test it, change the content of the padding: no output may change.
#
# ## Exercises
#
# **1.** Cosine scores divide q and k by their lengths. What is the largest weight that the softmax over
# n keys can give, if the scores are not multiplied by a gain?

# %% tags=["hide-cell"]
# Scores lie between -1 and 1, so at best one is 1 and the others are -1. `attn=cosine` has a gain.
n = 64
best = math.e / (math.e + (n - 1) / math.e)
assert best < 0.2
f"{best:.2f} with {n} keys"

# %% [markdown]
# **2.** Compute the pattern of the additive score with one query of width 4 and keys of width 6. What are
# the shapes of its parameters?

# %% tags=["hide-cell"]
mixed = Additive(query_size=4, key_size=6, hidden_size=8).double()
_, weights = attention(normal(1, 4), normal(5, 6), normal(5, 3), score=mixed)
assert weights.shape == (1, 5)
{name: tuple(p.shape) for name, p in mixed.named_parameters()}

# %% [markdown]
# **3.** Pad the texts on the left instead. What else must change in a GPT with learned positions?

# %% tags=["hide-cell"]
# The positions: the first real token would have a different position in each text. Also, the causal mask
# alone no longer blocks the padding, which now comes before the text.
left = torch.cat([normal(1, 2, D), ids], 1)
read_padding, _ = attention(left, left, left, may_attend=build_mask(causal, 8))
assert not torch.allclose(
    read_padding[:, 2:], attention(ids, ids, ids, may_attend=lower)[0], atol=1e-2
)

# %% [markdown]
# **4.** Does the quality of a translator depend on the score? Train the translators yourself.

# %% [markdown]
# <details><summary>A solution</summary>
#
# [`experiments/bahdanau`](../../experiments/bahdanau/README.md) trains an encoder and decoder with each score. Additive and
# scaled dot attention end at a BLEU of 99.6 or more in all three seeds, and dot products without the scale at 85.7 to 92.6.
#
# </details>

# %% [markdown]
# ## References
#
# - Bahdanau, Cho, Bengio (2015), [Neural machine translation by jointly learning to align and
#   translate](https://arxiv.org/abs/1409.0473), appendix A.1.2.
# - Luong, Pham, Manning (2015), [Effective approaches to attention-based neural machine
#   translation](https://arxiv.org/abs/1508.04025), section 3.1.
# - Vaswani et al. (2017), [Attention is all you need](https://arxiv.org/abs/1706.03762), section 3.2.
# - PyTorch's [scaled_dot_product_attention](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html)
#   and [MultiheadAttention](https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html),
#   whose masks have opposite meanings.
