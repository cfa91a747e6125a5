"""Starts a new run from the weights of a run, of a checkpoint, or of a GPT-2 of transformers."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnlab.errors import BadInput, printable
from attnlab.training.checkpoints import read_stored_model
from attnlab.training.lightning_module import TaskModule

FREE = {"init", "qk_std", "dropout", "_partial_"}  # settings of `model` that may differ
LONGEST = 300  # characters of the settings that a message quotes


def digest_of(weights: Mapping[str, Tensor]) -> str:
    """The SHA-256 of weights, in their order."""
    digest = hashlib.sha256()
    for x in weights.values():
        digest.update(x.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class InitialWeights:
    """Weights to start a new run from."""

    source: str  # `init_from` as typed
    weights: dict[str, Tensor]  # by the names of the model's parameters
    model: dict[str, Any]  # the settings of the group `model` that belong to them
    alphabet: Any  # of the run that trained them, as checkpoints store it; None: not known

    @property
    def sha256(self) -> str:
        """Of the weights; it belongs to the identity of the run that starts from them."""
        return digest_of(self.weights)

    @property
    def record(self) -> dict[str, Any]:
        """The entry in metrics.json."""
        return {"init_from": {"source": self.source, "sha256": self.sha256}}

    def fill(self, lit: TaskModule) -> None:
        """Put the weights into the model of a new run; BadInput says what to set if it has another
        model or other symbols."""
        name = f"init_from = {self.source}"
        ours, free = lit.recipe["config"]["model"], set(FREE)
        if self.model.get("learned_positions") is False:
            free.add("block_size")
        other = {k: x for k, x in self.model.items() if k not in free and ours.get(k) != x}
        if other:
            shown = {k: x if isinstance(x, str) else json.dumps(x) for k, x in other.items()}
            needed = [f"model.{k}={x}" for k, x in shown.items()]
            raise BadInput(f"{name} needs {printable(' '.join(needed)[:LONGEST])}")
        if self.alphabet not in (None, lit.recipe["alphabet"]):
            raise BadInput(
                f"{name} was trained on other symbols than those of {lit.corpus.name}; use its "
                "data, or data of the same tokenizer"
            )
        theirs = {key: tuple(x.shape) for key, x in self.weights.items()}
        shapes = {key: tuple(x.shape) for key, x in lit.net.state_dict().items()}
        size = theirs.get("wte.weight", (len(lit.corpus.alphabet),))[0]
        if size != len(lit.corpus.alphabet):
            raise BadInput(
                f"{name} has {size:,} symbols, and {lit.corpus.name} has "
                f"{len(lit.corpus.alphabet):,}; set data.tokenizer to the tokenizer of the weights"
            )
        for key in sorted(theirs.keys() | shapes.keys()):
            if theirs.get(key) != shapes.get(key):
                there, here = (str(x.get(key, "missing")) for x in (theirs, shapes))
                raise BadInput(
                    f"{name} does not fit: {printable(key[:99])} is {there}, here {here}"
                )
        lit.net.load_state_dict(self.weights)


def read_initial_weights(source: str) -> InitialWeights:
    """What `init_from` names: a run directory, a checkpoint, or "hf:" and a GPT-2's directory or
    hub name. Nothing that a file asks for is built or imported; BadInput if there is no such
    thing, it is damaged, or our GPT cannot express it."""
    if not source.startswith("hf:"):
        stored = read_stored_model(Path(source).expanduser())
        model, alphabet = stored.recipe["config"]["model"], stored.recipe["alphabet"]
        return InitialWeights(source, stored.weights, model, alphabet)
    from attnlab.interop.gpt2 import from_gpt2, settings_of_gpt2
    from attnlab.interop.transformers_loading import load_gpt2

    theirs = load_gpt2(source.removeprefix("hf:"))
    weights = from_gpt2(theirs).state_dict()
    return InitialWeights(source, weights, settings_of_gpt2(theirs.config), None)
