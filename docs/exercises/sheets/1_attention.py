# %% [markdown]
# # Exercises 1: scores and attention
#
# You write attention from queries, keys, and values. Prerequisite: chapter 1 of the course; the last
# three exercises need chapters 2 and 3.
#
# Replace each `raise NotImplementedError` with your code and run the cell below it. `grade` runs your
# function and attnlab's on the same inputs, and describes your mistake if it is a common one.
#
# Letters: B batch, H heads, T queries, S keys, D channels of a head.

# %%
import math

import torch

# %% [markdown]
# ## 1. Scores
#
# Scaled dot products of queries (..., T, D) with keys (..., S, D): a tensor (..., T, S).


# %% tags=["exercise"]
def scores(q, k):
    """(..., T, D), (..., S, D) -> (..., T, S)."""
    ### BEGIN SOLUTION
    return q @ k.mT / math.sqrt(q.shape[-1])
    ### END SOLUTION


# %%
points(grade(scores))

# %% [markdown]
# ## 2. Softmax
#
# Write the softmax with `exp` and `sum`, without `torch.softmax`. Each row must sum to 1, and scores of
# 1,000 must not overflow.


# %% tags=["exercise"]
def softmax(scores):
    """(..., T, S) -> (..., T, S), each row sums to 1."""
    ### BEGIN SOLUTION
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(-1, keepdim=True)
    ### END SOLUTION


# %%
points(grade(softmax))

# %% [markdown]
# ## 3. Attention
#
# The average of the values, with the softmax of the scores as weights. There is no mask yet.


# %% tags=["exercise"]
def attention(q, k, v):
    """(..., T, D), (..., S, D), (..., S, E) -> (..., T, E)."""
    ### BEGIN SOLUTION
    return softmax(scores(q, k)) @ v
    ### END SOLUTION


# %%
points(grade(attention))

# %% [markdown]
# ## 4. Additive scores
#
# Bahdanau's score of a query with a key is `v · tanh(W q + U k)`. Compute all pairs at once. Hint:
# `x[:, :, None]` inserts an axis.


# %% tags=["exercise"]
def additive_scores(q, k, W, U, v):
    """q (B, T, D_q), k (B, S, D_k), W (A, D_q), U (A, D_k), v (A,) -> (B, T, S)."""
    ### BEGIN SOLUTION
    return ((q @ W.mT)[:, :, None] + (k @ U.mT)[:, None]).tanh() @ v
    ### END SOLUTION


# %%
points(grade(additive_scores))

# %% [markdown]
# ## 5. Is it a different model without the scale?
#
# No: the same patterns are possible. Return other queries and keys, for which scores *without* the
# division by √D give the pattern of `q` and `k` with the division. Scale both by the same factor.


# %% tags=["exercise"]
def same_without_scale(q, k):
    """(T, D), (S, D) -> two tensors of the same shapes."""
    ### BEGIN SOLUTION
    factor = q.shape[-1] ** 0.25
    return q / factor, k / factor
    ### END SOLUTION


# %%
points(grade(same_without_scale))

# %% [markdown]
# ## 6. Does a fill of −1e4 mask?
#
# Not always. Find queries and keys for which some row has more than half of its weight on the future,
# although the blocked scores are filled with −1e4. The scores are `q · k / √D`.


# %% tags=["exercise"]
def finite_fill_leak():
    """Queries and keys, each (T, D)."""
    ### BEGIN SOLUTION
    return torch.full((4, 1), -2e4), torch.ones(4, 1)
    ### END SOLUTION


# %%
points(grade(finite_fill_leak))

# %% [markdown]
# ## 7. Can the mask come after the softmax?
#
# No: it leaks. Find two tensors of scores (T, T) that differ only in the future (above the diagonal), but whose
# patterns differ in the past if the mask is applied after the softmax.


# %% tags=["exercise"]
def late_mask_leak():
    """Two tensors of scores, each (T, T)."""
    ### BEGIN SOLUTION
    first = torch.zeros(3, 3)
    second = first.clone()
    second[0, 2] = 5.0
    return first, second
    ### END SOLUTION


# %%
points(grade(late_mask_leak))
