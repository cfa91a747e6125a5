# %% [markdown]
# # 8. One function, many kernels; and precision
#
# **Two programs disagree in the seventh digit. Is one of them wrong?**
#
# > The lady doth protest too much, methinks.
#
# Two programs read this line with the same weights. One computes attention by the written-out formula, the other
# with PyTorch's fused function, and their probabilities of the next character are not equal to the last bit. They
# compute the same function, up to rounding. This chapter measures the rounding errors in each number
# format, and shows mistakes that appear only in 16 bits.
#
# **You will learn** to
#
# - test that two implementations agree, in their outputs and in their gradients;
# - choose a tolerance from the format of the numbers;
# - explain why scores and softmax are computed in fp32 when a model is trained in bf16 or fp16;
# - fill masks so that they work in every format.
#
# **Prerequisites:** chapters 1 and 3, and how floating-point numbers are stored.

# %% tags=["hide-input"]
import math
import sys

import torch
import torch.nn.functional as F
from torch import nn

from attnlab.attention import (
    AttentionConfig,
    SelfAttention,
    TorchMHA,
    build_mask,
    causal,
    manual,
)
from attnlab.installation import lab_path
from attnlab.plotting.drawing import COLORS, styled

sys.path.append(str(lab_path("docs")))
from chapters.shown import panels, paragraph, picture, table

stream = torch.Generator().manual_seed(0)
B, H, T, D = 2, 4, 64, 32
MASK = build_mask(causal, T)
SCALE = D**-0.5


def inputs(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, B, H, T, D, generator=generator, dtype=torch.float64).to(
        dtype
    )


def written_out(q, k, v):
    s = q @ k.mT * SCALE
    s = s.masked_fill(~MASK, float("-inf"))
    pattern = s.softmax(-1)
    return pattern @ v


def fused(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def with_gradients(function, dtype):
    q, k, v = (x.requires_grad_() for x in inputs(dtype))
    y = function(q, k, v)
    weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape)
    (y.double() * weights).sum().backward()
    return [y.detach().double(), *(x.grad.double() for x in (q, k, v))]


def apart(one, other):
    return [
        float((a - b).abs().max() / b.std()) for a, b in zip(one, other, strict=True)
    ]


def all_in(dtype, factor):
    q, k, v = inputs(dtype)
    return written_out(q * factor, k, v)


def scores_in_fp32(dtype, factor):
    q, k, v = inputs(dtype)
    return manual(q * factor, k, v, mask=MASK, scale=SCALE, dropout=0.0)


def error(function, dtype, factor):
    q, k, v = inputs(
        dtype
    ).double()  # the same rounded inputs, so only the computation differs
    exact = written_out((q.to(dtype) * factor).double(), k, v)
    y = function(dtype, factor).double()
    return float((y - exact).square().mean().sqrt() / exact.std())


# %% [markdown]
# ## SDPA equals the formula
#
# `F.scaled_dot_product_attention` never stores the pattern (chapter 5), but it computes the same sums as these lines,
# which follow the formula.
#
# **Predict.** Are the two results equal to the last bit? How far apart may they be?

# %%
q, k, v = inputs(torch.float32)
s = (q @ k.mT * SCALE).masked_fill(~MASK, float("-inf"))
by_formula = s.softmax(-1) @ v
by_kernel = F.scaled_dot_product_attention(q, k, v, is_causal=True)
float((by_kernel - by_formula).abs().max())

# %% [markdown]
# The table compares outputs and gradients in two formats, relative to the standard deviation of each.

# %% tags=["remove-input"]
PAIR = {"fp64": torch.float64, "fp32": torch.float32}
rows = []
largest = {}
for name, dtype in PAIR.items():
    differences = apart(
        with_gradients(fused, dtype), with_gradients(written_out, dtype)
    )
    largest[name] = max(differences)
    rows.append(
        [name, f"{torch.finfo(dtype).eps:.1e}", *(f"{x:.1e}" for x in differences)]
    )

table(["format", "eps", "output", "gradient of q", "of k", "of v"], rows)

# %% tags=["remove-input"]
assert all(largest[name] < 100 * torch.finfo(d).eps for name, d in PAIR.items())

paragraph(
    f"**Explain.** The largest difference is {largest['fp64']:.0e} in fp64 "
    f"and {largest['fp32']:.0e} in fp32: less than 100 eps, where eps is the distance from 1 to the next "
    "number. The results are not bit-identical, because the order of the sums differs. Tests therefore "
    "use a tolerance, which in fp64 is small enough to detect mistakes."
)

