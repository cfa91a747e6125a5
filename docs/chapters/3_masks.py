# %% [markdown]
# # 3. Masks and leaks
#
# **Which letter comes next?**
#
# > To be, or not to be, that is the que▢
#
# You know the line. A model that may look at ▢ "knows" it too: it reads the answer. A wrong mask lets
# it, and raises no error. All shapes match, and the loss decreases, often faster than it should, but the
# model is useless. This chapter trains a model with each of seven common mistakes, and finds them by
# testing which outputs depend on which inputs.
#
# **You will learn** to
#
# - name seven mistakes with masks and reshapes, and the symptom of each;
# - prove a leak by changing one token, without looking inside the model;
# - use the entropy of a text as a lower bound on the loss of a causal model;
# - test your own decoder for leaks with one line of code.
#
# **Prerequisites:** chapters 1 and 2.

# %% tags=["hide-input"]
import ast
import inspect
import sys
from functools import partial

import torch
from matplotlib.figure import Figure

from attncheck import (
    CheckFailed,
    assert_causal,
    assert_kernel_equal,
    checkup,
    prepared,
)
from attncheck.causal import dependence
from attncheck.states import EVALUATION
from attnlab import attention as lab
from attnlab.attention import AttentionConfig, SelfAttention, attention, core
from attnlab.installation import lab_path
from attnlab.plotting.drawing import styled
from attnlab.plotting.maps import shades
from attnlab.trained.checkpoints import load_model

sys.path.append(str(lab_path("docs")))
from chapters.shown import paragraph, picture, table, train

# %% [markdown]
# ## Look at the patterns
#
# A mask answers one question: may this query look at this key? True means that it may. The figure shows a
# correct layer (`sdpa`) and seven with one mistake each: twelve tokens, random queries and keys. Rows are
# queries, columns are keys, and everything above the diagonal is the future.
#
# **Predict.** Which of the seven put weight on the future?

# %% tags=["hide-input"]
VARIANTS = {  # name of the variant -> what differs from SelfAttention's defaults
    "sdpa": {},
    "flipped": {"may_attend": lab.flipped},
    "peek_one": {"may_attend": lab.peek_one},
    "zero_fill": {"kernel": lab.zero_fill},
    "finite_fill": {"kernel": lab.finite_fill},
    "post_softmax_mask": {"kernel": lab.post_softmax_mask},
    "softmax_over_queries": {"kernel": lab.softmax_over_queries},
    "unmerged_heads": {"kernel": lab.unmerged_heads},
}
T = 12
stream = torch.Generator().manual_seed(0)
x = torch.randn(1, T, 16, generator=stream)
weight = torch.randn(48, 16, generator=stream) / 3

patterns = {}
for name, difference in VARIANTS.items():
    layer = SelfAttention(AttentionConfig(16, 2, T, bias=False), **difference)
    with torch.no_grad():
        layer.qkv.weight.copy_(weight)
        patterns[name] = layer.pattern(x)[0, 0]


causal_mask = lab.build_mask(lab.causal, T).numpy()


def pictures(maps, name, across, down, what, alt):
    with styled():
        figure = Figure(figsize=(12, 6.6))
        places = figure.subplots(2, 4)
        for place, (title, values) in zip(places.flat, maps.items(), strict=True):
            place.imshow(shades(values.numpy(), causal_mask))
            place.set_title(
                title.replace("softmax_over", "softmax\nover"), fontsize=13
            )
            place.set_xticks([])
            place.set_yticks([])
            place.grid(False)
            place.set(xlabel=across, ylabel=down)
        figure.supxlabel(
            f"{what}, on a square-root scale from 0 (white) to 1 (dark);\nblue on itself and the "
            "past, orange on the future; gray: 0, where a causal mask blocks",
            fontsize=12,
        )
    return picture(figure, name, alt)


ALT = "The patterns of the eight variants; four of them have weight above the diagonal, on the future"
pictures(patterns, "patterns", "key", "query", "weight", ALT)

# %% tags=["remove-input"]
future = {name: float(p.triu(1).sum(-1)[:-1].mean()) for name, p in patterns.items()}
looks_causal = ("sdpa", "finite_fill", "post_softmax_mask", "softmax_over_queries")
assert all(future[name] == 0 for name in looks_causal)
assert (
    min(
        future[name]
        for name in ("flipped", "peek_one", "zero_fill", "unmerged_heads")
    )
    > 0.05
)

