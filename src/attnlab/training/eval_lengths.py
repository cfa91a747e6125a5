"""Loss and accuracy by position, also at other lengths than that of the training."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor

from attnlab.data.batches import IGNORED, Batch
from attnlab.data.corpora import Corpus
from attnlab.data.sequences import Sequences
from attnlab.errors import BadInput
from attnlab.model import GPT
from attnlab.probes import measures
from attnlab.probes.capture import eval_mode
from attnlab.training.factories import data_factory, model_factory

LONGEST = 2**14  # a mask of length x length is built: 256 MB


def at_length(net: GPT, config: Mapping[str, Any], length: int) -> GPT:
    """A model with the same weights for `length` symbols; the same model, if they fit into it.

    The configuration is that of the run, whose groups `model` and `attn` built the model. Raises
    BadInput if the length is out of range, or if the model has weights for each position.
    """
    if not 1 <= length <= LONGEST:
        raise BadInput(f"length = {length} must be from 1 to {LONGEST:,}")
    if length <= net.block_size:
        return net
    beyond = f"length = {length} is beyond model.block_size = {net.block_size}"
    if net.wpe is not None:
        raise BadInput(
            f"{beyond}, and the model has learned no embeddings for positions there; train with "
            "model.learned_positions=false, and attn=rotary or attn=alibi for example"
        )
    groups = OmegaConf.create(
        {"model": config["model"] | {"block_size": length}, "attn": config["attn"]}
    )
    longer = model_factory(groups.model, groups.attn)(net.vocab_size)
    assert isinstance(longer, GPT)
    try:
        longer.load_state_dict(net.state_dict())
    except RuntimeError as error:
        raise BadInput(f"{beyond}, on which the shapes of its weights depend") from error
    return longer.to(next(net.parameters())).train(net.training)  # device and dtype


def data_at(
    corpus: Corpus | Sequences, settings: Mapping[str, Any], length: int
) -> Corpus | Sequences:
    """The data for windows of `length` symbols: the same text, or sequences of that length.

    The settings are those of the group `data`. Raises BadInput if there are no such windows.
    """
    if isinstance(corpus, Sequences) and length != corpus.length:
        made = data_factory(OmegaConf.create(dict(settings) | {"length": length}))()
        assert isinstance(made, Sequences)
        corpus = made
    corpus.check_length(length)
    return corpus


def by_position(
    net: GPT, batches: Iterable[Batch], length: int, ids: Tensor | None = None
) -> dict[str, Any]:
    """The loss and the accuracy of a model, at each of `length` positions and in all.

    `ids` (V,) are the model's ids of the symbols of the data, if they are different. Values are
    NaN where nothing is predicted, and the accuracies where a logit is not finite.
    """
    device = next(net.parameters()).device
    losses, right, counts = torch.zeros(3, length, dtype=torch.float64)
    with eval_mode(net):
        for x, y in batches:
            scored, targets, T = y != IGNORED, y, y.shape[1]
            if ids is not None:
                x, targets = ids[x], torch.where(scored, ids[y.clamp(min=0)], IGNORED)
            logits = net(x.to(device)).cpu()
            losses[:T] += measures.cross_entropies(logits, targets).sum(0)
            right[:T] += (logits.argmax(-1) == targets).sum(0)  # IGNORED is no symbol
            right[:T] += torch.where(logits.isfinite().all(-1), 0.0, torch.nan).sum(0)
            counts[:T] += scored.sum(0)
    return {
        "predictions": int(counts.sum()),
        "loss": float(losses.sum() / counts.sum()),
        "accuracy": float(right.sum() / counts.sum()),
        "by_position": (losses / counts).tolist(),
        "accuracy_by_position": (right / counts).tolist(),
    }
