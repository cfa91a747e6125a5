"""From a name to a model of transformers with its tokenizer: a local folder, or the hub."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnlab.errors import BadInput, first_line

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel, PreTrainedModel

FAMILIES = ("bert", "gpt2")


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode, and the tokenizer that belongs to it."""

    model: "PreTrainedModel"
    tokenizer: Any


def transformers() -> ModuleType:
    """The package, quiet.

    Raises:
        BadInput: it is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise BadInput(
            "models of transformers need that package: pip install 'attnlab[hf]'"
        ) from error
    logging.getLogger("transformers").setLevel(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()
    return transformers


def load_attention_model(name: str) -> Loaded:
    """A BERT or GPT-2 without its head, for looking at its attention.

    Args:
        name: a local folder, or a name on the hub ("google-bert/bert-base-uncased"), which is
            downloaded once.

    Raises:
        BadInput: there is no such model, the hub cannot be reached, or it is of another family.
    """
    library = transformers()
    _check_family(library, name, FAMILIES)
    with _told(name):
        model = library.AutoModel.from_pretrained(name).eval()
        return Loaded(model, library.AutoTokenizer.from_pretrained(name))


def load_language_model(name: str) -> tuple["GPT2LMHeadModel", Any]:
    """A GPT-2 with its head, and its tokenizer.

    Raises:
        BadInput: as `load_attention_model`.
    """
    library = transformers()
    _check_family(library, name, ("gpt2",))
    with _told(name):
        model = library.GPT2LMHeadModel.from_pretrained(name).eval()
        return model, library.AutoTokenizer.from_pretrained(name)


def encode(tokenizer: Any, text: str) -> Tensor:
    """A text as a model's own ids, (N,) int64, with what its tokenizer adds at the ends.

    Raises:
        BadInput: the tokenizer does not know a character.
    """
    try:
        return torch.tensor(tokenizer(text)["input_ids"], dtype=torch.long)
    except Exception as error:  # the tokenizers library raises nothing narrower
        raise BadInput(f"the tokenizer cannot read {text!r}: {first_line(error)}") from error


def _check_family(library: ModuleType, name: str, families: tuple[str, ...]) -> None:
    with _told(name):
        config = library.AutoConfig.from_pretrained(name)
    if config.model_type not in families:
        raise BadInput(f"{name} is a {config.model_type}; it must be a {' or '.join(families)}")


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Whatever transformers and the hub raise about a name is one sentence."""
    try:
        yield
    except Exception as error:
        if Path(name).is_dir():
            raise BadInput(f"{name} holds no model: {first_line(error)}") from error
        raise BadInput(
            f"{name} is no local folder, and the hub does not give it: {first_line(error)}"
        ) from error