paragraph(
    "**Explain.** Four of the seven visibly put weight on the future. The mean per row is "
    f"{future['flipped']:.2f} for flipped, {future['peek_one']:.2f} for peek_one, "
    f"{future['zero_fill']:.2f} for zero_fill, and {future['unmerged_heads']:.2f} for "
    "unmerged_heads, which mixes up the rows. `post_softmax_mask` and `softmax_over_queries` look "
    "causal but leak through their denominators, and `finite_fill` *is* causal with these "
    "weights. It is therefore not enough to look at the pattern."
)

# %% [markdown]
# ## The seven mistakes
#
# Two of the mistakes are wrong masks, and five are kernels that apply a correct mask wrongly. You can train each
# with `train.py attn=NAME`. First, the correct mask and kernel:

# %%
print(inspect.getsource(core.causal))
print(inspect.getsource(core.manual))

# %% [markdown]
# **Predict.** Find the mistake in each of the seven. They are shuffled, and their names and comments are left
# out. Which is which? The answers are in exercise 5, at the end of the chapter.


# %% tags=["hide-input"]
def source(mistake):
    weights = inspect.getclosurevars(mistake).nonlocals.get("weights", mistake)
    return inspect.getsource(weights)


def anonymous(code, name):
    """Code under another name, without its docstring and comments, which say what the mistake is."""
    tree = ast.parse(code)
    function = tree.body[0]
    function.name = name
    if ast.get_docstring(function):
        del function.body[0]
    return ast.unparse(tree) + "\n"


WRONG = {
    name: next(iter(parts.values())) for name, parts in VARIANTS.items() if parts
}
SHUFFLED = (
    *("softmax_over_queries", "peek_one", "zero_fill", "unmerged_heads"),
    *("finite_fill", "flipped", "post_softmax_mask"),
)
assert {*SHUFFLED} == {*WRONG}
for letter, name in zip("abcdefg", SHUFFLED, strict=True):
    print(anonymous(source(WRONG[name]), f"mistake_{letter}"))

# %% [markdown]
# ## What training shows
#
# We train the eight variants for 200 steps each on generated plays, whose exact entropy is
# known. A causal model cannot have a lower loss than this entropy, except by chance. Three of the mistakes (`flipped`,
# `peek_one` and `zero_fill`) also train [in a browser](../lab.html#mask), on Shakespeare, beside a causal model.
#
# **Predict.** Which mistakes make the loss *better* than that of the correct model? Which ones does it not
# reveal?

# %%
trained = train(
    "leaks",
    f"attn={','.join(VARIANTS)} preset=micro data=plays data.length=60000 "
    "data.batch_size=6 optim.lr=1e-2 optim.warmup_steps=20 "
    "trainer.max_steps=200 trainer.val_check_interval=200",
)
runs = trained.set_index("attn")
loss = runs.val_loss.to_dict()
floor = runs.val_floor["sdpa"]

# %% [markdown]
# ## What the checkup finds
#
# `checkup` takes any callable from tokens to logits. It changes tokens in fp64, and records which logits
# change. It does not look inside the model. We run it on the trained models.

# %%
reports = {}
for name in VARIANTS:
    model, _ = load_model(runs.folder[name])
    reports[name] = checkup(model, name=name)  # takes a second or two
wrong = {}
for name, report in reports.items():
    wrong[name] = [r for r in report.results if r.status in ("fault", "suspicious")]

# %% tags=["remove-input"]
rows = []
for name, found in wrong.items():
    said = found[0].message.splitlines()[0] if found else "healthy"
    rows.append(
        [
            f"`{name}`",
            f"{loss[name]:.3f}",
            f"{loss[name] - loss['sdpa']:+.3f}",
            said,
        ]
    )

table(["variant", "validation loss", "minus sdpa", "checkup"], rows)

