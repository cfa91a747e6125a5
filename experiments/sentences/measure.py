"""What a trained model's heads do: how far its queries and keys are aligned, which heads and keys
it can lose, and how near its heads look.

Letters: B batch, H heads, T time, D channels of a head, V symbols.
"""

import copy
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from attnlab.data.corpus import tinyshakespeare
from attnlab.model import GPT
from attnlab.probes.capture import views
from attnlab.trained.checkpoints import load_model

WINDOWS = 32
NEAR = 4  # keys, the query's own among them
FROM = 32  # queries count that see at least this many keys


def opened(folder: Path) -> tuple[GPT, Tensor]:
    """The model of a run, and the first windows (B, T + 1) of the validation text."""
    net, _ = load_model(folder)
    T = net.block_size
    return net, tinyshakespeare().val[: WINDOWS * (T + 1)].view(WINDOWS, T + 1)


@torch.no_grad()
def alignment(folder: Path) -> dict[str, float]:
    """The cosine of each query with the key that it reads most, mean over layers and heads."""
    net, ids = opened(folder)
    cosines = []
    for block, view in zip(net.blocks, views(net, ids[:, :-1]), strict=True):
        q, k, _ = inputs_of(net, block, ids[:, :-1])
        cosine = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT  # (B, H, T, T)
        read = view.pattern.argmax(-1, keepdim=True)
        cosines.append(cosine.gather(-1, read)[..., FROM:, 0].mean())
    return {"cosine": float(torch.stack(cosines).mean())}


def inputs_of(net: GPT, block: torch.nn.Module, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (B, H, T, D) of a layer in the model."""
    found = []
    handle = block.attn.register_forward_pre_hook(lambda _, args: found.append(args[0]))
    net(ids)
    handle.remove()
    return block.attn.split(found[0])


@torch.no_grad()
def loss(net: GPT, ids: Tensor) -> float:
    """Mean loss of windows (B, T + 1), in nats."""
    return float(F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()))


def without(net: GPT, heads: list[int]) -> GPT:
    """A copy that does not read the outputs of some heads, counted through all layers."""
    changed = copy.deepcopy(net)
    for head in heads:
        layer, h = divmod(head, net.blocks[0].attn.n_head)
        D = net.blocks[layer].attn.head_size
        with torch.no_grad():
            changed.blocks[layer].attn.proj.weight[:, h * D : (h + 1) * D] = 0
    return changed


def removable_heads(folder: Path) -> dict[str, float]:
    """The share of heads that can be removed together before the loss rises by 0.02 or 0.1 nats,
    in the order of what each costs alone; and what the costliest and all of them cost."""
    net, ids = opened(folder)
    heads = range(len(net.blocks) * net.blocks[0].attn.n_head)
    whole = loss(net, ids)
    price = {head: loss(without(net, [head]), ids) - whole for head in heads}
    order = sorted(heads, key=price.__getitem__)
    together = [loss(without(net, order[: n + 1]), ids) - whole for n in heads]
    found = {"costliest head": max(price.values()), "all heads": together[-1]}
    for bound in (0.02, 0.1):
        found[f"removable below {bound}"] = sum(cost < bound for cost in together) / len(heads)
    return found


@torch.no_grad()
def near_heads(folder: Path) -> dict[str, float]:
    """The share of heads that give more than half of their weight to the nearest keys."""
    net, ids = opened(folder)
    i, j = torch.arange(net.block_size)[:, None], torch.arange(net.block_size)
    shares = []
    for view in views(net, ids[:, :-1]):
        near = view.pattern * ((i - j >= 0) & (i - j < NEAR))
        shares.append(near.sum(-1)[..., FROM:].mean((0, 2)))  # (H,)
    return {"near heads": float((torch.cat(shares) > 0.5).float().mean())}


@torch.no_grad()
def weight_and_cost(folder: Path) -> dict[str, float]:
    """How well the weight on a key predicts what its removal costs, in a model of one layer.

    For the last query of each window, every key but its own is blocked alone, in all heads. The
    cost is the absolute change of the next character's log probability; the weight is the mean
    over the heads. Spearman's rank correlation over all windows and keys.
    """
    net, ids = opened(folder)
    (block,) = net.blocks
    T = net.block_size
    (view,) = views(net, ids[:, :-1])
    weights = view.pattern[:, :, -1, :-1].mean(1)  # (B, T - 1)
    causal = block.attn.may_attend
    costs = []
    try:
        before = last_log_probability(net, ids)
        for removed in range(T - 1):
            block.attn.may_attend = lambda q, k, r=removed: causal(q, k) & ((k != r) | (q < T - 1))
            costs.append((last_log_probability(net, ids) - before).abs())
    finally:
        block.attn.may_attend = causal
    return {"rank correlation": rank_correlation(weights, torch.stack(costs, 1))}


def last_log_probability(net: GPT, ids: Tensor) -> Tensor:
    """Of the character after each window (B, T + 1): (B,)."""
    return net(ids[:, :-1])[:, -1].log_softmax(-1).gather(1, ids[:, -1:]).squeeze(1)


def rank_correlation(x: Tensor, y: Tensor) -> float:
    """Spearman's, of the entries of two tensors; ties have arbitrary order."""
    ranks = torch.stack([t.flatten().argsort().argsort().double() for t in (x, y)])
    return float(torch.corrcoef(ranks)[0, 1])
