"""The setting `init_from`: start from the weights of another run or of a GPT-2."""

import hashlib

from torch import Tensor

from attnlab.data import Data
from attnlab.data.alphabets import to_plain
from attnlab.errors import BadInput
from attnlab.model import GPT
from attnlab.settings.roles import settings_with
from attnlab.settings.types import ModelSettings
from attnlab.trained.checkpoints import read_checkpoint, weights_of


def start_from(source: str, net: GPT, model: ModelSettings, data: Data) -> str:
    """Give the model the weights that `init_from` names, and return their SHA-256.

    The source is a run directory, a checkpoint, or hf:NAME of a GPT-2. BadInput if its weights
    belong to another model, or to other symbols.
    """
    if source.startswith("hf:"):
        from transformers import GPT2LMHeadModel

        from attnlab.trained.transformers import from_gpt2

        gpt2 = GPT2LMHeadModel.from_pretrained(source.removeprefix("hf:"))
        weights = from_gpt2(gpt2).state_dict()
    else:
        weights = trained_weights(source, model, data)
    try:
        net.load_state_dict(weights)
    except RuntimeError as error:
        why = " ".join(str(error).split())
        raise BadInput(f"init_from = {source} is of another model: {why}") from error
    digest = hashlib.sha256()
    for weight in net.state_dict().values():
        digest.update(weight.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def trained_weights(source: str, model: ModelSettings, data: Data) -> dict[str, Tensor]:
    """The weights of a run directory or a checkpoint. BadInput if it was trained on other symbols,
    or with other settings of the model, beside those of its start and dropout, which do not change
    what the weights compute."""
    checkpoint = read_checkpoint(source)
    stored = checkpoint["attnlab"]
    may_differ = {key.removeprefix("model.") for key in settings_with("start")} | {"dropout"}
    ours = model.plain()
    wrong = [
        f"model.{key}={value}"
        for key, value in stored["config"]["model"].items()
        if key not in may_differ and ours.get(key) != value
    ]
    if wrong or stored["alphabet"] != to_plain(data.alphabet):
        raise BadInput(f"init_from = {source} needs {' '.join(wrong) or 'data of its symbols'}")
    return weights_of(checkpoint)