# %% tags=["remove-input"]
SAYS = {
    "flipped": "never earlier ones",
    "peek_one": "up to t +",
    "zero_fill": "every position reads all",
    "finite_fill": "weights 10,000 times as large",
    "post_softmax_mask": "every position reads all",
    "softmax_over_queries": "read",
    "unmerged_heads": "read",
}
assert reports["sdpa"].healthy and not wrong["sdpa"]
for name, words in SAYS.items():
    assert reports[name].healthy == (
        name == "finite_fill"
    )  # a suspicion, not a fault
    assert words in wrong[name][0].message, (name, wrong[name])
assert loss["sdpa"] > floor
assert (
    loss["flipped"] < floor and loss["peek_one"] < floor
)  # impossible without a leak
for name in ("zero_fill", "unmerged_heads"):
    assert floor < loss[name] < loss["sdpa"] - 0.05
for name in ("softmax_over_queries", "post_softmax_mask", "finite_fill"):
    assert abs(loss[name] - loss["sdpa"]) < 0.05

paragraph(
    f"**Explain.** The entropy of the validation text is {floor:.3f} nats per character. The losses of `flipped` "
    f"({loss['flipped']:.3f}) and `peek_one` ({loss['peek_one']:.3f}) are below it, which proves "
    f"a leak: these models copy the next character. `zero_fill` ({loss['zero_fill']:.3f}) and "
    f"`unmerged_heads` ({loss['unmerged_heads']:.3f}) have a lower loss than `sdpa` "
    f"({loss['sdpa']:.3f}). In a loss curve, such a leak looks like a better model. The losses of "
    f"`softmax_over_queries` ({loss['softmax_over_queries']:.3f}), `post_softmax_mask` "
    f"({loss['post_softmax_mask']:.3f}) and `finite_fill` ({loss['finite_fill']:.3f}) are within 0.05 "
    "nats of it, so the loss does not reveal these mistakes after so few steps. Each "
    "variant has one seed, so only the order of magnitude matters."
)

# %% [markdown]
# A map shows which position reads which token: row t shows how much the logits at t change with token j. The
# map of a healthy model is a lower triangle.
#
# **Predict.** Two of the eight maps are clean. Which mistake does the map not show, and why?

# %% tags=["hide-input"]
reads = {}
for name in VARIANTS:
    model, _ = load_model(runs.folder[name])
    with prepared(model).in_state(EVALUATION) as tried:
        reads[name] = dependence(
            tried, tried.draw(1, T)
        ).float()  # share of the largest change
    assert bool((reads[name].triu(1) > 1e-8).any()) == (
        name not in ("sdpa", "finite_fill")
    )

ALT = "Maps of which position reads which token; all but sdpa and finite_fill read the future"
pictures(
    reads, "reads", "token changed", "position", "share of the largest change", ALT
)

# %% [markdown]
# **Explain.** `finite_fill` looks healthy here too, because it masks correctly with these weights. Only one
# check detects it, which makes all weights 10,000 times as large, so that −1e4 is no longer far below the scores. The
# checkup therefore calls it suspicious, and the other six faulty.

# %% [markdown]
# ## Symptoms, detection, and fixes
#
# | mistake | symptom | how to detect it | how to fix it |
# |---|---|---|---|
# | mask flipped (`triu` for `tril`, or the other polarity of a bool mask) | the loss approaches 0; samples are useless, because at the end of a text there is nothing to copy | change the last token: earlier logits must not change | key ≤ query. True means *may attend* in `scaled_dot_product_attention` and *blocked* in `nn.MultiheadAttention`: name the polarity when you build the mask |
# | diagonal off by one | the same, because every target is one step ahead | change only token t + 1, and compare the logits at t | `tril(diagonal=0)`; test every pair (t, j), not only distant pairs |
# | diagonal off by one to the other side, `key < query` | NaN in the first row (0 in `scaled_dot_product_attention`): its query has no key, and the softmax is 0/0 | `attention` refuses a query without a key (chapter 1, exercise 3) | key ≤ query: a position may read itself, because its target is the next one |
# | fill with 0 | a lower loss than the correct model, because blocked keys get the weight e⁰ | rows of the pattern over the allowed keys do not sum to 1 | fill with −∞ |
# | a finite fill such as −1e4 | none until scores fall below it | multiply queries by a large number and test the mask | fill with −∞, or with `torch.finfo(dtype).min` in the dtype of the scores |
# | mask after the softmax | the loss is about the same; early rows sum to much less than later rows | rows do not sum to 1, and their sums change with later tokens | mask the scores, then take the softmax |
# | softmax over the wrong axis | none in the loss of a short training | columns sum to 1 and rows do not; use different sizes for all axes in a test | `dim=-1` with keys last |
# | heads merged without the transpose | a lower loss than the correct model; the outputs of heads end up at other positions | change one token: earlier rows change although the softmax is causal | `y.transpose(1, 2).flatten(2)`, never `y.reshape(B, T, C)` of (B, H, T, D) |