# %% [markdown]
# ## nn.MultiheadAttention, with the same weights
#
# `attn=torch_mha` is PyTorch's layer with attnlab's interface. Two conventions differ: True in a bool mask
# means *blocked* here and *may attend* in SDPA, and by default, the layer averages the pattern over heads.

# %%
config = AttentionConfig(H * D, H, block_size=T)
ours, theirs = SelfAttention(config).double(), TorchMHA(config).double()
theirs.load_state_dict(ours.state_dict())
x = torch.randn(2, T, H * D, generator=stream, dtype=torch.float64)
with torch.no_grad():
    layers_apart = float((ours(x) - theirs(x)).abs().max())

# %% tags=["remove-input"]
assert layers_apart < 1e-12
with torch.no_grad():
    assert torch.allclose(ours.pattern(x), theirs.pattern(x), atol=1e-12)

    plain = nn.MultiheadAttention(H * D, H, batch_first=True).double()
    blocked, _ = plain(x, x, x, attn_mask=~MASK)  # True = blocked
    changed = x.clone()
    changed[:, -1] += 1
    assert torch.equal(
        plain(changed, changed, changed, attn_mask=~MASK)[0][:, :-1], blocked[:, :-1]
    )

paragraph(
    f"Our layer and PyTorch's differ by {layers_apart:.0e} in fp64. To train all three: "
    "`python train.py -m preset=micro attn=sdpa,manual,torch_mha name=kernels`."
)

# %% [markdown]
# ## Sixteen bits
#
# | format | bits of the exponent | bits of the mantissa |
# |---|---|---|
# | fp32 | 8 | 23 |
# | fp16 | 5 | 10 |
# | bf16 | 8 | 7 |
#
# fp16 has smaller steps; bf16 has the range of fp32.

# %% tags=["remove-input"]
FORMATS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
rows = [
    [
        name,
        f"{torch.finfo(d).eps:.1e}",
        f"{torch.finfo(d).max:.1e}",
        f"{torch.finfo(d).tiny:.1e}",
    ]
    for name, d in FORMATS.items()
]
assert torch.finfo(torch.bfloat16).eps == 8 * torch.finfo(torch.float16).eps
table(["format", "eps", "largest number", "smallest normal number"], rows)

# %% [markdown]
# **Predict.** We compute attention in two ways: everything in 16 bits, or only the inputs in 16 bits and scores and
# softmax in fp32, as attnlab's `manual` and PyTorch's kernels do. We multiply the queries to make the scores larger, as they become during training. Which of
# the errors grow?

# %%
FACTORS = (1, 4, 16, 64)
BF16 = torch.bfloat16
FP16 = torch.float16
lines = {
    "bf16, all of it": [error(all_in, BF16, f) for f in FACTORS],
    "fp16, all of it": [error(all_in, FP16, f) for f in FACTORS],
    "bf16, scores in fp32": [error(scores_in_fp32, BF16, f) for f in FACTORS],
    "fp16, scores in fp32": [error(scores_in_fp32, FP16, f) for f in FACTORS],
}

# %% tags=["hide-input"]
all_bf16, all_fp16, kept_bf16, kept_fp16 = lines.values()
assert 4 < all_bf16[0] / all_fp16[0] < 12  # three bits less: eight times
assert all_bf16[-1] > 3 * all_bf16[0]  # grows with the scores ...
assert (
    max(kept_bf16) < 3 * min(kept_bf16) < all_bf16[-1]
)  # ... unless they are in fp32

with styled():
    figure, (place,) = panels(1, width=7.4, height=4.2)
    for number, (name, values) in enumerate(lines.items()):
        dash = "-" if "all" in name else "--"
        place.plot(FACTORS, values, "o" + dash, color=COLORS[number % 2], label=name)
    place.set_xscale("log", base=2)
    place.set_yscale("log")
    place.set(
        xlabel="standard deviation of the scores",
        ylabel="error, share of the output's std",
    )
    place.legend()
ALT = "The error in 16 bits grows with the size of scores, unless scores and softmax are in fp32"
picture(figure, "precision", ALT)

# %% tags=["remove-input"]
paragraph(
    f"**Explain.** With scores of unit size, the error of bf16 is {all_bf16[0] / all_fp16[0]:.1f} times that of fp16; "
    f"three fewer bits in the mantissa predict 8. With scores 64 times as large, the error of pure bf16 is "
    f"{all_bf16[-1]:.1%} of the output's standard deviation, and {kept_bf16[-1]:.2%} with scores in fp32. "
    "An error ε in a score multiplies its exponential by exp(ε), so it is a *relative* error of the weight, and "
    "rounding errors grow with the scores."
)

