# %% [markdown]
# # 6. Looking inside a model
#
# **How does the model know that Ivy will say *clay*?**
#
# > Pip: Where is the daft clay?
# > Ivy: Why, the clay moans with the cruel noble prince.
#
# These lines come from a generated play, in which an answer repeats the noun of the question. To predict it, a head
# must look back by about twenty characters. This chapter trains a model with two layers of four heads on
# such plays. It then examines the heads with pictures, with numbers, and by removing each head. A pattern shows
# what a head attends to, but only an intervention shows whether the model uses it.
#
# **You will learn** to
#
# - read a heatmap of a head, and describe it in numbers;
# - compare a measure with its value for equal weights;
# - measure what a head contributes by removing it;
# - explain what a pattern does not show.
#
# **Prerequisites:** chapters 3 and 4.

# %% tags=["hide-input"]
import re
import sys
from copy import deepcopy

import torch
import torch.nn.functional as F

from attnlab.attention import build_mask, causal
from attnlab.data.plays import plays
from attnlab.installation import lab_path
from attnlab.pages.attention_maps import look
from attnlab.plotting.drawing import COLORS, styled
from attnlab.probes import measures
from attnlab.probes.capture import eval_mode, views
from attnlab.trained.checkpoints import load_model

sys.path.append(str(lab_path("docs")))
from chapters.shown import panels, paragraph, picture, table, train


def heatmap(place, weights, text):
    """A pattern (T, T) with the characters of its text on both axes."""
    T = len(text)
    blocked = ~torch.ones(T, T).tril().bool()
    place.set_facecolor("lightgray")
    place.imshow(weights.sqrt().masked_fill(blocked, float("nan")), cmap="Blues")
    marks = list(text.replace("\n", "↵").replace(" ", "␣"))
    place.set_xticks(range(T), marks, fontsize=8)
    place.set_yticks(range(T), marks, fontsize=8)
    place.grid(False)


def loss_without(silent):
    """Loss by position, (T,), without a set of heads, given as (layer, head)."""
    copy = deepcopy(net)
    for layer, h in silent:
        attn = copy.blocks[layer].attn
        with torch.no_grad():
            attn.W_o[h * attn.head_size : (h + 1) * attn.head_size] = 0
    with eval_mode(copy):
        return measures.cross_entropies(copy(ids), targets).mean(0)


# %%
runs = train(
    "inside",
    "preset=micro data=plays data.length=60000 "
    "trainer.max_steps=600 trainer.val_check_interval=600",
)
run = runs.iloc[0]
net, alphabet = load_model(run.folder)
corpus = plays(length=60000)
text = alphabet.decode(corpus.val[:5_000].tolist())

# %% tags=["remove-input"]
assert list(alphabet) == list(corpus.alphabet)
assert run.val_floor < run.val_loss < 2.1

paragraph(
    f"The validation loss is {run.val_loss:.3f} nats per character. Uniform guesses would give "
    f"ln {len(alphabet)} = {torch.tensor(len(alphabet)).log():.3f}, and perfect knowledge of the "
    f"grammar would give {run.val_floor:.3f}."
)

# %% [markdown]
# ## Pictures
#
# Each picture is the pattern of one head on a passage. Queries run downward and keys to the right. Gray is
# blocked, and darker blue is a larger weight.
#
# **Predict.** Which patterns do you expect in a model that predicts the next character? Think of one, then look
# for it.

# %%
start = text.index("\n\n") + 2
passage = text[start : start + 40]
symbols = torch.tensor([alphabet.encode(passage)])
patterns = {
    (view.layer, h): view.pattern[0, h]
    for view in views(net, symbols)
    for h in range(4)
}

# %% tags=["hide-input"]
with styled():
    figure, places = panels(8, width=4.0, height=4.0, columns=4)
    for place, ((layer, h), weights) in zip(places, patterns.items(), strict=True):
        heatmap(place, weights, passage)
        place.label_outer()  # letters at the left and below
        place.set_title(f"L{layer}H{h}")
ALT = "The patterns of the eight heads, with the passage at the left and below"
picture(figure, "eight", ALT)

# %% [markdown]
# **Explain.** `attnlab look RUN_DIRECTORY --text ...` describes each head in words:

# %% tags=["remove-input"]
table(
    ["head", "what it attends to in this passage"],
    [[f"L{layer}H{h}", says] for layer, h, says in look(run.folder, passage).words],
)

# %% [markdown]
# ## Numbers
#
# A single passage is not enough. The table averages over 32 windows of the validation text: the share of
# weight that each head puts on the previous character, on the character itself, and on the first
# character; the effective number of keys; and the mean distance.
#
# **Predict.** How much weight would be on the previous character if all weights of a row were equal?

