"""The attention patterns of a BERT or GPT-2 of transformers, computed by our layers."""

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attnlab.attention.layer import SelfAttention
from attnlab.errors import BadInput
from attnlab.interop.bert import from_bert
from attnlab.interop.gpt2 import attention_from_gpt2
from attnlab.interop.transformers_loading import encode, load_attention_model
from attnlab.probes.capture import View, eval_mode, view_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def views_of_transformers(name: str, text: str) -> tuple[list[View], list[str]]:
    """Compute the patterns of every attention layer of a BERT or GPT-2 on a text.

    Args:
        name: a local folder, or a name on the hub.
        text: encoded by the model's own tokenizer, with its special tokens.

    Returns:
        one view per layer, and the tokens.

    Raises:
        BadInput: there is no such model, or the text has too few or too many tokens.
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
    inputs = _inputs(model, layers, ids[None])
    with torch.no_grad():
        views = [view_of(n, *pair) for n, pair in enumerate(zip(ours, inputs, strict=True))]
    decode = partial(tokenizer.decode, clean_up_tokenization_spaces=False)
    return views, [decode([i]) for i in ids.tolist()]


def _inputs(model: "PreTrainedModel", layers: list[nn.Module], ids: Tensor) -> list[Tensor]:
    """The input of each layer, (B, T, C), recorded by hooks that are removed afterwards."""
    inputs: list[Tensor] = []

    def keep(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        inputs.append(args[0] if args else options["hidden_states"])

    hooks = [layer.register_forward_pre_hook(keep, with_kwargs=True) for layer in layers]
    try:
        with eval_mode(model):
            model(ids)
    finally:
        for hook in hooks:
            hook.remove()
    return inputs
