"""Loss and accuracy by position, of a run and of the verb `evaluate`, at any length."""

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import torch

from attnlab.data import Data, sequences
from attnlab.data.contract import IGNORED, Alphabet, Batch
from attnlab.data.corpus import Corpus, text
from attnlab.errors import BadInput
from attnlab.model import GPT
from attnlab.probes import measures
from attnlab.probes.capture import eval_mode
from attnlab.settings.bind import bind, model_factory
from attnlab.settings.own_code import Node
from attnlab.settings.types import ConfigGroup, ModelSettings
from attnlab.trained.checkpoints import model_settings_of, open_model

LONGEST_TEXT = 2**14  # a mask of length x length is built: 256 MB


@dataclass(frozen=True)
class AtLength:
    """A model and the validation data in windows of one length."""

    net: GPT
    batches: Sequence[Batch]
    length: int


def at_lengths(
    net: GPT, data: Data, lengths: Iterable[int], model: ModelSettings, attn: ConfigGroup
) -> list[AtLength]:
    """The model and the validation batches for each length; BadInput for a length that does not
    fit the model or the data. The settings are those of the run."""
    return [
        AtLength(at_length(net, model, attn, n), data.at_length(n).held_out("val", n), n)
        for n in lengths
    ]


def at_length(net: GPT, model: ModelSettings, attn: Node, length: int) -> GPT:
    """A model with the same weights for `length` symbols; the same model, if they fit into it.

    The settings are those of its run. Raises BadInput if the length is out of range, or if the
    model has weights for each position.
    """
    if not 1 <= length <= LONGEST_TEXT:
        raise BadInput(f"length = {length} must be from 1 to {LONGEST_TEXT:,}")
    if length <= net.block_size:
        return net
    beyond = f"length = {length} is beyond model.block_size = {net.block_size}"
    if net.wpe is not None:
        raise BadInput(
            f"{beyond}, and the model has learned no embeddings for positions there; train with "
            "model.positions=none, and attn=rotary or attn=alibi for example"
        )
    make = model_factory(model.model_copy(update={"block_size": length}), attn, seed=0)
    longer = make(net.vocab_size)
    try:
        longer.load_state_dict(net.state_dict())
    except RuntimeError as error:
        raise BadInput(f"{beyond}, on which the shapes of its weights depend") from error
    return longer.to(next(net.parameters())).train(net.training)  # device and dtype


class PositionLosses(TypedDict):
    """The loss in nats and the accuracy of a model, overall and at each position."""

    predictions: int
    loss: float
    accuracy: float
    by_position: list[float]  # losses
    accuracy_by_position: list[float]


class Evaluation(PositionLosses):
    """The result of `evaluate`."""

    data: str  # the name
    length: int  # of the windows
    trained_length: int
    bits_per_byte: float | None  # None for a task


def by_position(net: GPT, batches: Iterable[Batch], length: int) -> PositionLosses:
    """The loss and the accuracy of a model, at each of `length` positions and overall.

    Values are NaN where nothing is predicted, and the accuracies where a logit is not finite.
    """
    device = next(net.parameters()).device
    losses = torch.zeros(length, dtype=torch.float64)
    right = torch.zeros_like(losses)
    counts = torch.zeros_like(losses)
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


def data_of_run(stored: ConfigGroup, alphabet: Alphabet, *, trust: bool) -> Data:
    """The data of a run, in the symbols of its model. BadInput unless they are included in attnlab
    or the run is trusted."""
    if not trust and stored["_target_"] not in included_data():
        raise BadInput(
            f"the run's data are not included in attnlab ({stored['_target_']}); name a text with "
            "--file or, if you trust the run, allow it to load them with --trust"
        )
    apart = ["batch_size", "eval_lengths", "source"]
    if "tokenizer" in stored:
        # Its tokenizer.json may have moved; the checkpoint has what was in it.
        data = bind(stored | {"tokenizer": "bytes"}, "data", ignored=apart)()
        return in_symbols_of_the_model(data, alphabet)
    data = bind(stored, "data", ignored=apart)()
    if list(data.alphabet) != list(alphabet):
        raise BadInput(f"{data.name} has other symbols than the model")
    return data


def in_symbols_of_the_model(data: Corpus, alphabet: Alphabet) -> Corpus:
    """A text encoded by the alphabet of a checkpoint; BadInput if this lacks a character."""
    try:
        return data.encoded_by(alphabet)
    except BadInput as error:
        raise BadInput(f"{data.name} has other symbols than the model: {error}") from error


def evaluate(
    target: Path, file: Path | None, length: int | None, *, trust: bool = False
) -> Evaluation:
    """The loss of a model on the validation part of its own data or of a text file.

    `length` evaluates in windows of so many symbols, which may be longer than those of the
    training. BadInput if there is no such model or data, if the model has other symbols, or if the
    length does not fit.
    """
    opened = open_model(target, trust=trust)
    net = opened.net
    model, attn = model_settings_of(opened.settings)
    stored = opened.settings["data"]
    if file is None:
        data = data_of_run(stored, opened.alphabet, trust=trust)
    elif stored["_target_"].startswith(f"{sequences.__name__}."):
        raise BadInput(f"{target} was trained on a task, so it cannot read the text {file}")
    else:
        data = in_symbols_of_the_model(text(str(file), "bytes"), opened.alphabet)
    T = net.block_size if length is None else length
    (at,) = at_lengths(net, data, [T], model, attn)
    measured = by_position(at.net, at.batches, T)
    return {
        "data": data.name,
        "length": T,
        "trained_length": net.block_size,
        "bits_per_byte": data.bits_per_byte(measured["loss"]),
        **measured,
    }
