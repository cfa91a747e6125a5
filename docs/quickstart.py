# %% [markdown]
# # Quick start
#
# You change one thing about the attention of a small GPT, and find out what the change did. It takes about
# three minutes on two cores, with or without a GPU. Run the cells from top to bottom.
#
# **Predict first.** In attention, every score is a dot product of a query and a key, divided by the square root
# of the width of a head. What happens if nobody divides? Write down whether the loss gets worse, and by how
# much: the model starts at 4.2 nats per character and ends near 2.5.

# %%
import torch

import attnlab
from attncheck import checkup
from attnlab.attention import SelfAttention

small = [
    "preset=micro",
    "model.n_head=1",
    "trainer.max_steps=150",
    "trainer.val_check_interval=150",
]
outputs = "outputs"  # in Colab, to keep the runs: mount your Drive and write "/content/drive/MyDrive/attnlab"

# %% [markdown]
# ## Two models, three seeds
#
# `sdpa` is ordinary attention and `unscaled` leaves out the division. With the same seed, both start with
# equal weights and see equal batches. If you stop a cell, run it again: it continues where it stopped.

# %%
runs = attnlab.sweep(
    *small, "attn=sdpa,unscaled", "seed=0,1,2", outputs=outputs, name="quickstart", jobs=2
)
runs[["attn", "seed", "val_loss"]]

# %% [markdown]
# ## What the change did
#
# Differences are paired by seed. Three seeds are too few for a verdict; the sentences say how many would
# probably decide.

# %%
attnlab.compare(runs)

# %% [markdown]
# Was it as you predicted? `attn/entropy` says why: 1 is an even spread over all earlier characters, 0 is all
# weight on one.

# %%
runs.groupby("attn")[["val_loss", "attn/entropy"]].mean()

# %% [markdown]
# ## A layer of your own
#
# A subclass overrides one step. This one divides by the square root twice, so its scores are too small.


# %%
class TooSoft(SelfAttention):
    """Scores are divided by the square root of D once more."""

    def modify(self, scores: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return super().modify(scores, x) / self.head_size**0.5


own = attnlab.sweep(*small, "seed=0,1,2", attn=TooSoft, outputs=outputs, name="quickstart", jobs=2)
attnlab.compare(runs, own)

# %% [markdown]
# ## Is it sound?
#
# A layer that reads later characters would have a wonderful loss. attnlab tried yours before it trained it;
# the checkup examines the trained model.

# %%
model = attnlab.load_model(own.folder[0], attn=TooSoft)[0]
print(checkup(model, name="TooSoft"))

# %% [markdown]
# ## Next
#
# - `attnlab.train("attn=flipped", *small)` trains a model whose mask is turned around: read its sentence.
# - The course explains attention in ten chapters, and docs/variants.md lists all variants.
