# %% [markdown]
# # Exercises 3: heads
#
# You split channels into heads, merge them again, and write a complete layer. Prerequisite: chapter 4 of
# the course.
#
# Replace each `raise NotImplementedError` with your code and run the cell below it.
#
# Letters: B batch, T tokens, C channels, H heads, D = C // H channels of a head.

# %%
import torch
import torch.nn.functional as F
from torch import nn

# %% [markdown]
# ## 1. Split
#
# Head h gets the channels h·D to (h+1)·D.


# %% tags=["exercise"]
def split_heads(x, n_head):
    """(B, T, C) -> (B, H, T, D)."""
    ### BEGIN SOLUTION
    B, T, C = x.shape
    return x.view(B, T, n_head, C // n_head).transpose(1, 2)
    ### END SOLUTION


# %%
points(grade(split_heads))

# %% [markdown]
# ## 2. Merge


# %% tags=["exercise"]
def merge_heads(y):
    """(B, H, T, D) -> (B, T, C): the inverse of `split_heads`."""
    ### BEGIN SOLUTION
    return y.transpose(1, 2).flatten(2)
    ### END SOLUTION


# %%
points(grade(merge_heads))

# %% [markdown]
# ## 3. Grouped queries
#
# In grouped-query attention, several neighboring query heads use one key-value head: with 6 query heads
# and 3 key-value heads, they use the heads 0, 0, 1, 1, 2, 2.


# %% tags=["exercise"]
def repeat_kv(k, n_head):
    """(B, H_kv, T, D) -> (B, H, T, D), with H = n_head a multiple of H_kv."""
    ### BEGIN SOLUTION
    return k.repeat_interleave(n_head // k.shape[1], dim=1)
    ### END SOLUTION


# %%
points(grade(repeat_kv))

# %% [markdown]
# ## 4. Multi-head attention
#
# Causal, with four matrices (C, C): `Q = X W_q`, `K = X W_k`, `V = X W_v`, and the merged heads times
# `W_o`.


# %% tags=["exercise"]
def multi_head(x, W_q, W_k, W_v, W_o, n_head):
    """x (B, T, C), four matrices (C, C) -> (B, T, C)."""
    ### BEGIN SOLUTION
    q, k, v = (split_heads(x @ W, n_head) for W in (W_q, W_k, W_v))
    T, D = q.shape[-2:]
    mask = torch.ones(T, T, dtype=torch.bool).tril()
    scores = (q @ k.mT / D**0.5).masked_fill(~mask, float("-inf"))
    return merge_heads(scores.softmax(-1) @ v) @ W_o
    ### END SOLUTION


# %%
points(grade(multi_head))

# %% [markdown]
# ## 5. A layer
#
# Write a module that works in a GPT: causal, with dropout on the pattern in training mode only. The grader uses
# `assert_causal`, which works on any layer.


# %% tags=["exercise"]
class Layer(nn.Module):
    def __init__(self, n_embd, n_head, dropout):
        super().__init__()
        ### BEGIN SOLUTION
        self.n_head = n_head
        self.dropout = dropout
        self.qkv = nn.Linear(n_embd, 3 * n_embd)
        self.proj = nn.Linear(n_embd, n_embd)
        ### END SOLUTION

    def forward(self, x):
        """(B, T, C) -> (B, T, C)."""
        ### BEGIN SOLUTION
        q, k, v = (split_heads(y, self.n_head) for y in self.qkv(x).chunk(3, dim=-1))
        T, D = q.shape[-2:]
        mask = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
        pattern = (q @ k.mT / D**0.5).masked_fill(~mask, float("-inf")).softmax(-1)
        pattern = F.dropout(pattern, self.dropout, training=self.training)
        return self.proj(merge_heads(pattern @ v))
        ### END SOLUTION


# %%
points(grade(Layer))
