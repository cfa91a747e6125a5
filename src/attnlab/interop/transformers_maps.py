"""The attention patterns of a BERT or GPT-2 of transformers, computed by our layers."""

from functools import partial
from typing import Any

import torch

from attnlab.attention.layer import SelfAttention
from attnlab.errors import BadInput
from attnlab.interop.bert import from_bert
from attnlab.interop.gpt2 import attention_from_gpt2
from attnlab.interop.transformers_loading import encode, load_attention_model
from attnlab.probes.capture import View, inputs_of, view_of


def views_of_transformers(name: str, text: str) -> tuple[list[View], list[str]]:
    """Compute the patterns of every attention layer of a BERT or GPT-2 on a text.

    `name` is a local directory or a name on the hub. The model's own tokenizer encodes the text,
    with its special tokens. Raises BadInput if there is no such model, or if the text has too few
    or too many tokens.

    Returns:
        one view per layer, and the tokens.
    """
    model, tokenizer = load_attention_model(name)
    ids = encode(tokenizer, text)
    limit = int(model.config.max_position_embeddings)
    if not 2 <= len(ids) <= limit:
        raise BadInput(f"text has {len(ids)} tokens; it must have 2 to {limit}")
    body: Any = model
    ours: list[SelfAttention]
    if model.config.model_type == "bert":
        layers = [layer.attention for layer in body.encoder.layer]
        ours = [from_bert(layer) for layer in layers]
    else:
        layers = [block.attn for block in body.h]
        ours = [attention_from_gpt2(layer) for layer in layers]
    inputs = inputs_of(model, layers, ids[None])
    with torch.no_grad():
        views = [view_of(n, *pair) for n, pair in enumerate(zip(ours, inputs, strict=True))]
    decode = partial(tokenizer.decode, clean_up_tokenization_spaces=False)
    return views, [decode([i]) for i in ids.tolist()]
