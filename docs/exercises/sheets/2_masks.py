# %% [markdown]
# # Exercises 2: masks
#
# You write the masks of a decoder, and a kernel for attnlab. Prerequisite: chapter 3
# of the course; exercise 4 needs chapter 7.
#
# Replace each `raise NotImplementedError` with your code and run the cell below it. In every
# mask, True means that the query (row) may attend to the key (column).

# %%
import torch
import torch.nn.functional as F

# %% [markdown]
# ## 1. The causal mask


# %% tags=["exercise"]
def causal_mask(T):
    """(T, T) bool: a query sees itself and what came before."""
    ### BEGIN SOLUTION
    return torch.ones(T, T, dtype=torch.bool).tril()
    ### END SOLUTION


# %%
points(grade(causal_mask))

# %% [markdown]
# ## 2. A masked softmax
#
# The weight of blocked keys must be exactly 0, for scores of any size, also in fp16. Do not modify the
# caller's tensor.


# %% tags=["exercise"]
def masked_softmax(scores, mask):
    """(..., T, S), (T, S) bool -> (..., T, S), each row sums to 1."""
    ### BEGIN SOLUTION
    return scores.masked_fill(~mask, float("-inf")).softmax(-1)
    ### END SOLUTION


# %%
points(grade(masked_softmax))

# %% [markdown]
# ## 3. A mask for texts of different lengths
#
# The texts in a batch are padded at the end to T tokens. A query may attend to a key if the key is neither
# in the future nor padding.


# %% tags=["exercise"]
def decoder_mask(lengths, T):
    """(B,) integers from 1 to T -> (B, T, T) bool."""
    ### BEGIN SOLUTION
    keys = torch.arange(T) < lengths[:, None]  # (B, T)
    return causal_mask(T) & keys[:, None, :]
    ### END SOLUTION


# %%
points(grade(decoder_mask))

# %% [markdown]
# ## 4. Cross-attention with padding
#
# Queries of a decoder attend to the encoder's memory, which has padding. There is no causal mask between
# two texts.


# %% tags=["exercise"]
def cross_attention(q, k, v, may_attend):
    """q (B, H, T, D), k (B, H, S, D), v (B, H, S, E), may_attend (B, S) bool -> (B, H, T, E)."""
    ### BEGIN SOLUTION
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return masked_softmax(scores, may_attend[:, None, None, :]) @ v
    ### END SOLUTION


# %%
points(grade(cross_attention))

# %% [markdown]
# ## 5. A kernel
#
# You can train with this function: `python train.py attn.kernel=yourmodule.kernel`. `scale`
# multiplies the scores. `dropout` is the probability of dropping a weight of the pattern; in evaluation,
# it is 0. The grader uses `assert_kernel_equal`, which also takes your own kernels.


# %% tags=["exercise"]
def kernel(q, k, v, *, mask, scale, dropout):
    """q, k, v (B, H, T, D), mask (T, T) bool -> (B, H, T, D)."""
    ### BEGIN SOLUTION
    pattern = masked_softmax(q @ k.mT * scale, mask)
    return F.dropout(pattern, dropout) @ v
    ### END SOLUTION


# %%
points(grade(kernel))
