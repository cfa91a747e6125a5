"""Documents packed into one sequence. Letters: B batch, T time."""

import torch
from torch import Tensor

from attnlab.checkup.blackbox import relative
from attnlab.checkup.coverage import Meant
from attnlab.checkup.findings import FAULT, Finding, passed, skipped, span
from attnlab.checkup.model_adapter import ModelAdapter
from attnlab.checkup.outputs import find_logits

_SMEAR = 4  # a convolution or a token shift reads at most so many tokens back


def check_documents(adapter: ModelAdapter, meant: Meant) -> Finding:
    """Does the second of two packed documents read the first, or get other logits than alone?"""
    documents, separator = meant.documents, meant.separator
    name, T = "documents", min(adapter.block_size, 32)
    if documents is None and separator is None:
        return skipped(name, "neither documents nor separator was given")
    n = T // 2  # the first token of the second document, or the separator between them
    first = n if documents else n + 1

    def logits(ids: Tensor, document: Tensor) -> Tensor:
        if documents is None:
            return adapter.logits(ids)
        with torch.no_grad():
            output = documents(adapter.model, ids.to(adapter.device), document.to(adapter.device))
        return find_logits(output, tuple(ids.shape), adapter.vocab_size).to("cpu", torch.float64)

    border, ids = -1 if separator is None else separator, adapter.tokens(T)
    ids = adapter.next_ids(ids).where(ids == border, ids)
    changed = adapter.next_ids(ids)
    changed = adapter.next_ids(changed).where(changed == border, changed)
    if separator is not None:
        ids[n] = separator
    rows = torch.cat([ids[None], torch.where(torch.eye(T, dtype=torch.bool)[:n], changed, ids)])
    document = (torch.arange(T) >= n).long().expand(len(rows), T)
    whole = logits(rows, document)
    moved = (whole[1:] - whole[:1]).abs().amax(-1)  # (n, T), by the token changed
    reads = moved > max(adapter.tolerance, 1e-6) * moved.max()
    if not reads[:, :n].any():
        return skipped(name, "the first document does not read itself")
    across = reads[:, first:].any(-1).nonzero().flatten().tolist()
    if not across and reads[:, n].sum() <= _SMEAR:  # a separator that ends it reads all of it
        across = reads[:, n].nonzero().flatten().tolist()
    if across:
        smeared = across[0] >= n - _SMEAR
        cause = "documents_smeared" if smeared else "documents_read"
        headline = f"in a document that begins at {n}, tokens of the one before are read"
        return Finding(name, FAULT, f"{headline} ({span('position', across)})", cause)
    if not meant.reset_positions:
        return passed(name, "a document does not read the one before")
    alone = [(logits(ids[None, k:], document[:1, k:] * 0), k) for k in (n, first)]
    change = min(relative(x[:, first - k :], whole[:1, first:]) for x, k in alone)
    numbers = {"change": change}
    if change <= 1e-3:
        return passed(name, "a document gets the logits that it gets alone", numbers)
    headline = f"a document reads only itself, but gets other logits alone (by {change:.2g})"
    return Finding(name, FAULT, headline, "positions_not_reset", numbers)
