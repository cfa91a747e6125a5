"""The detector for leaks that exist in training mode only.

Letters: B batch, T time, V symbols.
"""

import copy
from dataclasses import replace

import torch
from torch import nn

from attnlab.checkup.findings import FAULT, NOT_APPLICABLE, Finding, within
from attnlab.checkup.model_adapter import ModelAdapter


def training_mode(
    adapter: ModelAdapter, T: int, generator: torch.Generator, tolerance: float
) -> Finding:
    """Does a later token change an earlier logit after `model.train()`?

    Such leaks pass every test in eval mode: a mask that depends on `self.training`, a BatchNorm
    over time. Each call holds one sequence and starts from the same seed, so that dropout drops
    the same entries.

    Args:
        adapter: the model in eval mode, of which a copy is examined.
        tolerance: the share of the largest change that counts as rounding.
    """
    assert isinstance(adapter.module, nn.Module)
    model = replace(adapter, model=copy.deepcopy(adapter.module).train(), rows=1, seeded=True)
    ids = model.tokens(generator, 1, T)
    other = (ids + 1 + model.tokens(generator, 1, T) % (model.vocab_size - 1)) % model.vocab_size
    before = model.logits(ids)
    if not torch.equal(before, model.logits(ids)):
        headline = "random in training mode even with a fixed seed, so nothing can be compared"
        return Finding("training mode", NOT_APPLICABLE, headline)
    if not bool(before.isfinite().all()):
        headline = "in training mode logits are not finite"
        return Finding("training mode", FAULT, headline, "not_finite")
    cuts = sorted({1, 2, T // 4, T // 2, 3 * T // 4, T - 1} & set(range(1, T)))
    position = torch.arange(T)
    changed = [model.logits(torch.where(position >= cut, other, ids)) for cut in cuts]
    changes = (torch.cat(changed) - before).abs().amax(-1)  # (cuts, T)
    earlier = changes * (position < torch.tensor(cuts)[:, None])
    ahead = float(earlier.max() / changes.max().clamp_min(1e-30))
    first = cuts[int(earlier.amax(-1).argmax())]
    return within(
        "training mode",
        ahead,
        max(tolerance, 1e-6),
        ok=f"no leak in training mode either ({len(cuts)} suffixes of T = {T} changed)",
        wrong=(
            f"in training mode only, changing the tokens from {first} on changes earlier logits "
            f"(by {ahead:.2g} of the largest change)"
        ),
        cause="training_leak",
        numbers={"largest ahead": ahead},
    )
