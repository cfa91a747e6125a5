"""Loss and accuracy by position, also at other lengths than that of the training."""

import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from attnlab.data import Data, sequences
from attnlab.data.contract import IGNORED, Batch
from attnlab.data.corpus import text
from attnlab.errors import BadInput
from attnlab.model import GPT
from attnlab.probes import measures
from attnlab.probes.capture import eval_mode
from attnlab.runs.settings import Settings
from attnlab.training.build import build
from attnlab.training.checkpoints import load_model, read_checkpoint
from attnlab.training.config import model_factory

LONGEST = 2**14  # a mask of length x length is built: 256 MB


def included_data() -> set[str]:
    """The import paths of the data that attnlab makes itself, without a file or a download: two
    texts, and every public function of `attnlab.data.sequences`.

    These are whole names, because a prefix would also allow what a module imports.
    """
    tasks = {
        f"{function.__module__}.{name}"
        for name, function in inspect.getmembers(sequences, inspect.isfunction)
        if function.__module__ == sequences.__name__ and not name.startswith("_")
    }
    return {"attnlab.data.corpus.tinyshakespeare", "attnlab.data.plays.plays"} | tasks


def at_lengths(
    net: GPT, data: Data, settings: Settings
) -> dict[str, tuple[GPT, Sequence[Batch], int]]:
    """The model, the validation batches and the length, for each of `data.eval_lengths`; BadInput
    for a length that does not fit the model or the data."""
    return {
        str(n): (at_length(net, settings, n), data.at_length(n).held_out("val", n), n)
        for n in settings["data"]["eval_lengths"] or []
    }


def at_length(net: GPT, settings: Settings, length: int) -> GPT:
    """A model with the same weights for `length` symbols; the same model, if they fit into it.

    The settings are those of the run. Raises BadInput if the length is out of range, or if the
    model has weights for each position.
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
    model = settings["model"] | {"block_size": length}
    longer = model_factory(settings | {"model": model})(net.vocab_size)
    try:
        longer.load_state_dict(net.state_dict())
    except RuntimeError as error:
        raise BadInput(f"{beyond}, on which the shapes of its weights depend") from error
    return longer.to(next(net.parameters())).train(net.training)  # device and dtype


def by_position(net: GPT, batches: Iterable[Batch], length: int) -> dict[str, Any]:
    """The loss and the accuracy of a model, at each of `length` positions and overall.

    Values are NaN where nothing is predicted, and the accuracies where a logit is not finite.
    """
    device = next(net.parameters()).device
    losses, right, counts = torch.zeros(3, length, dtype=torch.float64)
    with eval_mode(net):
        for x, y in batches:
            T = y.shape[1]
            logits = net(x.to(device)).cpu()
            losses[:T] += measures.cross_entropies(logits, y).sum(0)
            right[:T] += (logits.argmax(-1) == y).sum(0)  # IGNORED is no symbol
            right[:T] += torch.where(logits.isfinite().all(-1), 0.0, torch.nan).sum(0)
            counts[:T] += (y != IGNORED).sum(0)
    return {
        "predictions": int(counts.sum()),
        "loss": float(losses.sum() / counts.sum()),
        "accuracy": float(right.sum() / counts.sum()),
        "by_position": (losses / counts).tolist(),
        "accuracy_by_position": (right / counts).tolist(),
    }


def evaluate(
    target: Path, file: Path | None, length: int | None, *, trust: bool = False
) -> dict[str, Any]:
    """The loss of a model on the validation part of its own data or of a text file.

    `length` evaluates in windows of so many symbols, which may be longer than those of the
    training. Returns the name of the data, the length, that of the training, bits per byte (None
    for a task), and what `by_position` returns. BadInput if there is no such model or data, if
    the model has other symbols, or if the length does not fit.
    """
    net, alphabet = load_model(target, trust=trust)
    settings = read_checkpoint(target)["attnlab"]["config"]
    stored = settings["data"]
    data: Data
    if file is not None:
        data = text(str(file), stored.get("tokenizer", "characters"))
    elif trust or stored["_target_"] in included_data():
        data = build(stored, "data", apart=["batch_size", "eval_lengths", "source"])()
    else:
        raise BadInput(
            f"the run's data are not included in attnlab ({stored['_target_']}); name a text with "
            "--file or, if you trust the run, allow it to load them with --trust"
        )
    if list(data.alphabet) != list(alphabet):
        raise BadInput(f"{data.name} has other symbols than the model")
    T = net.block_size if length is None else length
    found = by_position(at_length(net, settings, T), data.at_length(T).held_out("val", T), T)
    sizes = {"data": data.name, "length": T, "trained_length": net.block_size}
    return sizes | {"bits_per_byte": data.bits_per_byte(found["loss"])} | found