# %%
windows = torch.stack([corpus.val[i * 64 : i * 64 + 65] for i in range(32)]).long()
ids, targets = windows[:, :-1], windows[:, 1:]
NAMES = {
    "previous": measures.previous_mass,
    "itself": measures.self_mass,
    "first": measures.first_mass,
    "effective keys": measures.effective_keys,
    "distance back": measures.distance_back,
}
found = {}
for view in views(net, ids):
    for name, measure in NAMES.items():
        for h, value in enumerate(measure(view.pattern, view.mask).tolist()):
            found.setdefault((view.layer, h), {})[name] = value

# %% tags=["remove-input"]
rows = [
    [f"L{layer}H{h}", *(f"{x:.2f}" for x in values.values())]
    for (layer, h), values in found.items()
]
table(["head", *NAMES], rows)

# %% tags=["remove-input"]
mask = build_mask(causal, 64)
even = (mask / mask.sum(-1, keepdim=True))[None, None]
baseline = float(measures.previous_mass(even, mask))
local = max(found, key=lambda head: found[head]["previous"])
broad = max(found, key=lambda head: found[head]["effective keys"])
for view in views(net, ids):
    assert bool((measures.future_mass(view.pattern) == 0).all())
    assert float(measures.row_sum_error(view.pattern).max()) < 1e-5
assert found[local]["previous"] > 2 * baseline
assert found[broad]["effective keys"] > found[local]["effective keys"]

paragraph(
    f"**Explain.** With equal weights, a head would put {baseline:.3f} on the previous character. "
    f"L{local[0]}H{local[1]}, the most local head, puts {found[local]['previous']:.2f} there. "
    f"L{broad[0]}H{broad[1]} is the broadest, with {found[broad]['effective keys']:.1f} effective "
    "keys."
)

# %% [markdown]
# The next figure enlarges the head with the fewest effective keys, on the passage from above:

# %%
sharp = min(found, key=lambda head: found[head]["effective keys"])
with styled():
    figure, (place,) = panels(1, width=8.0, height=8.0)
    heatmap(place, patterns[sharp], passage)
    place.set(title=f"L{sharp[0]}H{sharp[1]}", xlabel="key", ylabel="query")
picture(figure, "sharp", "The pattern of one head, with the passage on both axes")

# %% [markdown]
# ## Removing heads
#
# A head contributes to the output only through its rows of `W_o`. Setting them to zero removes the
# head and changes nothing else.
#
# **Predict.** How much does the loss increase without one head? Without all eight? Is the second number the sum
# of the first ones?

# %%
whole = loss_without([])  # by position
harm = {head: float((loss_without([head]) - whole).mean()) for head in found}
none_left = float((loss_without(list(found)) - whole).mean())

# %% tags=["hide-input"]
heaviest = max(harm, key=lambda head: harm[head])
with eval_mode(net):
    assert torch.isclose(
        whole.mean(), F.cross_entropy(net(ids).flatten(0, 1), targets.flatten())
    )

with styled():
    figure, (left, right) = panels(2)
    labels = [f"L{layer}H{h}" for layer, h in harm]
    left.bar(labels, list(harm.values()), color=[COLORS[layer] for layer, _ in harm])
    left.tick_params(axis="x", labelsize=10)
    left.set(
        xlabel="head",
        ylabel="nats per character",
        title="loss without this head, minus loss",
    )
    for head, color in (
        (heaviest, COLORS[1]),
        (min(harm, key=lambda head: harm[head]), COLORS[2]),
    ):
        rise = (loss_without([head]) - whole).view(8, 8).mean(-1)
        right.plot(
            range(0, 64, 8), rise, "o-", color=color, label=f"L{head[0]}H{head[1]}"
        )
    right.set(
        xlabel="position in the window, characters", ylabel="nats per character"
    )
    right.set(title="the same difference, by position")
    right.legend()
ALT = "Bars of the loss that the removal of each head costs, and its course over the positions for two of them"
picture(figure, "silenced", ALT)

# %% tags=["remove-input"]
assert harm[heaviest] > 0.02
assert none_left > max(harm.values())

paragraph(
    f"**Explain.** L{heaviest[0]}H{heaviest[1]} matters most here ({harm[heaviest]:+.3f} nats). Removing all "
    f"eight heads changes the loss by {none_left:+.3f}, and the single effects add up to "
    f"{sum(harm.values()):+.3f}. The two numbers need not agree: later heads read the output of "
    "earlier heads, and heads can replace each other. So even a head whose removal has no effect may "
    "be in use."
)

