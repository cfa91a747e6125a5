# %% [markdown]
# # Exercises 5: positions
#
# You write three ways to tell attention where a token is. Prerequisite: chapter 10 of the course.
#
# Replace each `raise NotImplementedError` with your code and run the cell below it.
#
# Letters: T positions, from 0, C channels, H heads, D channels of a head.

# %%
import torch

# %% [markdown]
# ## 1. Sinusoids
#
# Channel 2i of position t is sin(t ω) and channel 2i + 1 is cos(t ω), with ω = 10000^(-2i / C).


# %% tags=["exercise"]
def sinusoid_table(T, C):
    """(T, C), C even."""
    ### BEGIN SOLUTION
    frequencies = 10_000.0 ** (-torch.arange(0, C, 2, dtype=torch.float64) / C)
    angles = torch.arange(T)[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)
    ### END SOLUTION


# %%
points(grade(sinusoid_table))

# %% [markdown]
# ## 2. Rotation
#
# At position t, the pair (a, b) of channels 2i and 2i + 1 becomes (a cos - b sin, a sin + b cos) of the
# angle t ω, with ω = 10000^(-2i / D).


# %% tags=["exercise"]
def rotate_pairs(x):
    """(..., T, D) -> (..., T, D)."""
    ### BEGIN SOLUTION
    T, D = x.shape[-2:]
    frequencies = 10_000.0 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    angles = torch.arange(T)[:, None] * frequencies
    a, b = x[..., ::2], x[..., 1::2]
    turned = a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()
    return torch.stack(turned, -1).flatten(-2)
    ### END SOLUTION


# %%
points(grade(rotate_pairs))

# %% [markdown]
# ## 3. ALiBi
#
# What is added to the scores of head h, from 1 to H: minus the distance of query and key times the slope 2^(-8h / H).


# %% tags=["exercise"]
def alibi_bias(T, H):
    """(H, T, T)."""
    ### BEGIN SOLUTION
    i = torch.arange(T, dtype=torch.float64)
    slopes = 2.0 ** (-8 * torch.arange(1, H + 1, dtype=torch.float64) / H)
    return -slopes[:, None, None] * (i[:, None] - i).abs()
    ### END SOLUTION


# %%
points(grade(alibi_bias))