# %% [markdown]
# ## One line for a test suite
#
# `assert_causal` raises an AssertionError that says what reads what, and in which module. Use it in the tests of any
# project that has a decoder.

# %%
assert_causal(load_model(runs.folder["sdpa"])[0])  # passes
try:
    assert_causal(load_model(runs.folder["peek_one"])[0])
except AssertionError as error:
    complaint = str(error)
    print(complaint)

# %% tags=["hide-input"]
assert "position t reads up to t +" in complaint

# %% [markdown]
# ## Summary
#
# - A wrong mask raises no error. The loss often looks better than that of the correct model.
# - A pattern that looks causal proves nothing: a softmax over blocked keys leaks through its denominator.
# - If changing a token changes earlier logits, the model leaks. `assert_causal` tests this.
# - Fill blocked scores with −∞ before the softmax over the keys.
#
# ## Exercises
#
# **1.** `attention` takes a mask as `may_attend` or as `blocked`. Show that they are opposites, and
# that numbers other than 0 and 1 are refused.

# %% tags=["hide-cell"]
q, k, v = torch.randn(3, T, 4, generator=stream)
mask = lab.build_mask(lab.causal, T)
assert torch.equal(
    attention(q, k, v, may_attend=mask)[0], attention(q, k, v, blocked=~mask)[0]
)
try:
    attention(q, k, v, may_attend=mask * 2)
except ValueError as error:
    print(error)

# %% [markdown]
# **2.** Write a kernel with an eighth mistake: add the boolean mask to the scores. Does the checkup
# recognize it?


# %% tags=["hide-cell"]
def added(q, k, v, mask):
    return (core.scores(q, k, scale=q.shape[-1] ** -0.5) + mask).softmax(-1) @ v


try:
    assert_kernel_equal(added)
except CheckFailed as failed:
    print(failed)
    assert "added as 0 and 1" in str(failed)

# %% [markdown]
# **3.** How large must queries be for `finite_fill` to read the future?

# %% tags=["hide-cell"]
# A blocked key wins if all allowed scores are below -1e4. The first query has only one key, so this
# takes q . k < -1e4.
kernel = partial(lab.finite_fill, mask=mask, scale=1.0, dropout=0.0)
one_hot = torch.eye(T)[None, None]
key = torch.ones(1, 1, T, 1)
ahead = {
    size: float(
        kernel(-size * torch.ones(1, 1, T, 1), key, one_hot)[0, 0, 0, 1:].sum()
    )
    for size in (1.0, 9e3, 1.1e4)
}
assert ahead[1.0] == ahead[9e3] == 0 and ahead[1.1e4] > 0.99
ahead

# %% [markdown]
# **4.** Prove a leak without looking inside the model. Hint: no causal model can predict uniform
# random tokens.

# %% [markdown]
# <details><summary>A solution</summary>
#
# Train the model on such tokens. Each target has a probability of 1/V, so no causal model's loss is below ln V,
# except by chance; a model that reads ahead copies its target. The claim
# [flipped_mask](../../experiments/flipped_mask/README.md) turns this into a bet with a known error rate.
#
# </details>

# %% [markdown]
# **5.** Which of the seven mistakes above is which?

# %% tags=["hide-cell"]
for letter, name in zip("abcdefg", SHUFFLED, strict=True):
    print(f"mistake_{letter} is {name}:\n{source(WRONG[name])}")

# %% [markdown]
# ## References
#
# - Vaswani et al. (2017), [Attention is all you need](https://arxiv.org/abs/1706.03762), section 3.2.3.
# - PyTorch's [scaled_dot_product_attention](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html)
#   (True = may attend) and [MultiheadAttention](https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html)
#   (True = blocked).
# - Published code with such mistakes: [what the checkup finds](../checkup-results.md).
