"""Loads models of transformers with their tokenizers, and computes their patterns."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnlab.attention.self_attention import SelfAttention
from attnlab.errors import BadInput, first_line
from attnlab.interop.bert import from_bert
from attnlab.interop.gpt2 import attention_from_gpt2
from attnlab.probes.capture import View, inputs_of, view_of

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel, PreTrainedModel


def transformers() -> ModuleType:
    """Import transformers without its messages and progress bars."""
    import transformers

    logging.getLogger("transformers").setLevel(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()
    return transformers


def load_attention_model(name: str) -> tuple["PreTrainedModel", Any]:
    """Load a BERT or GPT-2 without its head, in eval mode, and its tokenizer.

    The name is a local directory, or one on the hub ("google-bert/bert-base-uncased"), which is
    downloaded once. Raises BadInput if it cannot be loaded or is of another family.
    """
    return _load(name, ("bert", "gpt2"), "AutoModel")


def load_language_model(name: str, *, tokenizer: bool = True) -> tuple["GPT2LMHeadModel", Any]:
    """Load a GPT-2 with its head, in eval mode, and its tokenizer; see `load_attention_model`.
    With `tokenizer=False`, None is in its place, and it may be missing."""
    return _load(name, ("gpt2",), "GPT2LMHeadModel", tokenizer=tokenizer)


def encode(tokenizer: Any, text: str) -> Tensor:
    """Encode a text as ids, (N,) int64, with the special tokens that the tokenizer adds.

    Raises BadInput if it cannot encode the text.
    """
    try:
        return torch.tensor(tokenizer(text)["input_ids"], dtype=torch.long)
    except Exception as error:  # the tokenizers library raises no narrower type
        raise BadInput(f"the tokenizer cannot encode {text!r}: {first_line(error)}") from error


def views_of_transformers(name: str, text: str) -> tuple[list[View], list[str]]:
    """Compute one view per attention layer of a BERT or GPT-2 on a text, and its tokens.

    `name` is a local directory or a name on the hub. The model's own tokenizer encodes the text,
    with its special tokens. Raises BadInput if there is no such model, or if the text has too few
    or too many tokens.
    """
    model, tokenizer = load_attention_model(name)
    ids = encode(tokenizer, text)
    limit = int(model.config.max_position_embeddings)
    if not 2 <= len(ids) <= limit:
        raise BadInput(f"text has {len(ids)} tokens; it must have 2 to {limit}")
    body: Any = model
    of_bert = model.config.model_type == "bert"
    layers = [x.attention for x in body.encoder.layer] if of_bert else [x.attn for x in body.h]
    to_ours: Callable[[Any], SelfAttention] = from_bert if of_bert else attention_from_gpt2
    inputs = [x for x, _ in inputs_of(model, layers, ids[None])]
    with torch.no_grad():
        ours = map(to_ours, layers)
        views = [view_of(n, *both) for n, both in enumerate(zip(ours, inputs, strict=True))]
    decode = partial(tokenizer.decode, clean_up_tokenization_spaces=False)
    return views, [decode([i]) for i in ids.tolist()]


def _load(
    name: str, families: tuple[str, ...], model_class: str, *, tokenizer: bool = True
) -> tuple[Any, Any]:
    library = transformers()
    if not name:
        raise BadInput("hf: needs a local directory or a name on the hub, as in hf:openai/gpt2")
    try:
        # Never run code from the directory of a model.
        family = library.AutoConfig.from_pretrained(name, trust_remote_code=False).model_type
        if family in families:
            model, loaded = getattr(library, model_class).from_pretrained(
                name, trust_remote_code=False, output_loading_info=True
            )
            # transformers draws missing weights. No attention of a BERT depends on its pooler.
            if missing := [x for x in sorted(loaded["missing_keys"]) if "pooler." not in x]:
                raise BadInput(f"{name} lacks weights of a {family}, such as {missing[0]}")
            own = library.AutoTokenizer
            encodes = own.from_pretrained(name, trust_remote_code=False) if tokenizer else None
            return model.eval(), encodes
    except BadInput:
        raise
    except Exception as error:  # transformers and the hub have no common error
        failure = "is not a local directory and could not be loaded from the hub"
        failure = "does not contain a model" if Path(name).is_dir() else failure
        raise BadInput(f"{name} {failure}: {first_line(error)}") from error
    raise BadInput(f"{name} is a {family}; it must be a {' or '.join(families)}")
