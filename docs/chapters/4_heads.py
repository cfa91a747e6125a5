# %% [markdown]
# # 4. Heads
#
# **Who has the telescope?**
#
# > She saw the man with the telescope.
#
# The word *with* may belong to *saw* or to *man*. One average cannot follow both readings, so a layer
# runs several attention operations in parallel, each on its own slice of the channels. This chapter takes
# such a layer apart and reassembles it. It then shows what makes heads different, and what happens when all
# heads start the same.
#
# **You will learn** to
#
# - split channels into heads and merge them, and test the transposes;
# - write a layer as a sum over heads;
# - explain what makes heads different, and when they stay identical.
#
# **Prerequisites:** chapters 1 and 3.

# %% tags=["hide-input"]
import sys

import torch

from attnlab.attention import (
    AttentionConfig,
    SelfAttention,
    attention,
    bidirectional,
    build_mask,
    causal,
    identical,
    identical_qkv,
    independent,
)
from attnlab.data.plays import plays
from attnlab.installation import lab_path
from attnlab.plotting.drawing import styled
from attnlab.probes import measures
from attnlab.probes.capture import views
from attnlab.trained.checkpoints import load_model

sys.path.append(str(lab_path("docs")))
from chapters.shown import panels, paragraph, picture, table, train

stream = torch.Generator().manual_seed(0)


def gradient_difference(rule):
    """The largest difference between the gradients of two heads' query weights."""
    torch.manual_seed(0)
    layer = SelfAttention(
        AttentionConfig(C, H, block_size=T, bias=False), head_init=rule
    )
    rule(layer)
    above = torch.randn(T, C, generator=torch.Generator().manual_seed(1))
    (layer(x) * above).sum().backward()
    queries = layer.qkv.weight.grad.split(layer.qkv_sizes)[0].unflatten(0, (H, D))
    return float(measures.largest_difference(queries, dim=0) / queries.abs().max())


# %% [markdown]
# ## The reshape
#
# B texts of T tokens with C channels become H heads of D = C / H channels: (B, T, C) → (B, T, H,
# D) → (B, H, T, D). In this example, every number encodes its origin: the tens digit is the token and
# the ones digit is the channel.
#
# **Predict.** What is in head 0 if you call `view(H, T, D)` and forget the transpose? And in the first row of the
# result, if you split correctly, but merge by `reshape(T, C)` without the transpose?

# %%
T, C, H = 3, 4, 2
D = C // H
x = 10 * torch.arange(T)[:, None] + torch.arange(C)

right = x.view(T, H, D).transpose(0, 1)  # (H, T, D)
wrong = x.view(H, T, D)  # the same shape, but tokens are mixed
merged = right.reshape(T, C)  # also (T, C), but not x

