"""Load a model of transformers with its tokenizer, from a local folder or the hub."""

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
    """A model in eval mode and its tokenizer."""

    model: "PreTrainedModel"
    tokenizer: Any


def transformers() -> ModuleType:
    """Import transformers without its log messages and progress bars.

    Raises:
        BadInput: it is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise BadInput("this needs transformers: pip install 'attnlab[hf]'") from error
    logging.getLogger("transformers").setLevel(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()
    return transformers


def load_attention_model(name: str) -> Loaded:
    """Load a BERT or GPT-2 without its head, to look at its attention.

    Args:
        name: a local folder, or a name on the hub ("google-bert/bert-base-uncased"), which is
            downloaded once.

    Raises:
        BadInput: there is no such model, the hub cannot be reached, or it is of another family.
    """
    library = transformers()
    _check_family(library, name, FAMILIES)
    with _errors_as_bad_input(name):
        model = library.AutoModel.from_pretrained(name, trust_remote_code=False).eval()
        return Loaded(model, library.AutoTokenizer.from_pretrained(name, trust_remote_code=False))


def load_language_model(name: str) -> tuple["GPT2LMHeadModel", Any]:
    """Load a GPT-2 with its head, and its tokenizer.

    Raises:
        BadInput: as in `load_attention_model`.
    """
    library = transformers()
    _check_family(library, name, ("gpt2",))
    with _errors_as_bad_input(name):
        model = library.GPT2LMHeadModel.from_pretrained(name).eval()
        return model, library.AutoTokenizer.from_pretrained(name, trust_remote_code=False)


def encode(tokenizer: Any, text: str) -> Tensor:
    """Encode a text as ids, (N,) int64, with the special tokens that the tokenizer adds.

    Raises:
        BadInput: the tokenizer cannot encode the text.
    """
    try:
        return torch.tensor(tokenizer(text)["input_ids"], dtype=torch.long)
    except Exception as error:  # the tokenizers library raises no narrower type
        raise BadInput(f"the tokenizer cannot encode {text!r}: {first_line(error)}") from error


def _check_family(library: ModuleType, name: str, families: tuple[str, ...]) -> None:
    with _errors_as_bad_input(name):
        config = library.AutoConfig.from_pretrained(name, trust_remote_code=False)
    if config.model_type not in families:
        raise BadInput(f"{name} is a {config.model_type}; it must be a {' or '.join(families)}")


@contextmanager
def _errors_as_bad_input(name: str) -> Iterator[None]:
    """Turn any error of transformers or the hub into BadInput with one sentence."""
    try:
        yield
    except Exception as error:
        if Path(name).is_dir():
            raise BadInput(f"{name} does not contain a model: {first_line(error)}") from error
        raise BadInput(
            f"{name} is not a local folder and cannot be loaded from the hub: {first_line(error)}"
        ) from error