# %% tags=["remove-input"]
resting = max(found, key=lambda head: found[head]["first"])
paragraph(
    "Two more points are important. In large models, many heads put most of their weight on the first "
    "position, because a softmax cannot attend to *nothing*. In this small model, no head puts more than "
    f"{found[resting]['first']:.2f} there. Also, weight on a position is not weight on its character: "
    "from the second layer on, a position also contains what the first layer wrote to it."
)

# %% [markdown]
# ## Does it know that Ivy will say *clay*?
#
# Text on which the model was not trained has more such answers. All begin with "Why, the ".
#
# **Predict.** How likely does the model find the first letter of the noun that was asked for? And that of the nouns of other
# questions?

# %%
unseen = alphabet.decode(plays(length=600_000).val.tolist())
places = [found.end() for found in re.finditer(r"\?\n\n\w+:\nWhy, the ", unseen)]
before = torch.tensor([alphabet.encode(unseen[at - 64 : at]) for at in places])
letters = torch.tensor([alphabet.index(unseen[at]) for at in places])
with eval_mode(net):
    likely = net(before)[:, -1].softmax(-1)[:, letters]  # (questions, their nouns)
asked = float(likely.diagonal().mean())
of_others = float(likely.mean())

# %% tags=["remove-input"]
assert len(places) > 20 and asked < 2 * of_others

paragraph(
    f"**Explain.** {asked:.3f}, and {of_others:.3f} for the nouns of other questions: it does not know the answer. It has "
    "learned letters and short words; in the claim [grammar_heads](../../experiments/grammar_heads/README.md), no head "
    "finds the repeated noun within 500 steps."
)

# %% [markdown]
# ## Summary
#
# - A single passage may be an exception. Measure over many windows, and compare with a baseline.
# - Weight on a position shows where a head reads. Removing the head shows whether the model needs it.
# - The effects of removing several heads do not add up, because later heads read earlier ones and can replace each other.
#
# ## Exercises
#
# **1.** Is the most local head local because of positions or because of characters? Examine it on a
# text that repeats one letter.

# %% tags=["hide-cell"]
# Mostly because of positions: with one repeated letter, all keys have the same character, so only positions distinguish
# them, and the head keeps most of its weight on the previous one.
letter = torch.full((1, 64), alphabet.index("e"))
same = {
    view.layer: measures.previous_mass(view.pattern, view.mask)
    for view in views(net, letter)
}
(by_place, by_text) = float(same[local[0]][local[1]]), found[local]["previous"]
assert by_place > 0.5 * by_text > baseline
{
    "on one letter": round(by_place, 3),
    "on the text": round(by_text, 3),
    "equal": round(baseline, 3),
}

# %% [markdown]
# **2.** Remove whole layers instead of heads. Which one matters more, and do the two effects add up?

# %% tags=["hide-cell"]
# The first one, because the second layer was trained on its output.
layers = {
    n: float((loss_without([(n, h) for h in range(4)]) - whole).mean())
    for n in (0, 1)
}
assert layers[0] > layers[1]
layers | {"both": none_left}

# %% [markdown]
# **3.** Which other measure distinguishes the heads? Try `js_divergence`, in nats, between the heads of
# the second layer.

# %% tags=["hide-cell"]
*_, last = views(net, ids)
divergence = measures.js_divergence(last.pattern, last.mask)
assert (
    torch.allclose(divergence, divergence.T) and float(divergence.max()) < 0.694
)  # ln 2
divergence

# %% [markdown]
# **4.** Look inside a pretrained model: a BERT or GPT-2 from transformers.

# %% [markdown]
# <details><summary>A solution</summary>
#
# Install the extra `hf`. A model of transformers gives its patterns as `output_attentions`; chapter 4 loads the
# weights of a BERT into `SelfAttention`, whose patterns can be drawn like those above.
#
# </details>

# %% [markdown]
# ## References
#
# - Clark et al. (2019), [What does BERT look at?](https://arxiv.org/abs/1906.04341)
# - Michel, Levy, Neubig (2019), [Are sixteen heads really better than one?](https://arxiv.org/abs/1905.10650)
# - Jain, Wallace (2019), [Attention is not explanation](https://arxiv.org/abs/1902.10186), and Wiegreffe,
#   Pinter (2019), [Attention is not not explanation](https://arxiv.org/abs/1908.04626).
# - Xiao et al. (2024), [Efficient streaming language models with attention
#   sinks](https://arxiv.org/abs/2309.17453).
# - Olsson et al. (2022), [In-context learning and induction heads](https://arxiv.org/abs/2209.11895).