# %% [markdown]
# ## Masks in sixteen bits
#
# **Predict.** A blocked score is filled with −1e9. What happens in fp16?

# %%
s = torch.zeros(2, 2, dtype=torch.float16)
lower = build_mask(causal, 2)
try:
    s.masked_fill(~lower, -1e9)
except RuntimeError as refused:
    complaint = str(refused)
    print(complaint)

# %% [markdown]
# **Explain.** −1e9 does not fit into fp16. −1e4 does, but scores can be smaller. Every format has −∞, which always
# masks, if each query has at least one key.

# %% tags=["hide-input"]
assert "overflow" in complaint
assert s.masked_fill(~lower, float("-inf")).softmax(-1).tolist() == [
    [1, 0],
    [0.5, 0.5],
]
assert bool(torch.full((2,), float("-inf")).softmax(-1).isnan().all())  # no key: 0/0
even = torch.full((2,), -1e9).softmax(-1)
assert even.tolist() == [0.5, 0.5]  # no key: equal weights, unnoticed

# %% [markdown]
# ## Overflow
#
# **Predict.** Which is the largest score whose exponential is a finite number, in each format?

# %%
limits = {name: math.log(torch.finfo(dtype).max) for name, dtype in FORMATS.items()}

# %% tags=["remove-input"]
paragraph(
    f"**Explain.** {', '.join(f'{limit:.1f} in {name}' for name, limit in limits.items())}. Trained models have "
    "larger scores. A softmax therefore subtracts the largest score of a row first, which changes nothing in exact "
    "arithmetic (chapter 1)."
)

# %% tags=["hide-input"]
large = torch.tensor([100.0, 99.0])
assert not bool((large.exp() / large.exp().sum()).isfinite().all())
assert bool(large.softmax(-1).isfinite().all())

# %% [markdown]
# To train in mixed precision, add `trainer.precision=bf16-mixed`: weights and updates stay in fp32, matrix
# products run in bf16, and attnlab computes scores in fp32. fp16 also needs loss scaling, because small
# gradients would become 0; attnlab does not support it and refuses `16-mixed`.
#
# ## Summary
#
# - SDPA, the formula and `nn.MultiheadAttention` are one function. They differ by rounding.
# - Compare implementations in fp64, outputs and gradients, with a tolerance of about 100 eps.
# - The mantissa of bf16 has three fewer bits than that of fp16, so its error is about eight times as large.
#   In both formats, the error grows with the scores.
# - Compute scores and softmax in fp32, and fill masks with −∞.
#
# ## Exercises
#
# **1.** Which numbers follow 256 in bf16 and in fp16? What does that mean for positions stored in bf16?

# %% tags=["hide-cell"]
# In bf16, the next number is 258, so positions 256 and 257 become equal.
steps = {
    name: float(torch.tensor(256.0, dtype=d).nextafter(torch.tensor(9e3, dtype=d)))
    for name, d in FORMATS.items()
    if name != "fp32"
}
assert steps == {"fp16": 256.25, "bf16": 258.0}
assert float(torch.tensor(257, dtype=torch.bfloat16)) == 256.0
steps

# %% [markdown]
# **2.** Sum 4,096 ones in bf16, one after another. Where does the sum stop growing, and why?

# %% tags=["hide-cell"]
# At 256: the next number is 258, and 257 is rounded back to 256. For this reason, matrix products
# accumulate in fp32.
total = torch.tensor(0, dtype=torch.bfloat16)
for _ in range(4096):
    total = total + 1
assert float(total) == 256
float(total), float(torch.ones(4096, dtype=torch.bfloat16).sum())

# %% [markdown]
# **3.** If only q and k are rounded to bf16, why is the error of the output still larger for larger scores?

# %% tags=["hide-cell"]
# The rounded inputs give other scores. Their error grows with the scores, and no kernel can remove it.
shift = {}
for factor in (1, 16):
    q, k, v = inputs()
    rounded = [x.to(torch.bfloat16).double() for x in (q * factor, k, v)]
    shift[factor] = float(
        (written_out(*rounded) - written_out(q * factor, k, v)).std()
    )
assert shift[16] > 2 * shift[1]
shift

# %% [markdown]
# ## References
#
# - Micikevicius et al. (2018), [Mixed precision training](https://arxiv.org/abs/1710.03740).
# - Dao et al. (2022), [FlashAttention](https://arxiv.org/abs/2205.14135).
# - PyTorch: [Numerical accuracy](https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html) and
#   [scaled_dot_product_attention](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html).
# - Goldberg (1991), [What every computer scientist should know about floating-point
#   arithmetic](https://doi.org/10.1145/103162.103163).
