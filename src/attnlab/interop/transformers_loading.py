"""Load a model of transformers with its tokenizer, from a local directory or the hub."""

import logging
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnlab.errors import BadInput, first_line

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel, PreTrainedModel


def transformers() -> ModuleType:
    """Import transformers without its messages and progress bars; BadInput if it is missing."""
    try:
        import transformers
    except ImportError as error:
        raise BadInput("this needs transformers: pip install transformers") from error
    logging.getLogger("transformers").setLevel(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()
    return transformers


def load_attention_model(name: str) -> tuple["PreTrainedModel", Any]:
    """Load a BERT or GPT-2 without its head, in eval mode, and its tokenizer.

    Args:
        name: a local directory, or a hub name ("google-bert/bert-base-uncased"), which is
            downloaded once.

    Raises:
        BadInput: there is no such model, the hub cannot be reached, or it is of another family.
    """
    return _load(name, ("bert", "gpt2"), "AutoModel")


def load_language_model(name: str) -> tuple["GPT2LMHeadModel", Any]:
    """Load a GPT-2 with its head, in eval mode, and its tokenizer; see `load_attention_model`."""
    return _load(name, ("gpt2",), "GPT2LMHeadModel")


def load_gpt2(name: str) -> "GPT2LMHeadModel":
    """Load a GPT-2 with its head, in eval mode, which may lack a tokenizer; see
    `load_attention_model`."""
    model: GPT2LMHeadModel = _load(name, ("gpt2",), "GPT2LMHeadModel", tokenizer=False)[0]
    return model


def encode(tokenizer: Any, text: str) -> Tensor:
    """Encode a text as ids, (N,) int64, with the special tokens that the tokenizer adds.

    Raises BadInput if it cannot encode the text.
    """
    try:
        return torch.tensor(tokenizer(text)["input_ids"], dtype=torch.long)
    except Exception as error:  # the tokenizers library raises no narrower type
        raise BadInput(f"the tokenizer cannot encode {text!r}: {first_line(error)}") from error


def _load(
    name: str, families: tuple[str, ...], model_class: str, *, tokenizer: bool = True
) -> tuple[Any, Any]:
    library = transformers()
    try:
        # Code in the directory of a model is never run.
        family = library.AutoConfig.from_pretrained(name, trust_remote_code=False).model_type
        if family in families:
            loader = getattr(library, model_class)
            model = loader.from_pretrained(name, trust_remote_code=False).eval()
            if not tokenizer:
                return model, None
            return model, library.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # transformers and the hub have no common error
        if Path(name).is_dir():
            raise BadInput(f"{name} does not contain a model: {first_line(error)}") from error
        raise BadInput(
            f"{name} is not a local directory and failed to load from the hub: {first_line(error)}"
        ) from error
    raise BadInput(f"{name} is a {family}; it must be a {' or '.join(families)}")