# %% tags=["hide-input"]
with styled():
    figure, places = panels(3, width=3.9, height=3.0)
    shown = {
        "x (T, C)": x,
        "head 0, right": right[0],
        "head 0, without transpose": wrong[0],
    }
    for place, (title, numbers) in zip(places, shown.items(), strict=True):
        place.imshow(numbers // 10, cmap="Blues", vmin=-1, vmax=4, aspect="auto")
        for (i, j), number in zip(
            [
                (i, j)
                for i in range(numbers.shape[0])
                for j in range(numbers.shape[1])
            ],
            numbers.flatten().tolist(),
            strict=True,
        ):
            place.text(j, i, f"{number:02}", ha="center", va="center")
        place.set(title=title, xlabel="channel", xticks=[], yticks=range(3))
        place.grid(False)
    places[0].set_ylabel("token")
ALT = "Left: three tokens in rows. Middle: head 0 has channels 0 and 1 of all three tokens. Right: without the transpose it has token 0 twice and token 2 never"
picture(figure, "reshape", ALT)

# %% [markdown]
# **Explain.** The shapes are equal, so nothing raises an error. But the wrong head has token 0 twice and never has token 2.
# Merged without the transpose, the first row is 0, 1, 10, 11: head 0 of tokens 0 and 1, and nothing of head 1. Positions
# and heads are mixed.

# %% tags=["hide-input"]
assert right.shape == wrong.shape
assert right[0].tolist() == [
    [0, 1],
    [10, 11],
    [20, 21],
]  # all tokens, channels 0 and 1
assert wrong[0].tolist() == [
    [0, 1],
    [2, 3],
    [10, 11],
]  # token 0 twice, token 2 never
assert torch.equal(right.transpose(0, 1).flatten(1), x)  # and back again
assert merged.shape == x.shape and merged[0].tolist() == [0, 1, 10, 11]

# %% [markdown]
# ## A layer taken apart
#
# Columns h·D to (h+1)·D of `W_q`, `W_k`, and `W_v` belong to head h, and so do the same rows of
# `W_o`. The layer is therefore a sum over heads, each of which writes to all C channels through its
# own slice of `W_o`:
#
# $$\text{layer}(X) = \sum_{h=1}^{H} A_h \; X W_v^{(h)} \; W_o^{(h)}$$
#
# **Predict.** How many parameters does a layer of 64 channels have with 1, 2, 4, and 8 heads?

# %%
C, H, T = 64, 4, 10
D = C // H
layer = SelfAttention(AttentionConfig(C, H, block_size=T, bias=False))
x = torch.randn(1, T, C, generator=stream)
mask = build_mask(causal, T)

with torch.no_grad():
    total = torch.zeros(T, C)
    for h in range(H):
        own = slice(h * D, (h + 1) * D)
        q, k, v = (x[0] @ W[:, own] for W in (layer.W_q, layer.W_k, layer.W_v))
        mixed, _ = attention(q, k, v, may_attend=mask)
        total += mixed @ layer.W_o[own]
    difference = float((total - layer(x)[0]).abs().max())

# %% tags=["remove-input"]
assert difference < 1e-5
parameters = {
    heads: sum(
        p.numel()
        for p in SelfAttention(
            AttentionConfig(C, heads, block_size=T, bias=False)
        ).parameters()
    )
    for heads in (1, 2, 4, 8)
}
assert set(parameters.values()) == {4 * C * C}

paragraph(
    f"**Explain.** The loop over heads and the layer differ by {difference:.1e}, which is rounding error. The "
    f"number of parameters is 4 C² = {parameters[1]:,} for every number of heads: they only split "
    "the same four matrices in another way."
)

# %% [markdown]
# ## Symmetry
#
# A sum does not depend on the order of its terms. If heads are permuted together with their slices,
# the layer is the same, so "head 2" of one seed does not correspond to "head 2" of another.

# %% tags=["hide-input"]
places = torch.tensor([2, 0, 3, 1])
swapped = SelfAttention(AttentionConfig(C, H, block_size=T, bias=False))
with torch.no_grad():
    swapped.W_q.copy_(layer.W_q.unflatten(1, (H, D))[:, places].flatten(1))
    swapped.W_k.copy_(layer.W_k.unflatten(1, (H, D))[:, places].flatten(1))
    swapped.W_v.copy_(layer.W_v.unflatten(1, (H, D))[:, places].flatten(1))
    swapped.W_o.copy_(layer.W_o.unflatten(0, (H, D))[places].flatten(0, 1))
    assert torch.allclose(swapped(x), layer(x), atol=1e-6)

# %% [markdown]
# This symmetry has a consequence. Heads that are *equal* get equal gradients, and elementwise updates
# keep them equal. The same is taught of equal hidden units, with the remark that dropout would separate them
# ([Dive into Deep Learning](https://d2l.ai/chapter_multilayer-perceptrons/numerical-stability-and-init.html),
# "Breaking the Symmetry"). `identical` copies all weights of the first head to the others, including
# the output slice. `identical_qkv` leaves the output slices as initialized.
#
# **Predict.** Which of the two keeps the heads equal?

# %%
gradients = {
    rule.__name__: gradient_difference(rule)
    for rule in (independent, identical_qkv, identical)
}

# %% tags=["remove-input"]
assert gradients["identical"] < 1e-5
assert gradients["independent"] > 0.1 and gradients["identical_qkv"] > 0.1

table(
    ["heads at the start", "largest difference of two heads' gradients, relative"],
    [[name, f"{value:.1e}"] for name, value in gradients.items()],
)

# %% [markdown]
# **Explain.** Each head gets its gradient through its own output slice. If these slices differ, so do the
# gradients, and the first update separates the heads.

# %% [markdown]
# ## Collapse
#
# **Predict.** Do identical heads stay identical during training? We train three models for 300 steps each.
# [The lab in a browser](../lab.html#heads) shows the maps of all heads while they train.

# %%
VARIANTS = {
    "sdpa": "independent",
    "identical_qkv": "identical_qkv",
    "identical_heads": "identical",
}
trained = train(
    "heads",
    f"attn={','.join(VARIANTS)} preset=micro data=plays data.length=60000",
)
runs = trained.set_index("attn")

# %% [markdown]
# The table shows, for each model, the largest difference between the weights of two heads, the
# effective number of heads (1 if all compute the same), the similarity of their patterns, and the validation loss
# in nats per character.

# %% tags=["remove-input"]
corpus = plays(length=60000)
ids = corpus.val[: 8 * 64].long().view(8, 64)
seen = {}
apart = {}
effective = {}
rows = []
for name, rule in VARIANTS.items():
    net, alphabet = load_model(runs.folder[name])
    assert list(alphabet) == list(corpus.alphabet)
    seen[name] = list(views(net, ids))
    queries = [view.attn.W_q.T.unflatten(0, (4, -1)).detach() for view in seen[name]]
    apart[name] = max(float(measures.largest_difference(q, dim=0)) for q in queries)
    outputs = [view.pattern @ view.values for view in seen[name]]
    effective[name] = [
        float(measures.effective_heads(of_layer)) for of_layer in outputs
    ]
    alike = [
        measures.pattern_similarity(view.pattern, view.mask) for view in seen[name]
    ]
    similarity = sum(float(measures.with_others(a).mean()) for a in alike) / len(
        alike
    )
    counts = ", ".join(f"{n:.2f}" for n in effective[name])
    loss = runs.loss[name]
    rows.append(
        [rule, f"{apart[name]:.1e}", counts, f"{similarity:.2f}", f"{loss:.3f}"]
    )

head = [
    "heads at the start",
    "difference",
    "effective heads, by layer",
    "similarity",
    "loss",
]
table(head, rows)

# %% tags=["remove-input"]
assert apart["identical_heads"] < 1e-5 < 1e-2 < apart["identical_qkv"]
assert max(effective["identical_heads"]) < 1.01
assert 1.5 < max(effective["identical_qkv"]) < min(effective["sdpa"])

paragraph(
    "**Explain.** After training, identical heads are still a single head "
    f"({max(effective['identical_heads']):.2f} effective heads of 4). Heads with their own output "
    f"slices differ ({', '.join(f'{n:.2f}' for n in effective['identical_qkv'])} by layer), but "
    "less than heads that started with different weights "
    f"({', '.join(f'{n:.2f}' for n in effective['sdpa'])}). The losses are from one seed; "
    "`experiments/identical_heads/README.md` has the comparison over paired seeds."
)

# %% [markdown]
# The next figure shows the similarity of patterns for each pair of heads in the last layer; 1 means the
# same pattern.

# %% tags=["hide-input"]
last = [seen[name][-1] for name in VARIANTS]
cosines = [
    measures.pattern_similarity(view.pattern, view.mask).numpy() for view in last
]
with styled():
    figure, places = panels(3, width=3.4, height=3.2)
    for place, rule, cosine in zip(places, VARIANTS.values(), cosines, strict=True):
        image = place.imshow(cosine, cmap="Blues", vmin=0, vmax=1)
        place.set(title=rule, xlabel="head", ylabel="head", xticks=range(4))
        place.grid(False)
    figure.colorbar(image, label="cosine of the patterns", ax=places)
ALT = "Cosines between four heads: mixed for independent ones, 1 for identical ones"
picture(figure, "cosines", ALT)

# %% [markdown]
# ## BERT in our layer
#
# The matrices of a trained model fit into our layer, if the layer computes the same function. BERT is an encoder:
# every position reads all others. It keeps queries, keys and values in three matrices, which we stack. Here the
# weights are random, so nothing is downloaded; `BertModel.from_pretrained("bert-base-uncased",
# attn_implementation="eager")` has trained ones. (This cell needs the extra `hf`.)

# %% tags=["bert"]
from transformers import BertConfig, BertModel

sizes = dict(hidden_size=64, num_attention_heads=4, intermediate_size=128)
settings = BertConfig(**sizes, num_hidden_layers=1, attn_implementation="eager")
bert = BertModel(settings).eval()
theirs = bert.encoder.layer[0].attention
ours = SelfAttention(
    AttentionConfig(64, 4, block_size=512), may_attend=bidirectional
)
parts = [theirs.self.query, theirs.self.key, theirs.self.value]
with torch.no_grad():
    ours.qkv.weight.copy_(torch.cat([part.weight for part in parts]))
    ours.qkv.bias.copy_(torch.cat([part.bias for part in parts]))
    ours.proj.load_state_dict(theirs.output.dense.state_dict())
    ids = torch.randint(settings.vocab_size, (2, 20))
    read = bert.embeddings(ids)  # (B, T, C)
    pattern = bert(ids, output_attentions=True).attentions[0]  # (B, H, T, T)
    output = theirs.output.dense(theirs.self(read)[0])  # (B, T, C)
    torch.testing.assert_close(ours.pattern(read), pattern, rtol=0, atol=1e-6)
    torch.testing.assert_close(ours(read), output, rtol=0, atol=1e-6)

# %% [markdown]
# **Check yourself.** Which of the two comparisons fails if queries and keys are stacked in the other order? Which if
# the mask is causal?
#
# <details><summary>The answer</summary>
#
# Both, in both cases. The pattern of swapped queries and keys is that of the transposed scores; with a causal mask,
# the first position reads only itself. The outputs average the values by the pattern, so they differ, too.
#
# </details>

# %% [markdown]
# ## Summary
#
# - A head is attention on D = C / H channels; the output of the layer is the sum of the outputs of its heads.
# - The number of parameters does not depend on the number of heads.
# - Heads are interchangeable: "head 2" of two training runs need not have anything in common.
# - Heads that start equal, with equal output slices, get equal gradients and stay equal.
#
# ## Exercises
#
# **1.** With two key-value heads for four query heads (`attn=gqa`), which query heads share a key-value
# head, and how many rows does `qkv` have?

# %% tags=["hide-cell"]
shared = SelfAttention(AttentionConfig(64, 4, block_size=8, bias=False), n_kv_head=2)
_, keys, _ = shared.split(torch.randn(1, 8, 64, generator=stream))
assert torch.equal(keys[:, 0], keys[:, 1]) and not torch.equal(
    keys[:, 1], keys[:, 2]
)
assert shared.qkv.weight.shape[0] == 64 + 2 * 2 * 16
shared.qkv_sizes

# %% [markdown]
# **2.** Does dropout on the pattern break the symmetry of identical heads? Predict the answer, then
# look at the gradients.

# %% tags=["hide-cell"]
# Yes, in the first step: each head drops different entries.
torch.manual_seed(0)
dropping = SelfAttention(
    AttentionConfig(64, 4, block_size=T, bias=False, dropout=0.2),
    head_init=identical,
)
identical(dropping)
dropping(x).square().sum().backward()
grads = dropping.qkv.weight.grad.split(dropping.qkv_sizes)[0].unflatten(0, (4, 16))
assert float(measures.largest_difference(grads, dim=0)) > 1e-3 * float(
    grads.abs().max()
)

# %% [markdown]
# **3.** What is the effective number of heads if the outputs of four heads are independent noise?

# %% tags=["hide-cell"]
noise = torch.randn(8, 4, 64, 16, generator=stream)
assert 3.9 < float(measures.effective_heads(noise)) <= 4
measures.effective_heads(noise)

# %% [markdown]
# **4.** Is one head of full width as good as four?

# %% [markdown]
# <details><summary>A solution</summary>
#
# It depends on the length of the training. On Shakespeare, with each at its best learning rate, four heads of 16 were
# better than one of 64 in 6 of 20 seeds after 300 steps, and in 19 of 20 after 1,200 (claim
# [more_heads](../../experiments/more_heads/README.md)). One seed of each shows neither:
#
#     python train.py -m attn=sdpa,single_head preset=micro optim.lr=1e-2 optim.min_lr=1e-3 seed=0,1,2 name=width
#     attnlab compare outputs/width
#
# </details>

# %% [markdown]
# ## References
#
# - Vaswani et al. (2017), [Attention is all you need](https://arxiv.org/abs/1706.03762), section 3.2.2.
# - Michel, Levy, Neubig (2019), [Are sixteen heads really better than one?](https://arxiv.org/abs/1905.10650)
# - Shazeer (2019), [Fast transformer decoding](https://arxiv.org/abs/1911.02150), multi-query attention.
# - Ainslie et al. (2023), [GQA](https://arxiv.org/abs/2305.13245), grouped-query attention.
# - Elhage et al. (2021), [A mathematical framework for transformer
#   circuits](https://transformer-circuits.pub/2021/framework/index.html).
