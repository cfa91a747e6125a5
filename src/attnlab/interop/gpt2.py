"""GPT-2 from transformers in our layer, block and model."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch.nn.functional as F
from torch import Tensor, nn

import attnlab.model
from attnlab.attention.self_attention import SelfAttention
from attnlab.attention.variant import AttentionConfig, Variant
from attnlab.errors import BadInput
from attnlab.model import GPT, Activation, AttentionFactory, Block, gelu_tanh, relu_squared

if TYPE_CHECKING:
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention, GPT2Block

M = TypeVar("M", bound=nn.Module)

EPS = 1e-5  # of our norms, and GPT-2's usual one
# GPT-2's names of activations; if a function has two names, the first is exported.
ACTIVATIONS: dict[str, Activation] = {
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "gelu": F.gelu,
    "relu": F.relu,
    "relu2": relu_squared,
    "silu": F.silu,
}
# Our name -> GPT-2's name, and back: of the blocks, and of their linear maps.
THEIRS = {"blocks": "h", "qkv": "c_attn", "proj": "c_proj", "fc": "c_fc"}
OURS = {theirs: ours for ours, theirs in THEIRS.items()}


def attention_from_gpt2(layer: "GPT2Attention") -> SelfAttention:
    """A self-attention layer of GPT-2 in ours: same queries, keys, values, pattern and output.

    Raises BadInput if it is a cross-attention.
    """
    if layer.is_cross_attention:
        raise BadInput("a cross-attention of GPT-2 reads two sequences; our layers read one")
    config = layer.config
    scale = (config.n_embd // config.n_head) ** -0.5 if config.scale_attn_weights else 1.0
    if config.scale_attn_by_inverse_layer_idx:
        scale /= layer.layer_idx + 1
    shape, dropout = (config.n_embd, config.n_head, config.n_positions), float(config.attn_pdrop)
    ours = SelfAttention(AttentionConfig(*shape, dropout=dropout, scale=scale))
    return filled(ours, renamed(layer.state_dict(), OURS), layer)


def block_from_gpt2(block: "GPT2Block") -> Block:
    """A block of GPT-2 in ours, with the same output; BadInput if ours cannot express it."""
    config = block.attn.config
    _check_block(config)
    ours = Block(
        config.n_embd,
        attention_from_gpt2(block.attn),
        bias=True,
        dropout=float(config.resid_pdrop),
        activation=ACTIVATIONS[config.activation_function],
    )
    return filled(ours, renamed(block.state_dict(), OURS), block)


def from_gpt2(model: "GPT2LMHeadModel", attn: AttentionFactory | None = None) -> GPT:
    """A whole GPT-2 as our GPT with the same logits, in its mode and dtype, on its device.

    `attn` builds the attention layers: any variant with the same parameters, so that only the
    attention differs; None means that of GPT-2. Raises BadInput if our GPT cannot express the
    model.
    """
    config = model.config
    _check_block(config)
    if config.scale_attn_by_inverse_layer_idx:
        raise BadInput("scale_attn_by_inverse_layer_idx = true: our layers share one scale")
    if not config.tie_word_embeddings:
        raise BadInput("tie_word_embeddings = false: our head is tied to the embedding")
    if not config.resid_pdrop == config.embd_pdrop == config.attn_pdrop:
        raise BadInput(
            f"resid_pdrop = {config.resid_pdrop}, embd_pdrop = {config.embd_pdrop} and "
            f"attn_pdrop = {config.attn_pdrop} must be equal: our GPT has one dropout"
        )
    own = Variant(SelfAttention, {"scale": None if config.scale_attn_weights else 1.0})
    settings = settings_of_gpt2(config) | {"dropout": float(config.resid_pdrop)}
    settings["norm"] = attnlab.model.layer_norm  # instead of the functions' names
    settings["activation"] = ACTIVATIONS[config.activation_function]
    net = GPT(own if attn is None else attn, config.vocab_size, **settings)
    return filled(net, renamed(model.transformer.state_dict(), OURS), model)


def settings_of_gpt2(config: "GPT2Config") -> dict[str, Any]:
    """The settings of the group `model` with which a GPT is the one of `from_gpt2`."""
    activation = ACTIVATIONS[config.activation_function].__name__
    own = activation in attnlab.model.__all__
    return {
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_embd": config.n_embd,
        "block_size": config.n_positions,
        "bias": True,
        "norm": "layer_norm",
        "activation": activation if own else f"torch.nn.functional.{activation}",
        "learned_positions": True,
        "smear": 0,
    }


def filled(ours: M, weights: Mapping[str, Tensor], theirs: nn.Module) -> M:
    """Load weights into our module, and give it the mode, dtype and device of theirs."""
    example = next(theirs.parameters())
    ours.to(device=example.device, dtype=example.dtype).train(theirs.training)
    ours.load_state_dict(dict(weights))
    return ours


def renamed(weights: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Rename parameters, and transpose linear maps: GPT-2 stores (in, out), we store (out, in)."""
    result = {}
    for name, weight in weights.items():
        parts = name.split(".")
        linear = parts[-2] in names and weight.ndim == 2
        result[".".join(names.get(part, part) for part in parts)] = weight.T if linear else weight
    return result


def _check_block(config: "GPT2Config") -> None:
    """Refuse what our blocks cannot express by a BadInput that names the first such setting."""
    width, activation = 4 * config.n_embd, config.activation_function
    if config.add_cross_attention:
        raise BadInput("add_cross_attention = true: our blocks have only self-attention")
    if config.n_inner not in (None, width):
        raise BadInput(f"n_inner = {config.n_inner} must be 4 * n_embd = {width}, as in our MLP")
    if activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise BadInput(f"activation_function = {activation} must be one of {known}")
    if (eps := config.layer_norm_epsilon) != EPS:
        raise BadInput(f"layer_norm_epsilon = {eps:g} must be {EPS:g}, as in ours")
